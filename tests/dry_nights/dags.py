"""The DAGs of the nights: blocks of one pool, and work in them that does nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, TaskGroup

from airflow_gpu_provider import EksGpuPool, gpu_nodes


def dag(dag_id: str = "nightly", **arguments: Any) -> DAG:
    return DAG(dag_id, **{"schedule": None, "start_date": datetime(2026, 1, 1), "catchup": False, **arguments})


def pool(name: str = "gpus") -> EksGpuPool:
    return EksGpuPool(
        name=name,
        cluster_name="k8s-ml",
        region="us-west-2",
        instance_types=["g6.xlarge"],
        zones=["us-west-2a"],
        max_nodes=2,
        max_runtime=timedelta(hours=1),
    )


def block(name: str = "gpus", **arguments: Any) -> AbstractContextManager[TaskGroup]:
    """A block without the device plugin's task: a look less for each night."""
    return gpu_nodes(pool(), **{"group_id": name, "install_device_plugin": False, **arguments})

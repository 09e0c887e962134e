"""Trainings without a `gpu_nodes` block: all of a run is the pod's task, and the pool has groups and no nodes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG
from kubernetes.client import models as k8s

from airflow_gpu_provider import EksGpuPool, GpuPodOperator
from tests.airflow.dags.gpu_pods import pool


def alone(name: str) -> EksGpuPool:
    """A pool of its own for each DAG: whose node stays, and whose switch it is, is then certain."""
    return pool(f"alone-{name}", max_runtime=timedelta(hours=24))


def train(name: str, **arguments: Any) -> DAG:
    with DAG(f"alone_{name}", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        arguments = {"arguments": ["trap 'exit 143' TERM; while :; do sleep 0.2; done"], "retries": 0, **arguments}
        GpuPodOperator(
            task_id="train",
            image="busybox:1.36",
            cmds=["sh", "-c"],
            gpu_pool=alone(name.replace("_", "-")),
            **arguments,
        )
    return dag


TIMEOUT = timedelta(seconds=60)

timed_out_blocking = train("timed_out_blocking", deferrable=False, execution_timeout=TIMEOUT)
timed_out_deferred = train("timed_out_deferred", execution_timeout=TIMEOUT)
failed_blocking = train("failed_blocking", deferrable=False)
failed_deferred = train("failed_deferred")
kept = train(
    "kept",
    arguments=["true"],
    deferrable=False,
    on_finish_action="keep_pod",
    active_deadline_seconds=3600,
    full_pod_spec=k8s.V1Pod(
        spec=k8s.V1PodSpec(
            containers=[
                k8s.V1Container(name="base"),
                k8s.V1Container(name="side", image="busybox:1.36", command=["sh", "-c", "while :; do sleep 1; done"]),
            ]
        )
    ),
)

"""Blocks in every place of a DAG, and in every way to be ended; they run at once, each DAG on a pool of its own."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, TaskGroup, task, task_group

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes
from tests.airflow.retries import AGAIN

START = datetime(2026, 1, 1)


def pool(name: str, **fields: Any) -> EksGpuPool:
    defaults: dict[str, Any] = {
        "cluster_name": os.environ.get("GPU_SANDBOX_CLUSTER", "k8s-ml"),
        "region": os.environ.get("GPU_SANDBOX_REGION", "us-west-2"),
        "instance_types": ["g6.xlarge"],
        "zones": ["us-west-2a"],
        "max_nodes": 1,
        "max_runtime": timedelta(hours=1),
    }
    return EksGpuPool(name=name, **{**defaults, **fields})


def train(task_id: str, command: str) -> GpuPodOperator:
    return GpuPodOperator(task_id=task_id, image="busybox:1.36", cmds=["sh", "-c", command], termination_grace_period=1)


def dag(dag_id: str, **fields: Any) -> DAG:
    return DAG(dag_id, **{"schedule": None, "start_date": START, "catchup": False, "default_args": AGAIN, **fields})


# Two at once on one pool, and a third one on it after the shorter of them; the test ends the longer one.
with dag("blocks_share") as share:
    with gpu_nodes(pool("blocks-share", max_nodes=2), group_id="short") as short:
        train("short_training", "echo trained")
    with gpu_nodes(pool("blocks-share", max_nodes=2), group_id="long"):
        train("long_training", "until [ -e /dev/shm/end ]; do sleep 0.2; done; echo trained")
    with gpu_nodes(pool("blocks-share", max_nodes=2), group_id="next") as following:
        train("next_training", "echo trained")
    short >> following

with dag("blocks_mapped") as mapped, TaskGroup("cities"):

    @task_group
    def city(name: str) -> None:
        with gpu_nodes(pool("blocks-mapped", max_nodes=2)):
            GpuPodOperator(task_id="train", image="busybox:1.36", cmds=["test", "oslo", "=", name], retries=1)

    city.expand(name=["oslo", "rome"])

# One of three fails the first time, and is cleared alone when the pool is back to zero.
with dag("blocks_sweep") as sweep, gpu_nodes(pool("blocks-sweep"), gpus=1):
    GpuPodOperator.partial(task_id="sweep", image="busybox:1.36", retries=0).expand(
        cmds=[["true"], ["test", "{{ ti.try_number }}", "-gt", "1"], ["true"]]
    )

with dag("blocks_skipped") as skipped:

    @task.short_circuit
    def is_there_data() -> bool:
        return False

    before = is_there_data()
    with gpu_nodes(pool("blocks-skipped"), group_id="whole") as whole:
        train("never", "echo never")
    before >> whole
    with gpu_nodes(pool("blocks-skipped"), group_id="inside"):
        is_there_data.override(task_id="is_there_more")() >> train("neither", "echo never")

with dag("blocks_timeout", dagrun_timeout=timedelta(hours=1)) as timeout, gpu_nodes(pool("blocks-timeout")):
    train("train", "exec sleep 3600")

with dag("blocks_killed") as killed:
    dry = pool("blocks-killed", zones=["us-west-2c"])
    with gpu_nodes(dry, ensure_args={"deferrable": False, "retries": 0}):
        train("train", "echo never")

with dag("blocks_marked") as marked, gpu_nodes(pool("blocks-marked", zones=["us-west-2c"])):
    train("train", "echo never")

with dag("blocks_backfill", schedule="@daily", max_active_runs=3) as backfill, gpu_nodes(pool("blocks-backfill")):
    train("train", "echo trained")

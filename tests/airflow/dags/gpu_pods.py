"""GpuPodOperator under a real scheduler: pods whose tasks are killed, one that talks, and a sweep over several pods."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes
from tests.airflow.retries import AGAIN


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


with (
    DAG("pod_logs", schedule=None, start_date=datetime(2026, 1, 1), default_args=AGAIN),
    gpu_nodes(pool("pod-logs")),
):
    GpuPodOperator(
        task_id="train",
        image="busybox:1.36",
        env_vars={"KEY": "{{ var.value.get('tracking_api_key', '') }}"},
        cmds=["sh", "-c"],
        arguments=[
            """
            echo the key is $KEY
            i=0; until [ -e /dev/shm/end ]; do echo line $i; i=$((i+1)); sleep 0.1; done
            echo $i > /airflow/xcom/return.json
            """
        ],
        do_xcom_push=True,
    )

with (
    DAG("pod_watched_anew", schedule=None, start_date=datetime(2026, 1, 1), default_args=AGAIN),
    gpu_nodes(pool("pod-watched-anew"), gpus=1),
):
    GpuPodOperator(
        task_id="train",
        image="busybox:1.36",
        cmds=["sh", "-c"],
        arguments=[
            """
            i=0; until [ -e /dev/shm/end ]; do echo line $i; i=$((i+1)); sleep 0.2; done
            echo $i > /airflow/xcom/return.json
            """
        ],
        do_xcom_push=True,
        retries=0,
    )

with (
    DAG("pod_sweep", schedule=None, start_date=datetime(2026, 1, 1), default_args=AGAIN) as sweep,
    gpu_nodes(pool("pod-sweep", instance_types=["g6.12xlarge"]), gpus=4),
):
    GpuPodOperator.partial(task_id="train", image="busybox:1.36", cmds=["sh", "-c"], do_xcom_push=True).expand(
        arguments=[[f'echo {{\\"rate\\": {rate}}} > /airflow/xcom/return.json'] for rate in (1, 2, 3)]
    )

with (
    DAG("gpu_function", schedule=None, start_date=datetime(2026, 1, 1), default_args=AGAIN),
    gpu_nodes(pool("gpu-function", instance_types=["g6.12xlarge"]), gpus=4),
):

    @task.gpu(gpus=2, image="python:3.12", do_xcom_push=True)
    def visible_gpus(add: list[int], *, label: str) -> dict[str, Any]:
        """Say what the function was given, and which GPUs its pod sees."""
        import os

        return {label: sum(add), "gpus": len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))}

    visible_gpus.override(task_id="mapped").partial(label="sum").expand(add=[[1, 2], [3, 4]])
    visible_gpus([1, 2, 3], label="sum")


def kills_pool() -> EksGpuPool:
    """Room for all pods of the DAGs below at once; its nodes are there before, so the pod's task is all of a run."""
    return pool("kills", instance_types=["g6.12xlarge"], max_nodes=3)


def endless(*, stops_in: int = 0, **arguments: Any) -> GpuPodOperator:
    """A training whose first try goes on until its test lets it end, or for some seconds after it is told to stop."""
    command = (
        f"trap 'sleep {stops_in}; exit 143' TERM; "
        "test {{ ti.try_number }} -gt 1 || until [ -e /dev/shm/end ]; do sleep 0.2; done; "
        "echo trained"
    )
    return GpuPodOperator(task_id="train", image="busybox:1.36", cmds=["sh", "-c"], arguments=[command], **arguments)


def train_alone(dag_id: str, **arguments: Any) -> DAG:
    with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1), default_args=AGAIN) as dag:
        endless(gpu_pool=kills_pool(), **arguments)
    return dag


kill_deferred = train_alone("kill_deferred", retries=0)
kill_deferred_slow = train_alone("kill_deferred_slow", retries=0, stops_in=10)
kill_blocking = train_alone("kill_blocking", deferrable=False, retries=0)
kill_blocking_retried = train_alone(
    "kill_blocking_retried", deferrable=False, retries=1, retry_delay=timedelta(0), stops_in=10
)
with (
    DAG("kill_dag_deleted", schedule=None, start_date=datetime(2026, 1, 1), default_args=AGAIN),
    gpu_nodes(pool("kill-dag-deleted"), gpus=1),
):
    endless(retries=0)

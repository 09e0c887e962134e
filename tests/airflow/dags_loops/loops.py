"""A training in a task loop of Airflow 3.4, with the block around the loop."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task_group

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes

POOL = EksGpuPool(
    name="loop-around",
    cluster_name=os.environ.get("GPU_SANDBOX_CLUSTER", "k8s-ml"),
    region=os.environ.get("GPU_SANDBOX_REGION", "us-west-2"),
    instance_types=["g6.12xlarge"],  # two iterations have a pod at once if one of them is cleared
    zones=["us-west-2a"],
    max_nodes=1,
    max_runtime=timedelta(hours=1),
)

TRAIN = """
until [ -e /dev/shm/end ]; do sleep 0.2; done
echo "\\"$AIRFLOW_GPU_CHECKPOINT\\"" > /airflow/xcom/return.json
"""


@task_group
def improve() -> None:
    GpuPodOperator(
        task_id="train",
        gpus=1,
        image="busybox:1.36",
        cmds=["sh", "-c"],
        arguments=[TRAIN],
        checkpoint="s3://models/nightly",
        do_xcom_push=True,
    )


def good(*, loop: Any) -> bool:
    """End with the second iteration, if it has left another result than the first."""
    return bool(loop.index == 1 and loop.result != loop.previous)


with DAG("loop_around", schedule=None, start_date=datetime(2026, 1, 1)), gpu_nodes(POOL, gpus=4):
    improve.loop(max_iterations=2, until=good)

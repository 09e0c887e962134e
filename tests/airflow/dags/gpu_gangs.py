"""GpuPodOperator(nodes=2) under a real scheduler: a rank that is taken away, one that fails, a task that is ended."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes
from tests.airflow.retries import AGAIN


def pool(name: str, **fields: Any) -> EksGpuPool:
    defaults: dict[str, Any] = {
        "cluster_name": os.environ.get("GPU_SANDBOX_CLUSTER", "k8s-ml"),
        "region": os.environ.get("GPU_SANDBOX_REGION", "us-west-2"),
        "instance_types": ["g6.xlarge"],
        "zones": ["us-west-2a", "us-west-2b"],
        "max_nodes": 2,
        "max_runtime": timedelta(hours=1),
    }
    return EksGpuPool(name=name, **{**defaults, **fields})


def gang(script: str, **arguments: Any) -> GpuPodOperator:
    return GpuPodOperator(
        task_id="train", image="busybox:1.36", cmds=["sh", "-c", script], nodes=2, retries=0, **arguments
    )


FOREVER = "trap 'echo told to stop; exit 0' TERM; echo up; while :; do sleep 0.1; done"

with (
    DAG("gang_night", schedule=None, start_date=datetime(2026, 1, 1), default_args=AGAIN),
    gpu_nodes(pool("gang-night")),
):
    gang(
        """
        echo "rank $PET_NODE_RANK of $PET_NNODES, attempt $AIRFLOW_GPU_ATTEMPT"
        if [ "$AIRFLOW_GPU_ATTEMPT" = 1 ]; then trap 'exit 0' TERM; while :; do sleep 0.1; done; fi
        echo "{\\"rank\\": $AIRFLOW_GPU_NODE_RANK}" > /airflow/xcom/return.json
        """,
        do_xcom_push=True,
        checkpoint="s3://checkpoints/gang",
    )

with (
    DAG("gang_marked_failed", schedule=None, start_date=datetime(2026, 1, 1), default_args=AGAIN),
    gpu_nodes(pool("gang-marked-failed")),
):
    gang(FOREVER)

with (
    DAG("gang_rank_fails", schedule=None, start_date=datetime(2026, 1, 1), default_args=AGAIN),
    gpu_nodes(pool("gang-rank-fails")),
):
    until = "until [ -e /dev/shm/end ]; do sleep 0.1; done"
    gang(f'if [ "$PET_NODE_RANK" = 1 ]; then {until}; echo loss is NaN; exit 3; fi; {FOREVER}')

"""The block around GPU nodes, once for each way in which a night can go. All run at once, each DAG on its own pool."""

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
        "zones": ["us-west-2a"],
        "max_nodes": 1,
        "max_runtime": timedelta(hours=1),
    }
    return EksGpuPool(name=name, **{**defaults, **fields})


def block(dag_id: str, *, command: str, max_active_runs: int = 1, fields: dict[str, Any], **block_args: Any) -> DAG:
    start = datetime(2026, 1, 1)
    with (
        DAG(dag_id, schedule=None, start_date=start, max_active_runs=max_active_runs, default_args=AGAIN) as dag,
        gpu_nodes(pool(dag_id.replace("_", "-"), **fields), gpus=1, **block_args),
    ):
        GpuPodOperator(
            task_id="train", image="busybox:1.36", cmds=["sh", "-c", command], termination_grace_period=1, retries=0
        )
    return dag


# At this price a second costs 0.5.
ok = block("block_ok", command="sleep 2; echo trained", fields={"price_per_hour": 1800.0})
train_fails = block("block_train_fails", command="echo no such file: data.csv; exit 3", fields={})
run_marked = block("block_run_marked", command="echo started; exec sleep 3600", fields={})
task_marked = block("block_task_marked", command="echo started; exec sleep 3600", fields={})
ensure_fails = block(
    "block_ensure_fails",
    command="echo never",
    fields={"zones": ["us-west-2b"]},
    ensure_args={"timeout": timedelta(seconds=60), "retries": 0},
)
zero_fails = block(
    "block_zero_fails",
    command="until [ -e /dev/shm/end ]; do sleep 0.2; done",
    fields={"zones": ["us-west-2c"]},
    scale_down_args={"timeout": timedelta(seconds=1), "retries": 0},
)
# The second try of the training is quick: its first one was cleared while it ran.
cleared = block(
    "block_cleared",
    command="test {{ ti.try_number }} -gt 1 && echo trained again || exec sleep 3600",
    fields={},
)
two_runs_two_nodes = block("block_two_nodes", command="exec sleep 5", max_active_runs=2, fields={"max_nodes": 2})
two_runs_one_node = block("block_one_node", command="exec sleep 5", max_active_runs=2, fields={})

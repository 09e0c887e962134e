"""The block around GPU nodes, for each end in which processes have a part. All run at once, each on its own pool."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes
from airflow_gpu_provider.notifications import GpuNightNotifier
from airflow_gpu_provider.notifications.night import Night
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


def tell(night: Night) -> None:
    """Write down what a notification says, where the DAG processor runs the DAG's callback."""
    Path(os.environ["AIRFLOW_HOME"], f"{night.dag_id}.night").write_text(night.in_words)


NOTIFIED = {"on_success_callback": GpuNightNotifier(tell), "on_failure_callback": GpuNightNotifier(tell)}


def block(
    dag_id: str, *, command: str, fields: dict[str, Any], timeout: timedelta | None = None, **block_args: Any
) -> DAG:
    with (
        DAG(dag_id, schedule=None, start_date=START, dagrun_timeout=timeout, default_args=AGAIN, **NOTIFIED) as dag,
        gpu_nodes(pool(dag_id.replace("_", "-"), **fields), gpus=1, **block_args),
    ):
        GpuPodOperator(
            task_id="train", image="busybox:1.36", cmds=["sh", "-c", command], termination_grace_period=1, retries=0
        )
    return dag


# At this price a second costs 0.5.
ok = block("block_ok", command="sleep 2; echo trained", fields={"price_per_hour": 1800.0})
run_marked = block("block_run_marked", command="echo started; exec sleep 3600", fields={})
timeout = block("block_timeout", command="exec sleep 3600", fields={}, timeout=timedelta(hours=1))
killed = block(
    "block_killed",
    command="echo never",
    fields={"zones": ["us-west-2c"]},
    ensure_args={"deferrable": False, "retries": 0},
)
unconnected = block(
    "block_unconnected",
    command="echo never",
    fields={"aws_conn_id": "nobodys"},
    ensure_args={"timeout": timedelta(seconds=2)},
)
zero_fails = block(
    "block_zero_fails",
    command="until [ -e /dev/shm/end ]; do sleep 0.2; done",
    fields={"zones": ["us-west-2b"]},
    scale_down_args={"timeout": timedelta(seconds=1), "retries": 0},
)

# Ten nights at once, on two machines; no pod asks for a GPU.
ten_nights = DAG("block_ten_nights", schedule="@daily", catchup=False, start_date=START, max_active_runs=10)
with ten_nights, gpu_nodes(pool("block-ten-nights", max_nodes=2), install_device_plugin=False, ensure_args=AGAIN):
    EmptyOperator(task_id="train")

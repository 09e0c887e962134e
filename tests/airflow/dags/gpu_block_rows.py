"""Each way in which Airflow can start, skip or end the tasks of a block; all run at once, each DAG on its own pool.

The work of a block is a shell command without a pod where only the scheduler's part in it matters.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TriggerRule

from airflow_gpu_provider import EksGpuPool, gpu_nodes
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


def dag(dag_id: str, **fields: Any) -> DAG:
    return DAG(dag_id, **{"schedule": None, "start_date": datetime(2026, 1, 1), "default_args": AGAIN, **fields})


def nodes(dag_id: str, *, fields: dict[str, Any] | None = None, **arguments: Any) -> Any:
    """A block without the device plugin: no pod asks for a GPU."""
    return gpu_nodes(pool(dag_id.replace("_", "-"), **(fields or {})), install_device_plugin=False, **arguments)


def work(task_id: str, command: str = "echo trained", **arguments: Any) -> BashOperator:
    return BashOperator(task_id=task_id, bash_command=command, **arguments)


# A person marks the run failed while its training waits: for another try, or for a slot that never comes.
with dag("rows_waits_for_retry"), nodes("rows_waits_for_retry"):
    work("train", "exit 1", retries=1, retry_delay=timedelta(hours=1)) >> work("evaluate")
for dag_id in ("rows_scheduled", "rows_queued"):
    with dag(dag_id), nodes(dag_id):
        work("train", pool="no_slots")

# Trigger rules: in the block, a task that runs because another one failed; after it, tasks that look at its work alone.
with dag("rows_trigger_rules"):
    with nodes("rows_trigger_rules") as block:
        train = work("train", "exit 1", retries=0)
        train >> work("rescue", trigger_rule=TriggerRule.ONE_FAILED)
        train >> work("evaluate")
    block >> work("report")
    block >> work("always", trigger_rule=TriggerRule.ALL_DONE)
    block >> work("alarm", trigger_rule=TriggerRule.ONE_FAILED)

# The first night's first try fails; the second night depends on it.
past = dag("rows_past", schedule="@daily", catchup=False, default_args={**AGAIN, "depends_on_past": True})
with past, nodes("rows_past"):
    work("train", "test {{ ds }} != 2026-01-02 -o {{ ti.try_number }} -gt 1", retries=0)

# One at a time, of all runs and of one; two runs.
with dag("rows_one_at_a_time"), nodes("rows_one_at_a_time", fields={"max_nodes": 2}):
    BashOperator.partial(task_id="train", max_active_tis_per_dag=1, max_active_tis_per_dagrun=1).expand(
        bash_command=["sleep 1", "sleep 1"]
    )

# A task after the training has the only slot of what default_args call the slot pool, for as long as its test wants.
with dag("rows_slots", default_args={**AGAIN, "pool": "one_slot"}):
    with nodes("rows_slots"):
        last = EmptyOperator(task_id="train")
    last >> work("hog", "until [ -e {{ dag_run.conf['until'] }} ]; do sleep 0.2; done")

# No GPU ever becomes allocatable: nobody installs a device plugin. A deferred Ensure outlasts its execution_timeout.
for dag_id, bounds in (
    ("rows_ensure_timeout", {"deferrable": False, "execution_timeout": timedelta(seconds=25)}),
    # A busy machine's first leg takes its time, too.
    ("rows_deferred_ensure", {"timeout": timedelta(seconds=120), "execution_timeout": timedelta(seconds=90)}),
):
    with dag(dag_id), nodes(dag_id, ensure_args={"wait_for": "gpus", "retries": 0, **bounds}):
        EmptyOperator(task_id="train")

# The cloud answers no scale-down for as long as its test wants; on a busy machine one try may be too short, too.
down = {"deferrable": False, "execution_timeout": timedelta(seconds=15), "retries": 30}
with dag("rows_down_timeout"), nodes("rows_down_timeout", scale_down_args=down):
    work("train", "until [ -e {{ dag_run.conf['until'] }} ]; do sleep 0.2; done")

# Ten nights at once, on two machines.
ten_nights = dag("rows_ten_nights", schedule="@daily", catchup=False, max_active_runs=10)
with ten_nights, nodes("rows_ten_nights", fields={"max_nodes": 2}):
    EmptyOperator(task_id="train")

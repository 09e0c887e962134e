"""Runs whose tasks leave what this package's operators leave, as recorded: no cloud or cluster is needed for a page.

The classes have the names of the operators, for it is by those that the page finds its tasks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator

PATIENCE = 600.0


class _Recorded(BaseOperator):
    """Leaves what the run's conf has under its task id: XComs by key, an error to end with, a file to wait for.

    It goes on as long as AIRFLOW_HOME has a file `hold-` with the DAG's id, whatever has started the run.
    """

    template_fields = ("gpu_pool",)

    def __init__(self, *, gpu_pool: dict[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gpu_pool = gpu_pool

    def execute(self, context: Any) -> None:
        recorded = context["dag_run"].conf.get(self.task_id, {})
        if recorded.get("until"):
            _wait_for(f"{recorded['until']} to come", Path(recorded["until"]).exists)
        hold = Path(os.environ["AIRFLOW_HOME"], f"hold-{self.dag_id}")
        _wait_for(f"{hold} to go", lambda: not hold.exists())
        for key, value in recorded.get("xcoms", {}).items():
            context["ti"].xcom_push(key=key, value=value)
        if recorded.get("error") and context["ti"].try_number <= recorded.get("errors", 100):
            raise RuntimeError(recorded["error"])


def _wait_for(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.2)


class EnsureGpuPoolOperator(_Recorded):
    pass


class GpuPodOperator(_Recorded):
    pass


class ScaleDownSensor(_Recorded):
    pass


class GpuPoolStatusOperator(_Recorded):
    pass


class GpuPoolDoctorOperator(_Recorded):
    pass


class ReapGpuPoolsOperator(_Recorded):
    pass


class ExtendGpuPoolOperator(_Recorded):
    pass


def block(pool: str, *pods: Any) -> None:
    ensure = EnsureGpuPoolOperator(task_id=f"{pool}.ensure", gpu_pool={"name": pool})
    scale_down = ScaleDownSensor(task_id=f"{pool}.scale_down", gpu_pool={"name": pool}, trigger_rule="all_done")
    ensure >> [*pods] >> scale_down


COMMON: dict[str, Any] = {"schedule": None, "start_date": datetime(2026, 1, 1)}
AT_ONCE = {"retries": 1, "retry_delay": timedelta(0)}

# For Airflows with FAB: those of the role "team" may read this one DAG.
with DAG("nightly", access_control={"team": {"DAGs": {"can_read"}}}, **COMMON):
    block("train-gpu", GpuPodOperator(task_id="train-gpu-train", gpu_pool={"name": "train-gpu"}))

with DAG("recorded", **COMMON):
    ScaleDownSensor(task_id="train-gpu.scale_down", gpu_pool={"name": "train-gpu"}) >> _Recorded(task_id="done")

with DAG("two_blocks", **COMMON):
    block("train-gpu", GpuPodOperator.partial(task_id="sweep").expand(gpu_pool=[{"name": "train-gpu"}] * 2))
    block("big-gpu", GpuPodOperator(task_id="big-gpu-train", gpu_pool={"name": "big-gpu"}, **AT_ONCE))

with DAG("no_gpus", **COMMON):
    _Recorded(task_id="report")

with DAG("looks", **COMMON):
    ReapGpuPoolsOperator(task_id="reap")
    GpuPoolDoctorOperator(task_id="doctor")
    GpuPoolStatusOperator(task_id="status")

with DAG("more_time", **COMMON):
    ExtendGpuPoolOperator(task_id="extend")

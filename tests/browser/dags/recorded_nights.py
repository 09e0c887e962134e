"""Runs whose tasks leave what this package's operators leave, as recorded: no cloud or cluster is needed for a page.

They have the operators' roles, by which the page finds its tasks, and are spared the operators' imports.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_gpu_provider.tasks.pool_operator import PoolOperator
from tests.browser.leaving import Leaving


class Recorded(Leaving, PoolOperator):
    template_fields = ("gpu_pool",)

    def __init__(self, *, gpu_pool: dict[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gpu_pool = gpu_pool


class Begin(Recorded):
    gpu_role = "ensure"


class Train(Recorded):
    gpu_role = "training"


class End(Recorded):
    gpu_role = "scale_down"


class Look(Recorded):
    gpu_role = "status"


class Examine(Recorded):
    gpu_role = "doctor"


class Sweep(Recorded):
    gpu_role = "reap"


class Extend(Recorded):
    gpu_role = "extend"


def block(pool: str, *pods: Any) -> None:
    ensure = Begin(task_id=f"{pool}.ensure", gpu_pool={"name": pool})
    scale_down = End(task_id=f"{pool}.scale_down", gpu_pool={"name": pool}, trigger_rule="all_done")
    ensure >> [*pods] >> scale_down


COMMON: dict[str, Any] = {"schedule": None, "start_date": datetime(2026, 1, 1)}
AT_ONCE = {"retries": 1, "retry_delay": timedelta(0)}

# For Airflows with FAB: those of the role "team" may read this one DAG.
with DAG("nightly", access_control={"team": {"DAGs": {"can_read"}}}, **COMMON):
    block("train-gpu", Train(task_id="train-gpu-train", gpu_pool={"name": "train-gpu"}))

with DAG("recorded", **COMMON):
    End(task_id="train-gpu.scale_down", gpu_pool={"name": "train-gpu"}) >> Recorded(task_id="done")

with DAG("two_blocks", **COMMON):
    block("train-gpu", Train.partial(task_id="sweep").expand(gpu_pool=[{"name": "train-gpu"}] * 2))
    block("big-gpu", Train(task_id="big-gpu-train", gpu_pool={"name": "big-gpu"}, **AT_ONCE))

with DAG("no_gpus", **COMMON):
    Recorded(task_id="report")

with DAG("looks", **COMMON):
    Sweep(task_id="reap")
    Examine(task_id="doctor")
    Look(task_id="status")

with DAG("more_time", **COMMON):
    Extend(task_id="extend")

"""EnsureGpuPoolOperator: for how long a run wants nodes, and when it refuses to bring any."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes
from airflow_gpu_provider.errors import ScaleDownIsOver
from airflow_gpu_provider.run_identity import run_ends_by

START = datetime(2026, 1, 1, 2, tzinfo=UTC)
POOL = EksGpuPool(name="gpu", cluster_name="ml", region="us-west-2", instance_types=("g6.xlarge",), max_nodes=1)


def nightly(**fields: Any) -> DAG:
    with DAG("nightly", schedule=None, start_date=START, **fields) as dag, gpu_nodes(POOL):
        GpuPodOperator(task_id="train", image="busybox", cmds=["true"])
    return dag


class Ti:
    dag_id, task_id, run_id, map_index = "nightly", "gpu.ensure", "r", -1

    def __init__(self, **states: str | None) -> None:
        self.states = {f"gpu.{name}": state for name, state in states.items()}

    def get_task_states(self, *, task_ids: list[str], **_: Any) -> dict[str, dict[str, str | None]]:
        return {self.run_id: {name: state for name, state in self.states.items() if name in task_ids}}


@pytest.mark.parametrize("state", ["success", "failed", "skipped", "upstream_failed"])
def test_ensure_that_is_cleared_alone_brings_nothing_that_nobody_takes_away(state: str) -> None:
    ensure: Any = nightly().get_task("gpu.ensure")
    with pytest.raises(ScaleDownIsOver, match=r"gpu\.scale_down has run already.*downstream"):
        ensure.execute({"ti": Ti(scale_down=state, done=None)})


def test_run_ends_a_moment_after_its_timeout() -> None:
    dag_run = SimpleNamespace(start_date=START)
    timed = {"dag": nightly(dagrun_timeout=timedelta(hours=2)), "dag_run": dag_run}
    assert run_ends_by(timed) == START + timedelta(hours=2, minutes=1)
    assert run_ends_by({"dag": nightly(), "dag_run": dag_run}) is None

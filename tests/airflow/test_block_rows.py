"""Each row of docs/blocks.md that is about how Airflow starts, skips and ends tasks: right colours, and zero.

The DAGs of gpu_block_rows.py all run at once, each on a pool of its own, so each test says what its own run has left.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing

import pytest

from airflow_gpu_provider.sandbox.airflow_api import RunStatus
from tests.airflow.harness import Airflow
from tests.airflow.test_blocks import PATIENCE, ended, state, zero

DAGS = ("rows_waits_for_retry", "rows_scheduled", "rows_queued", "rows_trigger_rules")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def started(airflow: Airflow) -> Mapping[str, RunStatus]:
    """Runs of all DAGs, started together."""
    airflow.api.set_slots("no_slots", 0)
    return {dag_id: airflow.trigger(dag_id) for dag_id in DAGS}


@pytest.fixture
def runs(airflow: Airflow, started: Mapping[str, RunStatus], begin_and_end_clean: None) -> Mapping[str, RunStatus]:
    """The same runs, for a test that fails to show them."""
    airflow.remember(*started.values())
    return started


def wait_for(airflow: Airflow, run: RunStatus, task_id: str, *states: str) -> None:
    airflow.api.wait_for_task(run.dag_id, run.run_id, task_id, states=frozenset(states), timeout=PATIENCE)


def states_of(airflow: Airflow, run: RunStatus, *task_ids: str) -> dict[str, str | None]:
    return {task_id: state(airflow, run, task_id) for task_id in task_ids}


def set_state_in_database(airflow: Airflow, run: RunStatus, task_id: str, state: str) -> None:
    """As an executor with a queue of its own leaves a task that none of its workers has taken yet."""
    with closing(sqlite3.connect(airflow.home.home / "airflow.db", timeout=60)) as database, database:
        changed = database.execute(
            "UPDATE task_instance SET state = ?, queued_dttm = datetime('now') WHERE run_id = ? AND task_id = ?",
            (state, run.run_id, task_id),
        )
        assert changed.rowcount == 1


@pytest.mark.parametrize(
    ("dag_id", "waits"),
    [("rows_waits_for_retry", "up_for_retry"), ("rows_scheduled", "scheduled"), ("rows_queued", "queued")],
)
def test_run_that_is_marked_failed_while_its_training_waits_is_red(
    airflow: Airflow, runs: Mapping[str, RunStatus], dag_id: str, waits: str
) -> None:
    run, name = runs[dag_id], dag_id.replace("_", "-")
    wait_for(airflow, run, "train", "scheduled" if waits == "queued" else waits)
    if waits == "queued":
        set_state_in_database(airflow, run, "train", "queued")
    airflow.api.mark_run(run.dag_id, run.run_id, "failed")
    assert ended(airflow, run) == "failed"
    assert states_of(airflow, run, "train", f"{name}.scale_down", f"{name}.done") == {
        "train": "skipped",
        f"{name}.scale_down": "success",
        f"{name}.done": "failed",
    }
    assert "marked before its tasks had ended: train: skipped" in airflow.log(run, f"{name}.done")
    zero(airflow, name)


def test_tasks_after_the_block_look_at_its_work_and_not_at_its_own_tasks(
    airflow: Airflow, runs: Mapping[str, RunStatus]
) -> None:
    run = runs["rows_trigger_rules"]
    assert ended(airflow, run) == "failed"
    expected = {
        "train": "failed",
        "rescue": "success",
        "evaluate": "upstream_failed",
        "report": "upstream_failed",
        "always": "success",
        "alarm": "success",
        "rows-trigger-rules.scale_down": "success",
        "rows-trigger-rules.done": "failed",
    }
    assert states_of(airflow, run, *expected) == expected
    zero(airflow, "rows-trigger-rules")

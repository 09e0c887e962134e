"""Somebody marks a task or the run, by Airflow's own API, in each state that its training can be in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from airflow.sdk import DAG

from tests.dry_nights.dags import block, dag
from tests.dry_nights.installation import Airflow, Work
from tests.dry_nights.night import Night

ENSURED = {"gpus.begin": "success", "gpus.ensure": "success"}
NO_SLOT = "no_slot"


def training(**arguments: object) -> DAG:
    with dag() as nightly, block():
        Work(task_id="train", **{"retries": 0, **arguments}) >> Work(task_id="evaluate", retries=0)
    return nightly


def waits_for_retry(airflow: Airflow) -> Night:
    return airflow.begin(training(retries=1), train=["failed", "success"]).until("train", "up_for_retry")


def waits_for_slot(airflow: Airflow) -> Night:
    airflow.slots(NO_SLOT, 0)
    return airflow.begin(training(pool=NO_SLOT)).until("train", "scheduled")


def waits_for_worker(airflow: Airflow) -> Night:
    """As an executor with a queue of its own leaves a task that none of its workers has taken yet."""
    night = airflow.begin(training()).until("gpus.ensure", "success")
    airflow.worker.is_busy = True
    night.until("train", "queued")
    airflow.worker.is_busy = False
    return night


def is_not_scheduled(airflow: Airflow) -> Night:
    return airflow.begin(training(), ensure="running").until("gpus.ensure", "running")


def runs(airflow: Airflow) -> Night:
    return airflow.begin(training(), train="running").until("train", "running")


def is_deferred(airflow: Airflow) -> Night:
    return airflow.begin(training(), train=["deferred", "success"]).until("train", "deferred")


def resumes(airflow: Airflow) -> Night:
    """Its trigger has fired, and no worker has taken it up yet."""
    night = is_deferred(airflow).resume("train")
    assert night["train"] == "scheduled"
    return night


WAITS = pytest.mark.parametrize("waits", [waits_for_retry, waits_for_slot, waits_for_worker, resumes])
RUNS = pytest.mark.parametrize("runs", [runs, is_deferred])


@WAITS
def test_run_marked_failed_while_its_training_waits(airflow: Airflow, waits: Callable[[Airflow], Night]) -> None:
    night = waits(airflow).mark("failed").go_on()
    assert night.state == "failed"
    assert night.states == {
        **ENSURED,
        "train": "skipped",
        "evaluate": "skipped",
        "gpus.scale_down": "success",
        "gpus.witness": "skipped",
        "gpus.done": "failed",
    }
    why = str(night.errors["gpus.done"])
    assert why.startswith("The run was marked before its tasks had ended: train: skipped; evaluate: skipped.")


@RUNS
def test_run_marked_failed_while_its_training_runs(airflow: Airflow, runs: Callable[[Airflow], Night]) -> None:
    night = runs(airflow).mark("failed").go_on()
    assert (night.state, night["train"], night["evaluate"]) == ("failed", "failed", "skipped")
    assert (night["gpus.scale_down"], night["gpus.done"]) == ("success", "failed")
    assert not airflow.worker.running, "its process was told to stop"


def test_run_marked_failed_while_ensure_runs(airflow: Airflow) -> None:
    night = is_not_scheduled(airflow).mark("failed").go_on()
    assert (night.state, night["gpus.ensure"], night["train"]) == ("failed", "failed", "skipped")
    assert (night["gpus.scale_down"], night["gpus.done"]) == ("success", "failed")


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_task_that_is_queued_in_the_moment_of_the_mark_runs_all_the_same(airflow: Airflow, state: str) -> None:
    """The scheduler has read the task before it was marked, and writes it afterwards."""
    with dag() as nightly, block():
        Work(task_id="train", retries=0)
    night = airflow.begin(nightly, train=state, ensure="running").until("gpus.ensure", "running")
    night.end("gpus.ensure").mark("failed").rewrite("train", "scheduled").go_on()
    assert (night["train"], night["gpus.scale_down"], night["gpus.witness"]) == (state, "success", "skipped")
    assert (night["gpus.done"], night.state) == (state, state)


@pytest.mark.parametrize(("evaluate", "state"), [("success", "success"), ("failed", "failed")])
@pytest.mark.parametrize("mark", ["failed", "success"])
def test_run_marked_after_all_work_ends_as_its_tasks_have(
    airflow: Airflow, mark: str, evaluate: str, state: str
) -> None:
    night = airflow.begin(training(), evaluate=evaluate, scale_down="running").until("gpus.scale_down", "running")
    night.mark(mark)
    assert night["gpus.witness"] == "skipped"
    night.end("gpus.scale_down").go_on()
    assert (night.state, night["evaluate"], night["gpus.done"]) == (state, evaluate, state)


def test_rescued_run_marked_after_all_work_stays_rescued(airflow: Airflow) -> None:
    with dag() as nightly, block():
        Work(task_id="train", retries=0) >> Work(task_id="rescue", trigger_rule="one_failed")
    night = airflow.begin(nightly, train="failed", scale_down="running").until("gpus.scale_down", "running")
    night.mark("failed").end("gpus.scale_down").go_on()
    assert (night.state, night["rescue"], night["gpus.done"]) == ("success", "success", "success")


@WAITS
def test_run_marked_success_while_its_training_waits(airflow: Airflow, waits: Callable[[Airflow], Night]) -> None:
    """Nobody can tell it from the other mark; marked again after everything has ended, it stays green."""
    night = waits(airflow).mark("success").go_on()
    assert (night.state, night["train"], night["gpus.scale_down"]) == ("failed", "skipped", "success")
    assert "if the run was marked a success, mark it so again" in str(night.errors["gpus.done"])
    assert night.mark("success").go_on().state == "success"


@RUNS
def test_run_marked_success_while_its_training_runs(airflow: Airflow, runs: Callable[[Airflow], Night]) -> None:
    """Green if nothing else was pending; here the evaluation was."""
    night = runs(airflow).mark("success").go_on()
    assert (night["train"], night["evaluate"], night["gpus.scale_down"]) == ("success", "skipped", "success")
    assert night.state == "failed"


@pytest.mark.parametrize("how", ["running", "deferred"])
def test_run_marked_success_while_its_last_task_runs(airflow: Airflow, how: str) -> None:
    night = airflow.begin(training(), evaluate=how).until("evaluate", how).mark("success").go_on()
    assert (night.state, night["evaluate"]) == ("success", "success")
    assert (night["gpus.scale_down"], night["gpus.done"]) == ("success", "success")


@pytest.mark.parametrize("mark", ["failed", "success"])
def test_run_marked_before_the_block_begins(airflow: Airflow, mark: str) -> None:
    """No node was started. Airflow 3.3 shows such a run green where all its other leaves are skipped."""
    with dag() as nightly:
        extract = Work(task_id="extract", retries=0)
        with block() as gpus:
            Work(task_id="train")
        extract >> gpus
    night = airflow.begin(nightly, extract="running").until("extract", "running").mark(mark).go_on()
    assert night["gpus.ensure"] == "skipped"
    assert night["gpus.scale_down"] == night["gpus.done"]
    assert night["gpus.done"] in ("skipped", "upstream_failed")
    assert night.state == "success"


@pytest.mark.parametrize(
    "in_state", [waits_for_retry, waits_for_slot, waits_for_worker, is_not_scheduled, runs, is_deferred, resumes]
)
def test_task_marked_failed(airflow: Airflow, in_state: Callable[[Airflow], Night]) -> None:
    night = in_state(airflow).mark_task("train", "failed")
    if in_state is is_not_scheduled:
        night.end("gpus.ensure")
    night.go_on()
    assert (night.state, night["train"], night["evaluate"]) == ("failed", "failed", "upstream_failed")
    assert (night["gpus.scale_down"], night["gpus.done"]) == ("success", "failed")
    assert str(night.errors["gpus.done"]).startswith("Tasks failed: train: failed; evaluate: upstream_failed.")


@RUNS
def test_task_marked_success(airflow: Airflow, runs: Callable[[Airflow], Night]) -> None:
    night = runs(airflow).mark_task("train", "success").go_on()
    assert (night.state, night["evaluate"], night["gpus.done"]) == ("success", "success", "success")


def test_ensure_marked_failed(airflow: Airflow) -> None:
    night = is_not_scheduled(airflow).mark_task("gpus.ensure", "failed").go_on()
    assert (night.state, night["train"], night["gpus.scale_down"]) == ("failed", "upstream_failed", "success")


def test_ensure_marked_success(airflow: Airflow) -> None:
    night = is_not_scheduled(airflow).mark_task("gpus.ensure", "success").go_on()
    assert (night.state, night["train"], night["gpus.scale_down"]) == ("success", "success", "success")


def test_scale_down_marked_failed(airflow: Airflow) -> None:
    night = airflow.begin(training(), scale_down="running").until("gpus.scale_down", "running")
    night.mark_task("gpus.scale_down", "failed").go_on()
    assert night.state == "failed"
    assert str(night.errors["gpus.done"]).startswith("Machines may still run, for scale-down failed")


def test_failed_task_marked_success_afterwards(airflow: Airflow) -> None:
    """Airflow runs what had failed for it once more; scale-down and `done` as well, which it clears with them."""
    night = airflow.begin(training(), train="failed").go_on()
    assert night.state == "failed"
    night.mark_task("train", "success").go_on()
    assert (night.state, night["evaluate"], night["gpus.done"]) == ("success", "success", "success")


def test_time_passes_for_a_run_that_was_marked_while_its_task_waited_for_a_retry(airflow: Airflow) -> None:
    night = waits_for_retry(airflow).mark("failed").go_on()
    airflow.pass_time(timedelta(hours=1))
    assert (night.go_on().state, night.tries("train")) == ("failed", 1)

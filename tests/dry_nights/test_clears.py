"""Somebody clears tasks, by Airflow's own API: while they run, after the block has ended, only those that failed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk import DAG

from tests.dry_nights.dags import block, dag
from tests.dry_nights.installation import Airflow, Work

OWN = ("gpus.ensure", "gpus.scale_down", "gpus.done")


def training() -> DAG:
    with dag() as nightly:
        extract = Work(task_id="extract")
        with block() as gpus:
            Work(task_id="train", retries=0) >> Work(task_id="evaluate", retries=0)
        extract >> gpus >> Work(task_id="report")
    return nightly


@pytest.mark.parametrize("how", ["running", "deferred"])
def test_a_task_is_cleared_while_it_runs_with_its_downstream_tasks(airflow: Airflow, how: str) -> None:
    """Ensure runs again too; scale-down, which had not run yet, runs once, after the second try."""
    night = airflow.begin(training(), train=[how, "running"]).until("train", how)
    night.clear("train").go_on()
    if how == "running":
        assert night["train"] == "up_for_retry", "its process was told to stop, and its try counts as failed"
        airflow.pass_time(timedelta(hours=1))
        night.go_on()
    assert (night["gpus.ensure"], night["train"], night["gpus.scale_down"]) == ("success", "running", None)
    assert [night.tries(name) for name in ("extract", "gpus.ensure", "train")] == [1, 2, 2]
    night.end("train").go_on()
    assert (night.state, night["evaluate"], night["report"]) == ("success", "success", "success")
    assert night.tries("gpus.scale_down") == 1


@pytest.mark.parametrize("downstream", [True, False], ids=["with downstream", "alone"])
@pytest.mark.parametrize("first", ["success", "failed"])
def test_a_task_is_cleared_after_the_block_has_ended(airflow: Airflow, first: str, downstream: bool) -> None:
    """Its setups and teardowns are cleared with it: the nodes come back, and go again."""
    night = airflow.begin(training(), train=first).go_on()
    assert night.state == first
    night.ends["train"] = "running"
    night.clear("train", downstream=downstream).until("train", "running")
    assert (night["gpus.ensure"], night["gpus.scale_down"], night["gpus.done"]) == ("success", None, None)
    night.end("train").go_on()
    assert [night.tries(name) for name in ("extract", "train", *OWN)] == [1, 2, 2, 2, 2]
    if first == "failed" and not downstream:
        assert (night.state, night["evaluate"]) == ("failed", "upstream_failed")
    else:
        assert (night.state, night["evaluate"]) == ("success", "success")


def test_only_failed_tasks_are_cleared(airflow: Airflow) -> None:
    """Ensure and scale-down have succeeded and do not run again; `done`, which had failed, decides again."""
    night = airflow.begin(training(), train="failed").go_on()
    night.ends.clear()
    night.clear("train", only_failed=True).go_on()
    assert (night.state, night["report"]) == ("success", "success")
    assert [night.tries(name) for name in ("train", *OWN)] == [2, 1, 1, 2]


def test_only_failed_tasks_of_the_run_are_cleared(airflow: Airflow) -> None:
    night = airflow.begin(training(), evaluate="failed").go_on()
    night.ends.clear()
    night.clear_run(only_failed=True).go_on()
    assert night.state == "success"
    assert [night.tries(name) for name in ("train", "evaluate", *OWN)] == [1, 2, 1, 1, 2]


def test_only_failed_tasks_are_cleared_where_ensure_has_failed(airflow: Airflow) -> None:
    """It fails with ScaleDownIsOver (tests/sandbox), for scale-down does not run again; the run stays red."""
    night = airflow.begin(training(), ensure="failed").go_on()
    scale_downs = night.tries("gpus.scale_down")
    night.clear("gpus.ensure", only_failed=True).go_on()
    assert night.state == "failed"
    assert (night.tries("gpus.ensure"), night.tries("gpus.scale_down")) == (2, scale_downs)


def test_ensure_is_cleared_with_its_downstream_tasks(airflow: Airflow) -> None:
    night = airflow.begin(training(), ensure="failed").go_on()
    night.ends.clear()
    night.clear("gpus.ensure").go_on()
    assert (night.state, night["train"]) == ("success", "success")
    assert [night.tries(name) for name in OWN] == [2, 2, 2]


def test_ensure_is_cleared_alone(airflow: Airflow) -> None:
    """Airflow clears its teardowns with it: the nodes that it brings go again, though no task has used them."""
    night = airflow.begin(training()).go_on()
    night.clear("gpus.ensure", downstream=False).go_on()
    assert night.state == "success"
    assert [night.tries(name) for name in ("train", *OWN)] == [1, 2, 2, 2]


@pytest.mark.parametrize("first", ["success", "failed"])
def test_scale_down_is_cleared_alone(airflow: Airflow, first: str) -> None:
    """`done` does not decide again."""
    nightly = training()
    nightly.get_task("gpus.scale_down").retries = 0
    night = airflow.begin(nightly, scale_down=[first, "success"]).go_on()
    assert night.state == first
    night.clear("gpus.scale_down", downstream=False).go_on()
    assert [night.tries(name) for name in ("train", *OWN)] == [1, 1, 2, 1]
    assert (night.state, night["gpus.scale_down"]) == (first, "success")


def test_scale_down_that_has_failed_is_cleared_with_its_downstream_tasks(airflow: Airflow) -> None:
    nightly = training()
    nightly.get_task("gpus.scale_down").retries = 0
    night = airflow.begin(nightly, scale_down=["failed", "success"]).go_on()
    night.clear("gpus.scale_down").go_on()
    assert night.state == "success"
    assert [night.tries(name) for name in ("train", *OWN)] == [1, 1, 2, 2]


def test_the_run_is_cleared_after_its_end(airflow: Airflow) -> None:
    night = airflow.begin(training(), train=["failed", "success"]).go_on()
    night.clear_run().go_on()
    assert night.state == "success"
    assert [night.tries(name) for name in ("extract", "train", *OWN)] == [2, 2, 2, 2, 2]


@pytest.mark.parametrize("how", ["running", "deferred"])
def test_the_run_is_cleared_while_its_training_runs(airflow: Airflow, how: str) -> None:
    night = airflow.begin(training(), train=[how, "success"]).until("train", how)
    night.clear_run().go_on()
    airflow.pass_time(timedelta(hours=1))
    night.go_on()
    assert night.state == "success"
    assert [night.tries(name) for name in ("gpus.ensure", "train", "gpus.scale_down")] == [2, 2, 1]


def test_a_task_after_the_block_is_cleared_without_it(airflow: Airflow) -> None:
    night = airflow.begin(training(), report="failed").go_on()
    assert (night.state, night["gpus.done"]) == ("failed", "success")
    night.ends.clear()
    night.clear("report").go_on()
    assert night.state == "success"
    assert [night.tries(name) for name in ("train", *OWN, "report")] == [1, 1, 1, 1, 2]


def test_a_task_before_the_block_is_cleared_with_all_of_it(airflow: Airflow) -> None:
    night = airflow.begin(training()).go_on()
    night.clear("extract").go_on()
    assert night.state == "success"
    assert [night.tries(name) for name in ("extract", "train", *OWN, "report")] == [2, 2, 2, 2, 2, 2]


def test_a_task_that_was_skipped_because_the_run_was_marked_is_cleared(airflow: Airflow) -> None:
    night = airflow.begin(training(), train=["deferred", "success"]).until("train", "deferred").mark("failed").go_on()
    assert night.state == "failed"
    night.clear("train").go_on()
    assert (night.state, night["evaluate"], night["gpus.done"]) == ("success", "success", "success")

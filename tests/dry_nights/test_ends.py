"""A night in which everything succeeds, one for each task that fails, and one for each worker that is killed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk import DAG

from tests.dry_nights.dags import block, dag
from tests.dry_nights.installation import Airflow, Work

OWN = ("begin", "ensure", "device_plugin", "scale_down", "witness", "done")
ALL_WELL = {f"gpus.{name}": "success" for name in OWN} | {"train": "success", "evaluate": "success"}


def training(**retries: int) -> DAG:
    """A block of two tasks, each of which is tried once but for those whose retries are given."""
    with dag() as nightly, block(install_device_plugin=True, ensure_args={"retries": retries.get("ensure", 0)}):
        Work(task_id="train", retries=retries.get("train", 0)) >> Work(task_id="evaluate", retries=0)
    return nightly


def test_everything_succeeds(airflow: Airflow) -> None:
    night = airflow.begin(training()).go_on()
    assert (night.state, night.states) == ("success", ALL_WELL)
    assert night.errors == {"gpus.done": None}


UPSTREAM_FAILED = "upstream_failed"
FAILURES: dict[str, tuple[dict[str, str], str]] = {
    "gpus.ensure": (
        # The witness, too: it comes after a setup, and it is no teardown.
        dict.fromkeys(("gpus.device_plugin", "train", "evaluate", "gpus.witness"), UPSTREAM_FAILED),
        "Tasks failed: gpus.ensure: failed; gpus.device_plugin: upstream_failed; train: upstream_failed",
    ),
    "gpus.device_plugin": (
        dict.fromkeys(("train", "evaluate"), UPSTREAM_FAILED),
        "Tasks failed: gpus.device_plugin: failed; train: upstream_failed; evaluate: upstream_failed",
    ),
    "train": ({"evaluate": UPSTREAM_FAILED}, "Tasks failed: train: failed; evaluate: upstream_failed"),
    "evaluate": ({}, "Tasks failed: evaluate: failed"),
    "gpus.scale_down": (
        {},
        "Machines may still run, for scale-down failed. The log of gpus.scale_down names them",
    ),
}
"""By the task that fails: what other tasks are but a success, and what `done` says."""


@pytest.mark.parametrize("fails", ["gpus.ensure", "gpus.device_plugin", "train", "evaluate", "gpus.scale_down"])
def test_a_task_fails(airflow: Airflow, fails: str) -> None:
    """The night is red, names the task, and has had its scale-down."""
    others, why = FAILURES[fails]
    nightly = training()
    nightly.get_task(fails).retries = 0
    night = airflow.begin(nightly, **{fails: "failed"}).go_on()
    assert night.state == "failed"
    assert night.states == {**ALL_WELL, **others, fails: "failed", "gpus.done": "failed"}
    assert why in str(night.errors["gpus.done"])


def test_a_task_that_fails_is_tried_again_before_scale_down_runs(airflow: Airflow) -> None:
    night = airflow.begin(training(train=1), train=["failed", "success"]).go_on()
    assert (night["train"], night["gpus.scale_down"]) == ("up_for_retry", None)
    airflow.pass_time(timedelta(hours=1))
    assert (night.go_on().state, night.states) == ("success", ALL_WELL)
    assert night.tries("train") == 2


def test_all_work_waits_for_the_nodes(airflow: Airflow) -> None:
    with dag() as nightly, block():
        Work(task_id="train")
        Work(task_id="longer")
    night = airflow.begin(nightly, ensure="running").go_on()
    assert (night["train"], night["longer"]) == (None, None)


@pytest.mark.parametrize("last", ["longer", "evaluate"], ids=["beside what fails", "after what has ended"])
def test_scale_down_waits_for_the_end_of_all_work(airflow: Airflow, last: str) -> None:
    with dag() as nightly, block():
        Work(task_id="train", retries=0)
        Work(task_id="longer") >> Work(task_id="evaluate")
    night = airflow.begin(nightly, train="failed", **{last: "running"}).go_on()
    assert (night["train"], night[last], night["gpus.scale_down"]) == ("failed", "running", None)
    night.end(last).go_on()
    assert (night.state, night["gpus.scale_down"], night["gpus.done"]) == ("failed", "success", "failed")


def test_scale_down_that_fails_is_tried_three_times_more(airflow: Airflow) -> None:
    night = airflow.begin(training(), scale_down=["failed", "failed", "failed", "success"]).go_on()
    for _ in range(3):
        assert (night["gpus.scale_down"], night["gpus.done"]) == ("up_for_retry", None)
        airflow.pass_time(timedelta(hours=1))
        night.go_on()
    assert (night.state, night.states) == ("success", ALL_WELL)


def test_default_args_change_no_retries_of_scale_down_and_of_the_verdict(airflow: Airflow) -> None:
    with dag(default_args={"retries": 1}) as nightly, block():
        Work(task_id="train", retries=0)
    night = airflow.begin(nightly, train="failed", scale_down=["failed", "failed", "success"]).go_on()
    for _ in range(2):
        assert (night["gpus.scale_down"], night["gpus.done"]) == ("up_for_retry", None)
        airflow.pass_time(timedelta(hours=1))
        night.go_on()
    assert (night["gpus.scale_down"], night["gpus.done"], night.state) == ("success", "failed", "failed")


@pytest.mark.parametrize(("retries", "state"), [(0, "failed"), (1, "success")])
def test_the_worker_of_ensure_is_killed(airflow: Airflow, retries: int, state: str) -> None:
    """Scale-down runs though no setup but `begin` has succeeded; or Ensure's next try goes on."""
    night = airflow.begin(training(ensure=retries), ensure=["running", "success"])
    night.until("gpus.ensure", "running").kill_worker("gpus.ensure").go_on()
    if retries:
        assert (night["gpus.ensure"], night["gpus.scale_down"]) == ("up_for_retry", None)
        airflow.pass_time(timedelta(hours=1))
        night.go_on()
    assert (night.state, night["gpus.scale_down"]) == (state, "success")
    assert night["train"] == ("success" if retries else "upstream_failed")


def test_the_worker_of_the_training_is_killed(airflow: Airflow) -> None:
    night = airflow.begin(training(), train="running").until("train", "running").kill_worker("train").go_on()
    assert (night.state, night["train"], night["gpus.scale_down"]) == ("failed", "failed", "success")


def test_the_worker_of_scale_down_is_killed(airflow: Airflow) -> None:
    night = airflow.begin(training(), scale_down=["running", "success"])
    night.until("gpus.scale_down", "running").kill_worker("gpus.scale_down").go_on()
    assert (night["gpus.scale_down"], night["gpus.done"]) == ("up_for_retry", None)
    airflow.pass_time(timedelta(hours=1))
    assert (night.go_on().state, night.states) == ("success", ALL_WELL)

"""Trigger rules of the author's: in the block the last tasks decide; what comes after it looks at its work alone."""

from __future__ import annotations

import pytest
from airflow.sdk import TaskGroup

from tests.dry_nights.dags import block, dag
from tests.dry_nights.installation import Airflow, Work

AFTER = {
    # With a training that succeeds, and with one that fails.
    "all_success": ("success", "upstream_failed"),
    "all_done": ("success", "success"),
    "all_failed": ("skipped", "success"),
    "one_failed": ("skipped", "success"),
    "one_success": ("success", "upstream_failed"),
    "one_done": ("success", "success"),
    "none_failed": ("success", "upstream_failed"),
    "none_failed_min_one_success": ("success", "upstream_failed"),
    "none_skipped": ("success", "success"),
    "all_skipped": ("skipped", "skipped"),
    "always": ("success", "success"),
}


def test_tasks_after_the_block_depend_on_its_last_tasks_and_not_on_its_own(airflow: Airflow) -> None:
    """They do not wait for scale-down, either, and all nights of a trigger rule are one here."""
    with dag() as nightly:
        with block() as gpus:
            Work(task_id="train", retries=0)
        for rule in AFTER:
            gpus >> Work(task_id=rule, trigger_rule=rule)
    well, failed = airflow.begin(nightly), airflow.begin(nightly, train="failed")
    for night in (well, failed):
        night.ends["gpus.scale_down"] = "running"
    airflow.go_on()
    found = {rule: (well[rule], failed[rule]) for rule in AFTER}
    assert found == AFTER
    for night in (well, failed):
        assert (night.state, night["gpus.scale_down"]) == ("running", "running")
        night.end("gpus.scale_down")
    airflow.go_on()
    assert (well.state, failed.state) == ("success", "failed")


def test_a_rescue_in_the_block_saves_the_night_if_no_other_last_task_fails(airflow: Airflow) -> None:
    with dag() as nightly, block():
        Work(task_id="train", retries=0) >> Work(task_id="rescue", trigger_rule="one_failed")
    night = airflow.begin(nightly, train="failed").go_on()
    assert (night.state, night["rescue"], night["gpus.done"]) == ("success", "success", "success")


def test_a_rescue_in_the_block_does_not_save_its_sibling(airflow: Airflow) -> None:
    with dag() as nightly:
        with block() as gpus:
            train = Work(task_id="train", retries=0)
            train >> Work(task_id="rescue", trigger_rule="one_failed")
            train >> Work(task_id="evaluate")
        gpus >> Work(task_id="report")
        gpus >> Work(task_id="always", trigger_rule="all_done")
        gpus >> Work(task_id="alarm", trigger_rule="one_failed")
    night = airflow.begin(nightly, train="failed").go_on()
    assert night.states == {
        "train": "failed",
        "rescue": "success",
        "evaluate": "upstream_failed",
        "report": "upstream_failed",
        "always": "success",
        "alarm": "success",
        "gpus.begin": "success",
        "gpus.ensure": "success",
        "gpus.scale_down": "success",
        "gpus.witness": "success",
        "gpus.done": "failed",
    }
    assert night.state == "failed"


@pytest.mark.parametrize("place", ["block", "group around it"])
def test_what_comes_after_the_block_begins_beside_its_scale_down(airflow: Airflow, place: str) -> None:
    with dag() as nightly:
        with TaskGroup("night") as group, block() as gpus:
            Work(task_id="train")
        (gpus if place == "block" else group) >> Work(task_id="report")
    night = airflow.begin(nightly, scale_down="running").until("night.gpus.scale_down", "running")
    assert night.go_on()["report"] == "success"
    night.end("night.gpus.scale_down").go_on()
    assert night.state == "success"


@pytest.mark.parametrize(
    ("ends", "state"),
    [({}, "success"), ({"cleanup": "failed"}, "success"), ({"train": "failed"}, "failed")],
    ids=["all well", "the cleanup fails", "the training fails"],
)
def test_setup_and_teardown_of_the_author_s_in_the_block(airflow: Airflow, ends: dict[str, str], state: str) -> None:
    """As in Airflow: a teardown that fails does not fail the run, and scale-down comes after it."""
    with dag() as nightly, block():
        prepare, train = Work(task_id="prepare", retries=0), Work(task_id="train", retries=0)
        cleanup = Work(task_id="cleanup", retries=0)
        prepare >> train >> cleanup.as_teardown(setups=prepare)
    night = airflow.begin(nightly, **ends).go_on()
    assert (night.state, night["gpus.done"], night["gpus.scale_down"]) == (state, state, "success")
    assert night["cleanup"] == ends.get("cleanup", "success")


def test_a_task_before_the_block_fails(airflow: Airflow) -> None:
    with dag() as nightly:
        extract = Work(task_id="extract", retries=0)
        with block() as gpus:
            Work(task_id="train")
        extract >> gpus
    night = airflow.begin(nightly, extract="failed").go_on()
    assert night.state == "failed"
    assert {state for name, state in night.states.items() if name != "extract"} == {"upstream_failed"}


@pytest.mark.parametrize(("extract", "train"), [("failed", "success"), ("success", "skipped")])
def test_a_block_that_is_the_fallback_of_a_task_before_it(airflow: Airflow, extract: str, train: str) -> None:
    """Of its own tasks only `begin` takes the trigger rule: the others come after what has succeeded."""
    with dag(default_args={"trigger_rule": "one_failed"}) as nightly:
        before = Work(task_id="extract", retries=0, trigger_rule="all_success")
        with block(install_device_plugin=True) as gpus:
            Work(task_id="train", trigger_rule="all_success")
        before >> gpus
    night = airflow.begin(nightly, extract=extract).go_on()
    assert (night.state, night["train"], night["gpus.scale_down"]) == ("success", train, train)


def test_a_block_whose_begin_has_a_trigger_rule_of_default_args(airflow: Airflow) -> None:
    with dag(default_args={"trigger_rule": "all_done"}) as nightly:
        extract = Work(task_id="extract", retries=0)
        with block() as gpus:
            Work(task_id="train")
        extract >> gpus
    night = airflow.begin(nightly, extract="failed").go_on()
    assert (night.state, night["train"], night["gpus.done"]) == ("success", "success", "success")

"""Several runs of a DAG: side by side, as a backfill, and each only after the one before it has succeeded."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from tests.dry_nights.dags import block, dag
from tests.dry_nights.installation import Airflow, Work

MONDAY, TUESDAY, WEDNESDAY = (datetime(2026, 1, day) for day in (5, 6, 7))
WAITING = {"gpus.begin": None, "gpus.ensure": None, "train": None, "gpus.scale_down": None}


def daily(*, on_train: dict[str, Any] | None = None, **arguments: Any) -> DAG:
    with dag(schedule="@daily", **arguments) as nightly, block():
        Work(task_id="train", retries=0, **(on_train or {}))
    return nightly


def test_runs_side_by_side_end_each_by_itself(airflow: Airflow) -> None:
    nightly = daily(max_active_runs=2)
    first = airflow.begin(nightly, on=MONDAY, train="running")
    second = airflow.begin(nightly, on=TUESDAY, train="failed")
    third = airflow.begin(nightly, on=WEDNESDAY)
    airflow.go_on()
    assert (first["gpus.scale_down"], second.state, third.state) == (None, "failed", "success")
    first.end("train").go_on()
    assert (first.state, first["gpus.scale_down"]) == ("success", "success")


def test_a_run_waits_for_max_active_runs_without_nodes(airflow: Airflow) -> None:
    nightly = daily(max_active_runs=1)
    first, second = airflow.begin(nightly, on=MONDAY, train="running"), airflow.begin(nightly, on=TUESDAY)
    airflow.go_on()
    assert (first.state, second.state, second["gpus.ensure"]) == ("running", "queued", None)
    first.end("train").go_on()
    assert (first.state, second.state) == ("success", "success")


def test_a_backfill(airflow: Airflow) -> None:
    nights = airflow.backfill(daily(), MONDAY, WEDNESDAY, max_active_runs=2, train=["running"])
    airflow.go_on()
    assert [night["train"] for night in nights] == ["running", "running", None]
    assert nights[2].state == "queued"
    nights[1].end("train", "failed").go_on()
    assert [(night.state, night["train"]) for night in nights] == [
        ("running", "running"),
        ("failed", "failed"),
        ("running", "running"),
    ]
    assert (nights[1]["gpus.scale_down"], nights[1]["gpus.done"]) == ("success", "failed")
    for night in (nights[0], nights[2]):
        night.end("train")
    airflow.go_on()
    assert [night.state for night in nights] == ["success", "failed", "success"]


PAST = pytest.mark.parametrize(
    "arguments",
    [
        {"default_args": {"depends_on_past": True}},
        {"default_args": {"wait_for_downstream": True}},
        {"on_train": {"depends_on_past": True}},
    ],
    ids=["depends_on_past", "wait_for_downstream", "of one task"],
)


@PAST
def test_a_night_that_depends_on_a_failed_one_starts_no_nodes_until_that_was_repaired(
    airflow: Airflow, arguments: dict[str, Any]
) -> None:
    nightly = daily(**arguments)
    first, second = airflow.begin(nightly, on=MONDAY, train="failed"), airflow.begin(nightly, on=TUESDAY)
    airflow.go_on()
    assert (first.state, second.state) == ("failed", "running")
    assert {name: second[name] for name in WAITING} == WAITING
    first.ends.clear()
    first.clear("train").go_on()
    assert (first.state, second.state) == ("success", "success")


@pytest.mark.parametrize("is_unfinished", ["train", "gpus.scale_down"])
def test_a_night_that_depends_on_one_that_runs_waits_for_the_end_of_its_block(
    airflow: Airflow, is_unfinished: str
) -> None:
    nightly = daily(default_args={"depends_on_past": True})
    first = airflow.begin(nightly, on=MONDAY, **{is_unfinished: "running"})
    second = airflow.begin(nightly, on=TUESDAY)
    airflow.go_on()
    assert {name: second[name] for name in WAITING} == WAITING
    first.end(is_unfinished).go_on()
    assert (first.state, second.state) == ("success", "success")


def test_a_night_that_was_rescued_counts_as_a_success(airflow: Airflow) -> None:
    with dag(schedule="@daily", default_args={"depends_on_past": True}) as nightly, block():
        Work(task_id="train", retries=0) >> Work(task_id="rescue", trigger_rule="one_failed")
    first, second = airflow.begin(nightly, on=MONDAY, train="failed"), airflow.begin(nightly, on=TUESDAY)
    airflow.go_on()
    assert (first.state, second.state, second["rescue"]) == ("success", "success", "skipped")


def test_a_night_whose_nodes_may_still_run_holds_the_next_one(airflow: Airflow) -> None:
    nightly = daily(default_args={"depends_on_past": True})
    nightly.get_task("gpus.scale_down").retries = 0
    first, second = airflow.begin(nightly, on=MONDAY, scale_down="failed"), airflow.begin(nightly, on=TUESDAY)
    airflow.go_on()
    assert (first.state, second["gpus.begin"]) == ("failed", None)


def test_a_block_s_first_run_begins_though_the_dag_has_run_before(airflow: Airflow) -> None:
    """`ignore_first_depends_on_past` is always so: tasks that have run before may have come into the block."""
    with dag(schedule="@daily", default_args={"depends_on_past": True}) as before:
        Work(task_id="train", retries=0)
    first = airflow.begin(before, on=MONDAY).go_on()
    assert first.state == "success"
    nightly = daily(default_args={"depends_on_past": True})
    airflow.parse(nightly)
    assert airflow.begin(nightly, on=TUESDAY).go_on().state == "success"


@pytest.mark.parametrize("skips", [True, False])
def test_a_decision_to_skip_waits_for_the_past_where_it_is_told_to(airflow: Airflow, skips: bool) -> None:
    """wait_for_past_depends_before_skipping is `begin`'s."""
    nightly = daily(default_args={"depends_on_past": True, "wait_for_past_depends_before_skipping": skips})
    assert nightly.get_task("gpus.begin").wait_for_past_depends_before_skipping is skips


def test_time_alone_lets_no_night_begin(airflow: Airflow) -> None:
    nightly = daily(default_args={"depends_on_past": True})
    airflow.begin(nightly, on=MONDAY, train="failed")
    second = airflow.begin(nightly, on=TUESDAY).go_on()
    airflow.pass_time(timedelta(days=1))
    assert (second.go_on().state, second["gpus.begin"]) == ("running", None)

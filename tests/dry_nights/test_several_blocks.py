"""Several blocks in a DAG: one after the other, side by side, in task groups and in each other."""

from __future__ import annotations

import pytest
from airflow.sdk import TaskGroup

from airflow_gpu_provider import gpu_nodes
from tests.dry_nights.dags import block, dag, pool
from tests.dry_nights.installation import Airflow, Work


def test_a_block_that_comes_after_another_one_begins_beside_its_scale_down(airflow: Airflow) -> None:
    with dag() as nightly:
        with block("first") as first:
            Work(task_id="train", retries=0)
        with block("second") as second:
            Work(task_id="evaluate", retries=0)
        first >> second
    night = airflow.begin(nightly, **{"first.scale_down": "running"}).until("second.done", "success")
    assert (night["evaluate"], night["first.scale_down"], night.state) == ("success", "running", "running")
    night.end("first.scale_down").go_on()
    assert (night.state, night["first.done"]) == ("success", "success")


@pytest.mark.parametrize(
    ("fails", "first", "second"),
    [
        ("train", {"scale_down": "success", "done": "failed"}, "upstream_failed"),
        ("first.ensure", {"scale_down": "success", "done": "failed"}, "upstream_failed"),
        ("first.scale_down", {"scale_down": "failed", "done": "failed"}, "success"),
    ],
)
def test_the_first_of_two_blocks_fails(airflow: Airflow, fails: str, first: dict[str, str], second: str) -> None:
    with dag() as nightly:
        with block("first", ensure_args={"retries": 0}, scale_down_args={"retries": 0}) as before:
            Work(task_id="train", retries=0)
        with block("second") as after:
            Work(task_id="evaluate", retries=0)
        before >> after
    night = airflow.begin(nightly, **{fails: "failed"}).go_on()
    assert night.state == "failed"
    assert {name: night[f"first.{name}"] for name in first} == first
    assert {state for name, state in night.states.items() if name.startswith("second.")} == {second}


def test_blocks_side_by_side_end_each_by_itself(airflow: Airflow) -> None:
    with dag() as nightly:
        with block("one"):
            Work(task_id="train")
        with gpu_nodes(pool("other"), install_device_plugin=False):
            Work(task_id="render", retries=0)
    night = airflow.begin(nightly, train="running", render="failed").go_on()
    assert (night["other.scale_down"], night["other.done"]) == ("success", "failed")
    assert (night["one.scale_down"], night["one.done"]) == (None, None)
    night.end("train").go_on()
    assert (night.state, night["one.done"]) == ("failed", "success")


def test_a_run_is_marked_failed_when_one_of_its_blocks_has_ended_and_the_other_waits(airflow: Airflow) -> None:
    with dag() as nightly:
        with block("one"):
            Work(task_id="train")
        with block("two"):
            Work(task_id="render", retries=1)
    night = airflow.begin(nightly, render="failed").go_on()
    assert (night["one.done"], night["render"]) == ("success", "up_for_retry")
    night.mark("failed").go_on()
    assert (night.state, night["one.done"], night["two.done"]) == ("failed", "success", "failed")


@pytest.mark.parametrize("state", ["success", "failed"])
def test_a_block_in_task_groups(airflow: Airflow, state: str) -> None:
    with dag() as nightly:
        with TaskGroup("night") as night_group, TaskGroup("en"):
            prepare = Work(task_id="prepare")
            with block() as gpus, TaskGroup("models"):
                Work(task_id="small", retries=0)
                Work(task_id="large", retries=0)
            prepare >> gpus
        night_group >> Work(task_id="report")
    night = airflow.begin(nightly, large=state).go_on()
    assert night["night.en.models.large"] == state
    assert (night["night.en.gpus.scale_down"], night["night.en.gpus.done"]) == ("success", state)
    assert (night.state, night["report"]) == (state, {"success": "success", "failed": "upstream_failed"}[state])


@pytest.mark.parametrize(
    ("fails", "inner", "outer"),
    [("train", "failed", "failed"), ("compare", "success", "failed"), ("", "success", "success")],
)
def test_a_block_in_a_block(airflow: Airflow, fails: str, inner: str, outer: str) -> None:
    """The inner one's end is not the outer one's work; both decide by what the author has written."""
    with dag() as nightly, gpu_nodes(pool("outer"), install_device_plugin=False):
        Work(task_id="compare", retries=0)
        with gpu_nodes(pool("inner"), install_device_plugin=False):
            Work(task_id="train", retries=0)
    night = airflow.begin(nightly, **({fails: "failed"} if fails else {})).go_on()
    assert (night["inner.done"], night["outer.done"], night.state) == (inner, outer, outer)
    assert (night["inner.scale_down"], night["outer.scale_down"]) == ("success", "success")


def test_a_run_is_marked_failed_when_only_the_inner_block_s_scale_down_is_left(airflow: Airflow) -> None:
    """All work has ended: it ends as its tasks have."""
    with dag() as nightly, block("outer"), block("inner"):
        Work(task_id="train", retries=0)
    night = airflow.begin(nightly, **{"inner.scale_down": "running"}).until("inner.scale_down", "running")
    night.mark("failed").end("inner.scale_down").go_on()
    assert (night["inner.done"], night["outer.done"], night.state) == ("success", "success", "success")


def test_a_task_of_the_first_of_two_blocks_is_cleared(airflow: Airflow) -> None:
    """With its downstream tasks, which are the second block's, and alone."""
    with dag() as nightly:
        with block("first") as first:
            Work(task_id="train")
        with block("second") as second:
            Work(task_id="evaluate")
        first >> second
    night = airflow.begin(nightly).go_on()
    night.clear("train", downstream=False).go_on()
    names = ("first.ensure", "train", "first.scale_down", "second.ensure", "second.scale_down")
    assert (night.state, [night.tries(name) for name in names]) == ("success", [2, 2, 2, 1, 1])
    night.clear("train").go_on()
    assert (night.state, [night.tries(name) for name in names]) == ("success", [3, 3, 3, 2, 2])

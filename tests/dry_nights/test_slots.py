"""Tasks that wait for each other, or for a slot: their nodes wait with them, and scale-down waits for nobody."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, chain

from tests.dry_nights.dags import block, dag
from tests.dry_nights.installation import Airflow, Work


def sweep(*, dag_args: dict[str, Any] | None = None, **arguments: Any) -> DAG:
    with dag(**(dag_args or {})) as nightly, block():
        Work.partial(task_id="train", retries=0, **arguments).expand(rate=["0.1", "0.3"])
    return nightly


@pytest.mark.parametrize("how", ["running", "deferred"])
@pytest.mark.parametrize(
    "arguments",
    [
        {"max_active_tis_per_dag": 1},
        {"max_active_tis_per_dagrun": 1},
        {"dag_args": {"max_active_tasks": 1}},
        {"pool": "one_slot"},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_tasks_that_run_one_at_a_time_keep_their_nodes_meanwhile(
    airflow: Airflow, arguments: dict[str, Any], how: str
) -> None:
    """A deferred task counts for the first two limits; neither for max_active_tasks nor in a slot pool."""
    airflow.slots("one_slot", 1)
    night = airflow.begin(sweep(**arguments), train=how).go_on()
    counts = how == "running" or any(name.startswith("max_active_tis") for name in arguments)
    assert [night["train[0]"], night["train[1]"]] == [how, "scheduled" if counts else how]
    assert night["gpus.scale_down"] is None
    night.ends.clear()
    for index in (0, 1):
        if night[f"train[{index}]"] == how:
            night.resume("train", index) if how == "deferred" else night.end("train", map_index=index)
        night.go_on()
    assert (night.state, night["gpus.scale_down"]) == ("success", "success")


def test_max_active_tis_per_dag_holds_over_all_runs(airflow: Airflow) -> None:
    nightly = sweep(max_active_tis_per_dag=1)
    first, second = airflow.begin(nightly, train="running"), airflow.begin(nightly, train="running")
    airflow.go_on()
    waiting = [night[f"train[{index}]"] for night in (first, second) for index in (0, 1)]
    assert sorted(waiting) == ["running", "scheduled", "scheduled", "scheduled"]
    assert (first["gpus.ensure"], second["gpus.ensure"]) == ("success", "success")


def test_scale_down_waits_for_no_slot_of_the_author_s(airflow: Airflow) -> None:
    """A task after the block has the only slot of the slot pool that default_args name."""
    airflow.slots("one_slot", 1)
    with dag(default_args={"pool": "one_slot"}) as nightly:
        with block() as gpus:
            Work(task_id="train")
        gpus >> Work(task_id="report")
    night = airflow.begin(nightly, report="running").until("report", "running").go_on()
    assert (night["gpus.scale_down"], night["gpus.done"]) == ("success", "success")
    night.end("report").go_on()
    assert night.state == "success"


def test_scale_down_waits_for_no_other_run_s(airflow: Airflow) -> None:
    with dag(default_args={"max_active_tis_per_dag": 1}) as nightly, block():
        Work(task_id="train")
    first = airflow.begin(nightly, scale_down="running").until("gpus.scale_down", "running")
    second = airflow.begin(nightly).go_on()
    assert (first["gpus.scale_down"], second["gpus.scale_down"], second.state) == ("running", "success", "success")


@pytest.mark.parametrize("default_args", [{}, {"weight_rule": "downstream"}], ids=["by default", "default_args"])
def test_scale_down_comes_before_all_that_has_its_priority(airflow: Airflow, default_args: dict[str, Any]) -> None:
    """Where the executor has one slot, and other runs' tasks, which were there first, wait for it too.

    Each of those counts for the three that come after it, and scale-down for the four that came before it.
    """
    with dag("others") as others:
        for number in range(3):
            chain(*(Work(task_id=f"{name}_{number}") for name in ("work", "second", "third", "last")))
    with dag(default_args=default_args) as nightly, block():
        Work(task_id="prepare") >> Work(task_id="train")
    night = airflow.begin(nightly, train="running").until("train", "running")
    airflow.executor.parallelism = 1
    other = airflow.begin(others, **dict.fromkeys(others.task_ids, "running")).go_on()
    waiting = {f"work_{number}": "scheduled" for number in range(3)}
    assert waiting.items() <= other.states.items()
    night.end("train")
    airflow.look()
    assert night["gpus.scale_down"] == "success"
    assert waiting.items() <= other.states.items()


def test_a_training_without_a_slot_keeps_its_nodes(airflow: Airflow) -> None:
    airflow.slots("no_slot", 0)
    with dag() as nightly, block():
        Work(task_id="train", pool="no_slot")
    night = airflow.begin(nightly).go_on()
    assert (night["gpus.ensure"], night["train"], night["gpus.scale_down"]) == ("success", "scheduled", None)
    airflow.slots("no_slot", 1)
    assert night.go_on().state == "success"

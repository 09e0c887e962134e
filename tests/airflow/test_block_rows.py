"""Each row of docs/blocks.md that is about how Airflow starts, skips and ends tasks: right colours, and zero.

The DAGs of gpu_block_rows.py all run at once, each on a pool of its own, so each test says what its own run has left.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from gpu_sandbox.airflow_api import RunStatus, wait_until
from tests.airflow.chaos.trainings import Trainings
from tests.airflow.harness import Airflow
from tests.airflow.test_blocks import demand, ended, items, left_of, state, zero

DAGS = (
    *("rows_deferred_ensure", "rows_ensure_timeout", "rows_waits_for_retry", "rows_scheduled", "rows_queued"),
    *("rows_trigger_rules", "rows_one_at_a_time", "rows_slots", "rows_down_timeout"),
)
CHANGING = ("rows_paused", "rows_renamed", "rows_removed", "rows_gone", "rows_other_machine")
"""Copies of changing_dag.py."""


class Files:
    """The DAG files that change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, dag_id: str, **values: str) -> None:
        text = (Path(__file__).parent / "changing_dag.py").read_text()
        usual = {"pool": dag_id.replace("_", "-"), "instance_type": "g6.xlarge", "has_block": "yes"}
        for name, value in {"dag_id": dag_id, **usual, **values}.items():
            text = text.replace(f"@{name}@", value)
        new = self._folder / f".{dag_id}.new"  # no DAG file, should Airflow look now
        new.write_text(text)
        new.replace(self._folder / f"{dag_id}.py")

    def remove(self, dag_id: str) -> None:
        (self._folder / f"{dag_id}.py").unlink()


@pytest.fixture(scope="module")
def files(airflow: Airflow) -> Files:
    return Files(airflow.home.dags_folder)


@pytest.fixture(scope="module")
def trainings() -> Iterator[Trainings]:
    trainings = Trainings()
    yield trainings
    trainings.close()


@pytest.fixture(scope="module")
def until(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file for which a DAG's task waits, such as the one that has the only slot."""
    folder = tmp_path_factory.mktemp("until")
    return lambda dag_id: folder / dag_id


@pytest.fixture(scope="module")
def started(
    airflow: Airflow, files: Files, trainings: Trainings, until: Callable[[str], Path]
) -> Mapping[str, RunStatus]:
    """Runs of all DAGs, started together."""
    airflow.api.set_slots("no_slots", 0)
    airflow.api.set_slots("one_slot", 1)
    for dag_id in CHANGING:
        files.write(dag_id)
        trainings.hold(dag_id)
    started = {dag_id: airflow.trigger(dag_id, {"until": str(until(dag_id))}) for dag_id in DAGS}
    started["rows_one_at_a_time again"] = airflow.trigger("rows_one_at_a_time")
    for name, day in (("rows_past", 2), ("rows_past again", 3)):
        started[name] = on_day(airflow, "rows_past", day)
    for dag_id in CHANGING:
        airflow.api.wait_for_dag(dag_id)
        started[dag_id] = airflow.api.trigger(dag_id, conf={"port": trainings.port}, run_id=dag_id)
    for day in range(1, 11):
        started[f"rows_ten_nights {day}"] = on_day(airflow, "rows_ten_nights", day)
    return started


def on_day(airflow: Airflow, dag_id: str, day: int) -> RunStatus:
    """Start the night of a day in January."""
    airflow.api.wait_for_dag(dag_id)
    return airflow.api.trigger(dag_id, logical_date=datetime(2026, 1, day, tzinfo=UTC))


@pytest.fixture
def runs(airflow: Airflow, started: Mapping[str, RunStatus], begin_and_end_clean: None) -> Mapping[str, RunStatus]:
    """The same runs, for a test that fails to show them."""
    airflow.remember(*started.values())
    return started


def wait_for(airflow: Airflow, run: RunStatus, task_id: str, *states: str) -> None:
    airflow.api.wait_for_task(run.dag_id, run.run_id, task_id, states=frozenset(states))


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


def test_a_night_that_depends_on_a_failed_one_brings_nothing(airflow: Airflow, runs: Mapping[str, RunStatus]) -> None:
    """It goes on when the failed one was repaired."""
    first, second = runs["rows_past"], runs["rows_past again"]
    assert ended(airflow, first) == "failed"
    zero(airflow, "rows-past")
    wait_until(lambda: airflow.api.run(second.dag_id, second.run_id).state == "running", what="begin")
    looked_at = airflow.api.last_scheduled_at(second.dag_id, second.run_id)
    wait_until(
        lambda: airflow.api.last_scheduled_at(second.dag_id, second.run_id) != looked_at,
        what="the scheduler to look at the second night",
    )
    assert states_of(airflow, second, "rows-past.begin", "rows-past.ensure", "train") == {
        "rows-past.begin": None,
        "rows-past.ensure": None,
        "train": None,
    }
    assert not left_of(airflow, "rows-past")
    airflow.api.clear_task(first.dag_id, first.run_id, "train")
    assert [ended(airflow, run) for run in (first, second)] == ["success", "success"]
    zero(airflow, "rows-past")


def test_tasks_that_run_one_at_a_time_keep_their_nodes_meanwhile(
    airflow: Airflow, runs: Mapping[str, RunStatus]
) -> None:
    both = [runs["rows_one_at_a_time"], runs["rows_one_at_a_time again"]]
    assert [ended(airflow, run) for run in both] == ["success", "success"]
    trained = [airflow.api.task(run.dag_id, run.run_id, "train", map_index=index) for run in both for index in (0, 1)]
    times = sorted((task.start_date, task.end_date) for task in trained if task.start_date and task.end_date)
    assert len(times) == 4
    assert all(before[1] <= after[0] for before, after in pairwise(times))
    zero(airflow, "rows-one-at-a-time")


def test_scale_down_waits_for_no_slot_of_the_author_s(
    airflow: Airflow, runs: Mapping[str, RunStatus], until: Callable[[str], Path]
) -> None:
    run = runs["rows_slots"]
    wait_for(airflow, run, "hog", "running")
    wait_for(airflow, run, "rows-slots.scale_down", "success")
    assert state(airflow, run, "hog") == "running"
    until("rows_slots").touch()
    assert ended(airflow, run) == "success"
    zero(airflow, "rows-slots")


def test_an_execution_timeout_of_ensure_gives_its_machine_up(airflow: Airflow, runs: Mapping[str, RunStatus]) -> None:
    run, name = runs["rows_ensure_timeout"], "rows-ensure-timeout"
    assert ended(airflow, run) == "failed"
    expected = {f"{name}.ensure": "failed", "train": "upstream_failed", f"{name}.scale_down": "success"}
    assert states_of(airflow, run, *expected) == expected
    zero(airflow, name)


def trains(airflow: Airflow, run: RunStatus, trainings: Trainings) -> None:
    """Wait until the training says that it runs, with its task in the triggerer."""

    def begun() -> bool:
        assert airflow.api.run(run.dag_id, run.run_id).state in ("queued", "running")
        return trainings.begun[run.run_id] > 0

    wait_until(begun, what=f"the training of {run.run_id}")
    airflow.until_watched(run)


def tasks_of(airflow: Airflow, run: RunStatus) -> dict[str, str | None]:
    return {task.task_id: task.state for task in airflow.api.tasks(run.dag_id, run.run_id)}


def nodes_of(airflow: Airflow, pool: str) -> list[str]:
    selector = f"airflow-gpu-provider%2Fpool%3D{pool}"
    return [each["metadata"]["name"] for each in items(airflow, f"/api/v1/nodes?labelSelector={selector}")]


def test_a_pool_that_is_renamed_while_a_night_runs_brings_no_second_node_and_leaves_none(
    airflow: Airflow, runs: Mapping[str, RunStatus], files: Files, trainings: Trainings
) -> None:
    run = runs["rows_renamed"]
    trains(airflow, run, trainings)
    files.write("rows_renamed", pool="rows-renamed-new")
    new_ensure = "rows-renamed-new.ensure"
    wait_until(lambda: new_ensure in tasks_of(airflow, run), what="the file's new tasks")
    wait_for(airflow, run, new_ensure, "success", "failed")
    assert (nodes_of(airflow, "rows-renamed-new"), demand(airflow, "rows-renamed-new")) == ([], [])
    assert len(nodes_of(airflow, "rows-renamed")) == 1
    trainings.release(run.run_id)
    assert ended(airflow, run) == "success"
    assert trainings.begun[run.run_id] == 1
    for pool in ("rows-renamed", "rows-renamed-new"):
        zero(airflow, pool)


def test_a_block_that_disappears_while_a_night_runs_leaves_nothing(
    airflow: Airflow, runs: Mapping[str, RunStatus], files: Files, trainings: Trainings
) -> None:
    run = runs["rows_removed"]
    trains(airflow, run, trainings)
    files.write("rows_removed", has_block="")
    assert ended(airflow, run) == "success"
    zero(airflow, "rows-removed")


def test_a_dag_file_that_disappears_while_a_night_runs_keeps_its_node_until_it_is_back(
    airflow: Airflow, runs: Mapping[str, RunStatus], files: Files, trainings: Trainings
) -> None:
    run = runs["rows_gone"]
    trains(airflow, run, trainings)
    files.remove("rows_gone")
    wait_until(lambda: airflow.api.is_stale(run.dag_id), what="Airflow to miss the file")
    trainings.release(run.run_id)
    # A worker that was begun before the scheduler has missed the file gives the task back, to begin from its start.
    wait_for(airflow, run, "train", "scheduled", "up_for_reschedule")
    assert len(nodes_of(airflow, "rows-gone")) == len(demand(airflow, "rows-gone")) == 1
    files.write("rows_gone")
    assert ended(airflow, run) == "success"
    assert trainings.begun[run.run_id] == 1
    zero(airflow, "rows-gone")


def test_a_pool_that_gets_another_machine_while_a_night_runs_keeps_that_night_s(
    airflow: Airflow, runs: Mapping[str, RunStatus], files: Files, trainings: Trainings
) -> None:
    run = runs["rows_other_machine"]
    trains(airflow, run, trainings)
    before = nodes_of(airflow, "rows-other-machine")
    files.write("rows_other_machine", instance_type="g5.xlarge")
    trainings.release(run.run_id)
    assert ended(airflow, run) == "success"
    assert len(before) == trainings.begun[run.run_id] == 1
    zero(airflow, "rows-other-machine")


def test_a_dag_that_is_paused_keeps_its_node_until_it_goes_on(
    airflow: Airflow, runs: Mapping[str, RunStatus], trainings: Trainings
) -> None:
    run = runs["rows_paused"]
    trains(airflow, run, trainings)
    airflow.api.pause(run.dag_id, True)
    trainings.release(run.run_id)
    # The trigger has told of the pod's end; nobody takes it up.
    wait_for(airflow, run, "train", "scheduled")
    assert len(nodes_of(airflow, "rows-paused")) == len(demand(airflow, "rows-paused")) == 1
    airflow.api.pause(run.dag_id, False)
    assert ended(airflow, run) == "success"
    assert trainings.begun[run.run_id] == 1
    zero(airflow, "rows-paused")


def test_ten_nights_that_are_caught_up_on_get_their_nodes_and_leave_none(
    airflow: Airflow, runs: Mapping[str, RunStatus]
) -> None:
    nights = [runs[f"rows_ten_nights {day}"] for day in range(1, 11)]
    assert [ended(airflow, night) for night in nights] == ["success"] * 10
    for night in nights:
        assert airflow.api.xcom(night.dag_id, night.run_id, "rows-ten-nights.ensure")["nodes"]
    zero(airflow, "rows-ten-nights")


def test_a_deferred_ensure_is_ended_by_its_timeout_and_not_by_its_execution_timeout(
    airflow: Airflow, runs: Mapping[str, RunStatus]
) -> None:
    run, name = runs["rows_deferred_ensure"], "rows-deferred-ensure"
    assert ended(airflow, run) == "failed"
    expected = {f"{name}.ensure": "failed", "train": "upstream_failed", f"{name}.scale_down": "success"}
    assert states_of(airflow, run, *expected) == expected
    ensure = airflow.api.task(run.dag_id, run.run_id, f"{name}.ensure")
    assert ensure.start_date
    assert ensure.end_date
    assert ensure.end_date - ensure.start_date >= timedelta(seconds=120)
    zero(airflow, name)


def test_an_execution_timeout_of_scale_down_leaves_the_rest_to_its_next_try(
    airflow: Airflow, runs: Mapping[str, RunStatus], until: Callable[[str], Path]
) -> None:
    """The last one: the errors meet all pools."""
    run, name = runs["rows_down_timeout"], "rows-down-timeout"
    wait_for(airflow, run, "train", "running")
    airflow.sandbox.faults.set_error_rate(1, service="autoscaling")
    until(run.dag_id).touch()
    scale_down = f"{name}.scale_down"
    wait_until(lambda: airflow.api.task(run.dag_id, run.run_id, scale_down).try_number > 1, what="the next try")
    assert len(nodes_of(airflow, name)) == 1
    airflow.sandbox.faults.clear()
    assert ended(airflow, run) == "success"
    zero(airflow, name)

"""A DAG whose file changes, is gone for a while, or that is paused while its training runs: nothing is left.

The DAGs, copies of changing_dag.py, all run at once, each on a pool of its own. What becomes of the run's tasks is in
tests/dry_nights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpu_sandbox.airflow_api import RunStatus, wait_until
from tests.airflow.chaos.trainings import Trainings
from tests.airflow.harness import Airflow
from tests.airflow.pools import demand, nodes_of, zero

pytestmark = pytest.mark.nightly

DAGS = ("changing_paused", "changing_renamed", "changing_removed", "changing_gone", "changing_other_machine")


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
def started(airflow: Airflow, files: Files, trainings: Trainings) -> Mapping[str, RunStatus]:
    """Runs of all DAGs, started together."""
    for dag_id in DAGS:
        files.write(dag_id)
        trainings.hold(dag_id)
    for dag_id in DAGS:
        airflow.api.wait_for_dag(dag_id)
    return {dag_id: airflow.api.trigger(dag_id, conf={"port": trainings.port}, run_id=dag_id) for dag_id in DAGS}


@pytest.fixture
def runs(airflow: Airflow, started: Mapping[str, RunStatus], begin_and_end_clean: None) -> Mapping[str, RunStatus]:
    """The same runs, for a test that fails to show them."""
    airflow.remember(*started.values())
    return started


def wait_for(airflow: Airflow, run: RunStatus, task_id: str, *states: str) -> None:
    airflow.api.wait_for_task(run.dag_id, run.run_id, task_id, states=frozenset(states))


def trains(airflow: Airflow, run: RunStatus, trainings: Trainings) -> None:
    """Wait until the training says that it runs, with its task in the triggerer."""

    def begun() -> bool:
        assert airflow.api.run(run.dag_id, run.run_id).state in ("queued", "running")
        return trainings.begun[run.run_id] > 0

    wait_until(begun, what=f"the training of {run.run_id}")
    airflow.until_watched(run)


def tasks_of(airflow: Airflow, run: RunStatus) -> dict[str, str | None]:
    return {task.task_id: task.state for task in airflow.api.tasks(run.dag_id, run.run_id)}


def test_a_pool_that_is_renamed_while_a_night_runs_brings_no_second_node_and_leaves_none(
    airflow: Airflow, runs: Mapping[str, RunStatus], files: Files, trainings: Trainings
) -> None:
    run = runs["changing_renamed"]
    trains(airflow, run, trainings)
    files.write("changing_renamed", pool="changing-renamed-new")
    new_ensure = "changing-renamed-new.ensure"
    wait_until(lambda: new_ensure in tasks_of(airflow, run), what="the file's new tasks")
    wait_for(airflow, run, new_ensure, "success", "failed")
    assert (nodes_of(airflow, "changing-renamed-new"), demand(airflow, "changing-renamed-new")) == ([], [])
    assert len(nodes_of(airflow, "changing-renamed")) == 1
    trainings.release(run.run_id)
    assert airflow.finish(run).state == "success"
    assert trainings.begun[run.run_id] == 1
    for pool in ("changing-renamed", "changing-renamed-new"):
        zero(airflow, pool)


def test_a_block_that_disappears_while_a_night_runs_leaves_nothing(
    airflow: Airflow, runs: Mapping[str, RunStatus], files: Files, trainings: Trainings
) -> None:
    run = runs["changing_removed"]
    trains(airflow, run, trainings)
    files.write("changing_removed", has_block="")
    assert airflow.finish(run).state == "success"
    zero(airflow, "changing-removed")


def test_a_dag_file_that_disappears_while_a_night_runs_keeps_its_node_until_it_is_back(
    airflow: Airflow, runs: Mapping[str, RunStatus], files: Files, trainings: Trainings
) -> None:
    run = runs["changing_gone"]
    trains(airflow, run, trainings)
    files.remove("changing_gone")
    wait_until(lambda: airflow.api.is_stale(run.dag_id), what="Airflow to miss the file")
    trainings.release(run.run_id)
    # A worker that was begun before the scheduler has missed the file gives the task back, to begin from its start.
    wait_for(airflow, run, "train", "scheduled", "up_for_reschedule")
    assert len(nodes_of(airflow, "changing-gone")) == len(demand(airflow, "changing-gone")) == 1
    files.write("changing_gone")
    assert airflow.finish(run).state == "success"
    assert trainings.begun[run.run_id] == 1
    zero(airflow, "changing-gone")


def test_a_pool_that_gets_another_machine_while_a_night_runs_keeps_that_night_s(
    airflow: Airflow, runs: Mapping[str, RunStatus], files: Files, trainings: Trainings
) -> None:
    run = runs["changing_other_machine"]
    trains(airflow, run, trainings)
    before = nodes_of(airflow, "changing-other-machine")
    files.write("changing_other_machine", instance_type="g5.xlarge")
    trainings.release(run.run_id)
    assert airflow.finish(run).state == "success"
    assert len(before) == trainings.begun[run.run_id] == 1
    zero(airflow, "changing-other-machine")


def test_a_dag_that_is_paused_keeps_its_node_until_it_goes_on(
    airflow: Airflow, runs: Mapping[str, RunStatus], trainings: Trainings
) -> None:
    run = runs["changing_paused"]
    trains(airflow, run, trainings)
    airflow.api.pause(run.dag_id, True)
    trainings.release(run.run_id)
    # The trigger has told of the pod's end; nobody takes it up.
    wait_for(airflow, run, "train", "scheduled")
    assert len(nodes_of(airflow, "changing-paused")) == len(demand(airflow, "changing-paused")) == 1
    airflow.api.pause(run.dag_id, False)
    assert airflow.finish(run).state == "success"
    assert trainings.begun[run.run_id] == 1
    zero(airflow, "changing-paused")

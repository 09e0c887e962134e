"""A task whose pod trains is marked, cleared, deleted or told to stop: its pod goes, and makes room for the next try's.

The trainings of all tests begin together, so that the tests wait for that once.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from kubernetes import client

from tests.airflow.harness import Airflow
from tests.airflow.pod_history import PodHistory, Training, under_way

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("never_two")]

DAGS = {
    "task marked success": "kill_deferred",
    "run marked failed": "kill_deferred",
    "task cleared": "kill_deferred_slow",
    "run cleared": "kill_deferred",
    "triggerer stalled": "kill_deferred",
    "DAG deleted": "kill_dag_deleted",
}


@pytest.fixture(scope="module")
def deferred(airflow: Airflow, history: PodHistory) -> Iterator[dict[str, Training]]:
    """A training in the triggerer for each of them, all of them under way."""
    yield from under_way(airflow, history, DAGS)


@pytest.fixture
def blocking(airflow: Airflow, history: PodHistory) -> Training:
    """A training that its worker waits for."""
    return Training(airflow, history, "kill_blocking")


@pytest.mark.parametrize(("how", "state"), [("task marked success", "success"), ("run marked failed", "failed")])
def test_deferred_pod_that_nobody_wants_goes(deferred: dict[str, Training], how: str, state: str) -> None:
    training = deferred[how]
    pod = training.begun()
    run, api = training.run, training.airflow.api
    if "run marked" in how:
        api.mark_run(run.dag_id, run.run_id, "failed")
    else:
        api.mark_task(run.dag_id, run.run_id, "train", "success")
    training.loses_its_pod()
    assert training.finished().states == {"train": state}
    assert training.pods == {pod}


@pytest.mark.parametrize("how", ["task cleared", "run cleared"])
def test_deferred_pod_of_a_task_that_is_cleared_makes_room_for_another(deferred: dict[str, Training], how: str) -> None:
    training = deferred[how]
    first = training.begun()
    run, api = training.run, training.airflow.api
    if "run cleared" in how:
        api.clear_run(run.dag_id, run.run_id)
    else:
        api.clear_task(run.dag_id, run.run_id, "train")
    finished = training.finished()
    assert finished.states == {"train": "success"}
    training.loses_its_pod()
    assert len(training.pods - {first}) == 1


def test_dag_that_is_deleted_takes_the_pod_its_nodes_and_its_demand_along(
    deferred: dict[str, Training], core: client.CoreV1Api
) -> None:
    """Of all that was to run only the trigger is left."""
    training = deferred["DAG deleted"]
    pod = training.begun()
    training.airflow.api.delete_dag(training.run.dag_id)
    training.loses_its_pod()
    assert training.pods == {pod}
    of_pool = "airflow-gpu-provider/pool=kill-dag-deleted"
    demand = f"{of_pool},airflow-gpu-provider/kind=demand"
    leases = client.CoordinationV1Api(core.api_client)
    training.until(lambda: not core.list_node(label_selector=of_pool).items, "the nodes to go")
    training.until(
        lambda: not leases.list_namespaced_lease("airflow-gpu-provider", label_selector=demand).items, "demand to go"
    )


def test_pod_that_ends_before_its_trigger_is_told_that_nobody_waits_goes(
    airflow: Airflow, deferred: dict[str, Training]
) -> None:
    """The trigger's event comes too late for the task, and the trigger has ended when Airflow would cancel it."""
    training = deferred["triggerer stalled"]
    pod = training.begun()
    airflow.home.suspend("triggerer")  # the process that tells the triggers; that of the triggers goes on
    try:
        training.airflow.api.mark_task(training.run.dag_id, training.run.run_id, "train", "failed")
        training.end()
        training.until(lambda: training.has_ended, "the training to end")
        time.sleep(5)  # for its trigger to see that, which nobody is told while that process stands still
    finally:
        airflow.home.kill("triggerer", signal.SIGCONT)
    training.loses_its_pod()
    assert training.finished().states == {"train": "failed"}
    assert training.pods == {pod}


def test_worker_that_is_evicted_takes_the_pod_along(blocking: Training) -> None:
    pod = blocking.begun()
    os.kill(blocking.process, signal.SIGTERM)
    blocking.loses_its_pod()
    assert blocking.finished().states == {"train": "failed"}
    assert blocking.pods == {pod}


def test_blocking_task_that_is_marked_failed_takes_the_pod_along(blocking: Training) -> None:
    pod = blocking.begun()
    cut_short = blocking.airflow.cut_short
    blocking.airflow.api.mark_task(blocking.run.dag_id, blocking.run.run_id, "train", "failed")
    blocking.until(lambda: not blocking.has_pod or blocking.airflow.cut_short > cut_short, "the pod to go")
    if blocking.airflow.cut_short > cut_short:
        blocking.delete_pod()
    blocking.loses_its_pod()
    assert blocking.finished().states == {"train": "failed"}
    assert blocking.pods == {pod}

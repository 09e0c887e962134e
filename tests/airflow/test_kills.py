"""Whatever of Airflow is killed while a pod trains: there is the one pod or none, and no failure is green."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_gpu_provider.sandbox import airflow_processes
from airflow_gpu_provider.sandbox.airflow_api import RunStatus, wait_until
from tests.airflow.harness import Airflow

DEFERRED = frozenset({"deferred"})


def trainings(airflow: Airflow) -> list[dict[str, Any]]:
    """The pods with GPUs that are there and are not being deleted."""
    _, reply = airflow.sandbox.control_plane.request("GET", "/api/v1/namespaces/default/pods")
    return [pod for pod in reply.get("items", []) if "deletionTimestamp" not in pod["metadata"]]


@contextmanager
def never_two(airflow: Airflow) -> Iterator[set[str]]:
    """Look at the pods all the time; yields the uids that were seen, and fails where two were there together."""
    seen: set[str] = set()
    together: list[list[str]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            there = [pod["metadata"]["uid"] for pod in trainings(airflow)]
            seen.update(there)
            if len(there) > 1:
                together.append(there)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()
    assert not together


def wait_until_it_trains(airflow: Airflow, run: RunStatus, *, is_deferred: bool) -> str:
    """Return the pod's uid, once it runs and - deferred - its trigger watches it."""
    if is_deferred:
        airflow.api.wait_for_task(run.dag_id, run.run_id, "train", states=DEFERRED, timeout=120)
        wait_until(lambda: "started on node" in airflow.log(run, "train"), timeout=60, what="the trigger to watch")
    wait_until(
        lambda: any(pod["status"].get("phase") == "Running" for pod in trainings(airflow)),
        timeout=120,
        what="the pod to run",
    )
    (pod,) = trainings(airflow)
    return str(pod["metadata"]["uid"])


def nothing_left(airflow: Airflow) -> None:
    wait_until(lambda: airflow.leftovers().nothing, timeout=90, what=f"zero, but there are {airflow.leftovers()}")


@pytest.mark.parametrize("component", ["triggerer", "scheduler"])
def test_a_component_that_is_killed_and_comes_back_goes_on_with_the_pod(airflow: Airflow, component: Any) -> None:
    with never_two(airflow) as seen:
        run = airflow.trigger("pod_outlives")
        pod = wait_until_it_trains(airflow, run, is_deferred=True)
        airflow.home.kill(component, signal.SIGKILL, with_children=True)
        airflow.home.restart(component)
        finished = airflow.finish(run, timeout=240)
    assert finished.state == "success", finished.states
    assert seen == {pod}
    assert "trained" in airflow.log(finished, "train")
    nothing_left(airflow)


def test_worker_that_is_evicted_takes_the_pod_along(airflow: Airflow) -> None:
    with never_two(airflow) as seen:
        run = airflow.trigger("pod_worker_evicted")
        pod = wait_until_it_trains(airflow, run, is_deferred=False)
        os.kill(task_process(airflow, run), signal.SIGTERM)
        wait_until(lambda: not trainings(airflow), timeout=30, what="the pod to go")
        finished = airflow.finish(run)
    assert finished.task("train").state == "failed"
    assert finished.state == "failed"
    assert seen == {pod}
    nothing_left(airflow)


def test_worker_that_is_killed_leaves_its_pod_to_the_next_try(airflow: Airflow) -> None:
    with never_two(airflow) as seen:
        run = airflow.trigger("pod_worker_killed")
        first = wait_until_it_trains(airflow, run, is_deferred=False)
        os.kill(task_process(airflow, run), signal.SIGKILL)
        finished = airflow.finish(run, timeout=240)
    assert finished.state == "success", finished.states
    assert finished.task("train").try_number == 2
    assert first in seen
    assert len(seen) == 2
    nothing_left(airflow)


def test_dag_that_is_deleted_takes_the_pod_along(airflow: Airflow) -> None:
    with never_two(airflow) as seen:
        run = airflow.trigger("pod_dag_deleted")
        pod = wait_until_it_trains(airflow, run, is_deferred=True)
        airflow.api.delete_dag(run.dag_id)
        wait_until(lambda: not trainings(airflow), timeout=60, what="the pod to go")
    assert seen == {pod}
    # Of all that was to run only the trigger is left: it gives the run's demand up too.
    nothing_left(airflow)
    path = "/apis/coordination.k8s.io/v1/namespaces/airflow-gpu-provider/leases"
    selector = "labelSelector=airflow-gpu-provider%2Fpool%3Dpod-dag-deleted%2Cairflow-gpu-provider%2Fkind%3Ddemand"
    _, leases = airflow.sandbox.control_plane.request("GET", f"{path}?{selector}")
    assert leases["items"] == []


def task_process(airflow: Airflow, run: RunStatus) -> int:
    """Return the process that runs the operator's code: the one that its worker forked for the task."""
    pid = airflow.api.task(run.dag_id, run.run_id, "train").pid
    assert pid in airflow_processes.processes_of(airflow.home.home)
    return pid

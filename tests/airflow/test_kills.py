"""A part of Airflow is killed while a pod trains, or its task is marked failed: never are there two pods, none is left.

The trainings of all tests begin together, so that the tests wait for that once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.airflow.harness import Airflow
from tests.airflow.pod_history import PodHistory, Training, under_way

pytestmark = pytest.mark.usefixtures("never_two")

DAGS = dict.fromkeys(("task marked failed", "triggerer killed", "scheduler killed"), "kill_deferred")


@pytest.fixture(scope="module")
def deferred(airflow: Airflow, history: PodHistory) -> Iterator[dict[str, Training]]:
    """A training in the triggerer for each kill, all of them under way."""
    yield from under_way(airflow, history, DAGS)


def test_deferred_pod_whose_task_is_marked_failed_goes(deferred: dict[str, Training]) -> None:
    training = deferred["task marked failed"]
    pod = training.begun()
    training.airflow.api.mark_task(training.run.dag_id, training.run.run_id, "train", "failed")
    training.loses_its_pod()
    assert training.finished().states == {"train": "failed"}
    assert training.pods == {pod}


def test_triggerer_that_is_killed_and_comes_back_goes_on_with_the_pod(
    airflow: Airflow, deferred: dict[str, Training]
) -> None:
    training = deferred["triggerer killed"]
    pod = training.begun()
    watched = training.watched
    airflow.home.kill("triggerer", signal.SIGKILL, with_children=True)
    airflow.home.restart("triggerer")
    # Airflow gives a dead triggerer's triggers to another one after 30 s without a heartbeat.
    training.until(lambda: training.watched > watched, "another trigger to watch")
    training.end()
    assert training.finished().states == {"train": "success"}
    assert training.pods == {pod}
    assert "trained" in training.airflow.log(training.run, "train")
    training.loses_its_pod()


def test_worker_that_is_killed_leaves_its_pod_to_the_next_try(airflow: Airflow, history: PodHistory) -> None:
    training = Training(airflow, history, "kill_blocking_retried")
    first = training.begun()
    os.kill(training.process, signal.SIGKILL)
    finished = training.finished()
    assert finished.states == {"train": "success"}
    assert finished.task("train").try_number == 2
    assert len(training.pods - {first}) == 1
    training.loses_its_pod()


def test_a_success_whose_worker_was_killed_is_collected_by_the_next_try(airflow: Airflow, history: PodHistory) -> None:
    training = Training(airflow, history, "kill_blocking_retried")
    first, process = training.begun(), training.process
    os.kill(process, signal.SIGSTOP)  # it collects nothing from here on
    training.end()
    training.until(lambda: training.has_ended, "the training to end well")
    os.kill(process, signal.SIGKILL)
    finished = training.finished()
    assert finished.states == {"train": "success"}
    assert finished.task("train").try_number == 2
    assert training.pods == {first}
    assert "[base] trained" in airflow.log(training.run, "train", try_number=2)
    training.loses_its_pod()


def test_scheduler_that_is_killed_and_comes_back_goes_on_with_the_pods(
    airflow: Airflow, history: PodHistory, deferred: dict[str, Training]
) -> None:
    blocking = Training(airflow, history, "kill_blocking")
    trainings = [blocking, deferred["scheduler killed"]]
    pods = [training.begun() for training in trainings]
    airflow.home.kill("scheduler", signal.SIGKILL)
    for training in trainings:
        training.end()
    # A scheduler that comes up more than 30 s after the other's last heartbeat runs its workers' tasks once more.
    airflow.api.wait_for_task(blocking.run.dag_id, blocking.run.run_id, "train")
    airflow.home.restart("scheduler")
    for training, pod in zip(trainings, pods, strict=True):
        assert training.finished().states == {"train": "success"}
        assert training.pods == {pod}
        training.loses_its_pod()

"""The life of a task's pods, without Airflow and without a cluster: in which order it is decided, read and released."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferred
from kubernetes.client import V1Pod

from airflow_gpu_provider.cluster.model.pod_state import Json, PodState
from airflow_gpu_provider.errors import (
    EndUnknown,
    PodDeadline,
    PodFailed,
    PodPreempted,
    TaskKilled,
)
from airflow_gpu_provider.scaling.end import release_now as giving_back
from airflow_gpu_provider.training.life import task_attempt
from airflow_gpu_provider.training.life.object_attempt import WorkloadAttempt
from airflow_gpu_provider.training.life.pod_attempt import PodAttempt
from airflow_gpu_provider.training.life.run import Preemptions
from airflow_gpu_provider.training.wait.attempt_wait import WaitOutcome
from tests.unit.training.pod_life import AWAY, ENDED_WELL, EVICTED, FAILED, OWNER, PHASES, UNSEEN, Life, event
from tests.unit.training.pod_life import nodes as nodes
from tests.unit.training.test_pod_end import pod, running
from tests.unit.training.test_pod_verdict import watched


@pytest.mark.parametrize(("state", "error"), [(ENDED_WELL, None), (FAILED, PodFailed("It failed.", exit_code=3))])
def test_pod_is_read_before_it_is_released_and_released_before_the_task_ends(
    state: PodState, error: PodFailed | None, nodes: list[set[str]]
) -> None:
    life = Life(state)
    if error is None:
        assert life.tries.resume(watched("success", timeline=PHASES, result="[1]")) == [1]
    else:
        with pytest.raises(PodFailed, match="It failed"):
            life.tries.resume(event("failed", error))
    read = "end the sidecar" if error is None else "read the result"
    pushed = [] if error is None else ["push return_value"]  # Airflow pushes what a successful task returns
    callbacks = ["on_pod_completion", "on_pod_teardown"]
    assert life.steps == [read, "push timeline", *callbacks, *pushed, "release the pod"]
    assert nodes == [{"u1"}]


def test_pod_that_may_still_run_is_untouched_and_watched_again_later(nodes: list[set[str]]) -> None:
    life = Life(pod(running()))
    with pytest.raises(TaskDeferred):
        life.tries.resume(event("error", AWAY))
    assert life.steps == []
    assert life.records[0]["pause"] > 0
    assert life.records[0]["extra"]["setbacks"]["times"] == 1
    assert not nodes


def test_pod_is_released_where_the_task_fails_after_its_creation(nodes: list[set[str]]) -> None:
    life = Life()
    life.fails["on_pod_creation"] = ValueError("a user's own")
    with pytest.raises(ValueError, match="own"):
        life.tries.run()
    assert life.steps[-2:] == ["on_pod_creation", "release the pod"]
    assert nodes == [{"u1"}]


def test_timeout_ends_the_pod_before_its_node(monkeypatch: pytest.MonkeyPatch, nodes: list[set[str]]) -> None:
    life = Life(deferrable=False)

    def times_out(_: PodAttempt) -> WaitOutcome:
        raise AirflowTaskTimeout

    monkeypatch.setattr(PodAttempt, "watch_here", times_out)
    with pytest.raises(AirflowTaskTimeout):
        life.tries.run()
    assert life.steps[-2:] == ["release the pod", "delete the pod"]
    assert nodes == [{"u1"}]
    assert life.tries.has_timed_out


def test_timeout_before_the_pod_was_read_ends_it_too(nodes: list[set[str]]) -> None:
    life, deleted = Life(pod(running())), list[Json]()

    def times_out(*_: Any, **__: Any) -> Any:
        raise AirflowTaskTimeout

    life.objects.delete_when_killed = lambda pod, **_: deleted.append(pod)
    life.objects.read = times_out
    with pytest.raises(AirflowTaskTimeout):
        life.tries.resume(event("error", AWAY))
    assert [(pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in deleted] == [("train-x", "u1")]
    assert nodes == [{"u1"}]
    assert life.tries.has_timed_out


def test_timeout_may_come_while_the_node_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life()
    tries: list[str] = []

    def times_out_once(*_: Any, **__: Any) -> None:
        tries.append("release the node")
        if len(tries) == 1:
            raise AirflowTaskTimeout

    monkeypatch.setattr(giving_back, "release_now", times_out_once)
    with pytest.raises(AirflowTaskTimeout):
        life.tries.resume(event("failed", PodFailed("It failed.", exit_code=3)))
    assert life.steps[-1] == "delete the pod"
    assert len(tries) == 2
    assert life.tries.has_timed_out


def test_pod_of_a_task_that_was_told_to_stop_is_not_taken_for_preempted(nodes: list[set[str]]) -> None:
    life = Life(EVICTED, preemptions=Preemptions(resume=True, at_most=3))
    life.run.stop.error = TaskKilled("Told to stop.")
    with pytest.raises(TaskKilled):
        life.tries.resume(event("timeout", PodPreempted("It was deleted.", machine="m")))
    assert "create" not in life.steps
    assert nodes


def test_a_pod_is_built_once_however_often_the_cloud_is_asked_whether_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """KubernetesPodOperator gives each that it builds another name, and logs it."""
    answers: list[Any] = [AWAY, AWAY, None]
    built: list[V1Pod] = []
    life = Life()

    def check(*_: Any, **__: Any) -> None:
        if answer := answers.pop(0):
            raise answer

    def build() -> V1Pod:
        built.append(life.pod)
        return life.pod

    monkeypatch.setattr(life, "unplaced_pod", build)
    monkeypatch.setattr(task_attempt, "check_pods", check)
    monkeypatch.setattr("airflow_gpu_provider.scaling.wait.retry._EVERY", 0.0)
    with pytest.raises(TaskDeferred):
        life.tries.run()
    assert (built, answers) == ([life.pod], [])


@pytest.mark.parametrize("lines", [[], ["releasing node n1"]])
def test_why_a_task_releases_nodes_is_said_where_it_releases_any(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lines: list[str]
) -> None:
    def release(*_: Any, report: Callable[[str], None], **__: Any) -> None:
        for line in lines:
            report(line)

    monkeypatch.setattr(giving_back, "release_now", release)
    life = Life()
    with caplog.at_level(logging.INFO), pytest.raises(PodFailed):
        life.tries.resume(event("failed", PodFailed("It failed.", exit_code=3)))
    assert ("No block's demand covers this task" in caplog.text) == bool(lines)


def test_what_may_have_finished_is_not_run_again_by_itself(
    nodes: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workload that vanished: its ttl deletes one that has finished."""
    monkeypatch.setattr(PodAttempt, "why_not_again", WorkloadAttempt.why_not_again)
    life = Life(UNSEEN, preemptions=Preemptions(resume=True, at_most=3))
    with pytest.raises(EndUnknown):
        life.tries.resume(event("failed", EndUnknown("Nobody saw it.", machine="m")))
    assert "create" not in life.steps
    assert nodes


@pytest.mark.parametrize(
    ("state", "status", "error"),
    [
        (EVICTED, "timeout", PodPreempted("It was deleted.", machine="m")),
        (UNSEEN, "failed", EndUnknown("Nobody saw it.", machine="m")),
    ],
)
def test_lost_pod_is_followed_by_the_next_with_the_same_deadline(
    nodes: list[set[str]], state: PodState, status: str, error: PodFailed
) -> None:
    life = Life(state, preemptions=Preemptions(resume=True, at_most=3))
    with pytest.raises(TaskDeferred):
        life.tries.resume(event(status, error))
    assert life.steps.index("release the pod") < life.steps.index("create")
    attempt = life.records[0]["extra"]["attempt"]
    assert attempt["number"] == 2
    assert [*attempt["timeline"]] == [{**PHASES[0], "attempt": 1}]
    assert attempt["deadline"] >= life.records[0]["wait"]["deadline"]
    assert not nodes


@pytest.mark.parametrize(("state", "ends"), [(ENDED_WELL, None), (pod(running()), PodDeadline)])
def test_without_an_event_what_the_try_has_created_is_collected_or_given_up(
    state: PodState, ends: type[PodDeadline] | None, nodes: list[set[str]]
) -> None:
    """Airflow's own timeout of the deferral came first, or the trigger died: nothing says what was waited for."""
    life = Life(state)
    life.pod.metadata.annotations = replace(OWNER, attempt=2).annotations
    life.objects.of_task = lambda *_: [life.raw]
    with pytest.raises(ends, match="triggerer") if ends else nullcontext():
        assert life.tries.resume_without_event(TimeoutError("late"), lambda: "ml") == [1]
    assert life.steps[-1] == "release the pod"
    assert life.tries.attempt.record.number == 2
    assert nodes == [{"u1"}]


@pytest.mark.parametrize(("seconds", "says"), [(8, ", or 8 s after its start"), (None, " at the latest")])
def test_deferral_says_until_when(seconds: int | None, says: str, caplog: pytest.LogCaptureFixture) -> None:
    life = Life()
    life.pod.spec.active_deadline_seconds = seconds
    caplog.set_level(logging.INFO)
    with pytest.raises(TaskDeferred):
        life.tries.run()
    (line,) = [line for line in caplog.messages if line.startswith("Waiting in the triggerer")]
    assert line.endswith(says)
    assert re.search(r"until 2026-01-02 02:00:00Z at the latest", line)

"""A pod's log in one try of a task: what is written again, or read once more, where the task waits anew."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from kubernetes.client import V1Container

from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.errors import EndUnknown, GpuError, PodPreempted
from airflow_gpu_provider.training.life.run import Preemptions
from airflow_gpu_provider.training.log import task_log
from airflow_gpu_provider.training.log.trigger_log import KeptLines
from tests.unit.training.pod_life import AWAY, ENDED_WELL, EVICTED, PHASES, UNSEEN, Life
from tests.unit.training.pod_life import nodes as nodes
from tests.unit.training.test_pod_end import ended, pod, running
from tests.unit.training.test_pod_verdict import watched


def with_a_log(life: Life, monkeypatch: pytest.MonkeyPatch, lines: Callable[..., Any]) -> Life:
    life.run.pod_log.get_logs = True
    life.run.pod_log.containers = "base"
    life.pod.spec.containers = [V1Container(name="base")]
    monkeypatch.setattr(task_log, "_lines", lines)
    monkeypatch.setattr(task_log.time, "sleep", lambda _: None)
    return life


def away(*_: Any) -> Any:
    raise AWAY


def test_log_that_could_not_be_read_may_still_repeat_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    life = with_a_log(Life(pod(ended(0), phase="Succeeded")), monkeypatch, away)
    followed = {"positions": {"base": [1, 2, 3]}, "may_repeat": True}
    with pytest.raises(TaskDeferred):
        life.tries.resume(watched("success", logs=followed))
    assert life.records[0]["logs"]["positions"] == followed["positions"]
    assert life.records[0]["logs"]["may_repeat"]


@pytest.mark.parametrize("has_ended", [False, True])
def test_what_a_triggerer_has_streamed_is_wanted_again_where_the_task_waits_there_once_more(
    monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    """Airflow clears it. A pod that has ended is not streamed: its worker writes it once, however often it comes."""
    life = with_a_log(Life(ENDED_WELL if has_ended else pod(running())), monkeypatch, away)
    followed = {"positions": {"base": [1, 2, 3]}, "may_repeat": False, "streamed": True}
    with pytest.raises(TaskDeferred):
        life.tries.resume(watched("success" if has_ended else "error", None if has_ended else AWAY, logs=followed))
    logs = life.records[0]["logs"]
    assert (logs["positions"], logs["from_start"]) == ({}, True)
    assert logs["containers"] == ([] if has_ended else ["base"])

    again = with_a_log(Life(ENDED_WELL), monkeypatch, away)
    own = {"positions": {"base": [4, 5, 6]}, "may_repeat": False, "streamed": False}
    with pytest.raises(TaskDeferred):
        again.tries.resume(watched("success", logs=own))
    assert again.records[0]["logs"]["positions"] == own["positions"], "what the worker wrote stays where it is"


@pytest.mark.parametrize(
    ("state", "status", "error"),
    [
        (EVICTED, "timeout", PodPreempted("It was deleted.", machine="m")),
        (EVICTED, "error", AWAY),
        (UNSEEN, "failed", EndUnknown("Nobody saw it.", machine="m")),
    ],
)
def test_what_the_triggerer_logged_of_a_lost_pod_is_logged_before_the_next_one_is_waited_for(
    caplog: pytest.LogCaptureFixture, state: PodState, status: str, error: GpuError
) -> None:
    """Airflow clears it then. Whether it was lost the worker tells: of an unseen end from the pod itself."""
    life = Life(state, preemptions=Preemptions(resume=True, at_most=3))
    kept = KeptLines(lambda *_: None)
    kept.log(logging.INFO, "[%s] %s", "base", "step 15")
    with caplog.at_level(logging.INFO), pytest.raises(TaskDeferred):
        life.tries.resume(watched(status, error, lines=kept.packed(), timeline=PHASES, machine="m"))
    said = caplog.text
    assert said.index("[base] step 15") < said.index("Attempt 2 starts") < said.index("Waiting in the triggerer")


@pytest.mark.parametrize(
    ("preemptions", "has_next"),
    [(Preemptions(resume=True, at_most=3), True), (Preemptions(resume=False, at_most=3), False)],
)
def test_triggerer_is_asked_for_its_lines_only_where_another_pod_may_follow(
    preemptions: Preemptions, has_next: bool
) -> None:
    life = Life(pod(running()), preemptions=preemptions)
    with pytest.raises(TaskDeferred):
        life.tries.run()
    assert life.records[0]["has_next"] == has_next

"""What a task does once its pod has ended: its result, its callbacks, and what of them may fail."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred
from kubernetes.client import ApiException, V1Pod

from airflow_gpu_provider.errors import GpuHung, PodDeadline, PodFailed, PodPreempted, PodResultLost
from airflow_gpu_provider.scaling.wait.records import phase
from airflow_gpu_provider.scaling.wait.retry import Setbacks
from airflow_gpu_provider.times import format_time
from airflow_gpu_provider.training.life import collect
from airflow_gpu_provider.training.life.pod_attempt import PodAttempt
from airflow_gpu_provider.training.wait.attempt_wait import WaitOutcome
from airflow_gpu_provider.training.wait.gpu_use import GpuUse, Reading, Sample
from tests.unit.training.pod_life import AWAY, ENDED_WELL, LATER, PHASES, Life, event
from tests.unit.training.pod_life import nodes as nodes
from tests.unit.training.test_pod_end import pod, running
from tests.unit.training.test_pod_verdict import watched


@pytest.mark.parametrize("result", ["{", None], ids=["read by the triggerer", "read here"])
def test_failed_pod_with_a_broken_result_is_not_said_to_have_succeeded(
    result: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    def extract(_: V1Pod) -> Any:
        return json.loads("{")

    life = Life()
    life.extract = extract
    caplog.set_level(logging.INFO)
    with pytest.raises(PodFailed, match="It failed"):
        life.tries.resume(watched("failed", PodFailed("It failed.", exit_code=3), timeline=PHASES, result=result))
    (line,) = [line for line in caplog.messages if "result is left out" in line]
    assert "The result of pod train-x, /airflow/xcom/return.json, is not valid JSON" in line
    assert "succeeded" not in line


@pytest.mark.parametrize(("minutes", "ends"), [(4, False), (6, True)])
def test_result_that_exec_does_not_give_ends_the_try_after_five_minutes(
    minutes: int, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: V1Pod) -> Any:
        raise ApiException(status=403, reason="Forbidden")

    monkeypatch.setattr(collect, "is_node_there", lambda *_: True)
    life = Life(ENDED_WELL)
    life.extract = refuse
    before = Setbacks(times=9, since=LATER - timedelta(minutes=minutes), last=LATER - timedelta(seconds=30))
    life.tries = life.continued({"setbacks": before.to_record()})
    with pytest.raises(PodResultLost, match="Pod train-x succeeded") if ends else pytest.raises(TaskDeferred):
        life.tries.resume(watched("success", timeline=PHASES))
    assert ("release the pod" in life.steps) is ends


BUSY = GpuUse().plus(Sample((Reading(percent=100, memory_mib=1024, power_w=60, limit_w=700),)))
STARTED = phase("start", LATER - timedelta(seconds=70), LATER - timedelta(seconds=60))
RUNS = pod(running())


@pytest.mark.parametrize(
    ("error", "words", "fraction"),
    [
        (GpuHung("It hangs."), "were busy 100 % of the time, which in a hang is no work", None),
        (PodDeadline("It is late."), "computed 100 % of the time", 1.0),
    ],
)
def test_busy_gpus_of_a_hang_have_computed_nothing_that_is_known(
    error: PodFailed, words: str, fraction: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    life, noted = Life(RUNS), []
    life.objects.delete = life._step("delete the pod")
    life.cluster.pods.note_computed = lambda _, share, **__: noted.append(share)
    caplog.set_level(logging.INFO)
    with pytest.raises(type(error)):
        life.tries.resume(watched("timeout", error, timeline=[STARTED], gpu_use=BUSY))
    assert words in caplog.text
    assert life.pushed["utilization"]["computed_fraction"] == fraction
    assert noted == [fraction] * (fraction is not None)
    ran = {"phase": "ran", "at": format_time(LATER - timedelta(seconds=60)), "seconds": 60.0}
    assert life.pushed["timeline"] == [STARTED, ran], "it has run until it is deleted now"


@pytest.mark.parametrize(
    "outcome",
    [
        watched("timeout", PodPreempted("Its node went."), timeline=[STARTED]),
        watched("failed", PodFailed("It failed."), timeline=[STARTED]),
        watched("error", AWAY, timeline=[STARTED]),
        watched("success", timeline=[STARTED]),
    ],
)
def test_until_when_others_ran_their_own_end_tells(outcome: WaitOutcome) -> None:
    assert outcome.phases_until(LATER) == [STARTED]


@pytest.mark.parametrize("fails", [None, ValueError("a user's own")])
def test_a_pod_that_hangs_is_released_as_it_is_and_deleted_after_that(fails: Exception | None) -> None:
    """KubernetesPodOperator patches what it releases: of a pod that is gone, its log had a 404 with a traceback."""
    life = Life(RUNS)
    life.objects.delete = life._step("delete the pod")
    life.fails |= {"release the pod": fails} if fails else {}
    with pytest.raises(GpuHung):
        life.tries.resume(watched("timeout", GpuHung("It hangs."), timeline=[STARTED]))
    assert life.steps[-2:] == ["release the pod", "delete the pod"]


# -- what fails after a pod's end neither hides how it ended nor leaves it ---------------------------------------


def collected(life: Life, error: PodFailed | None, *, deferred: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Collect the pod in a worker to which the wait came back, or in the one that has waited."""
    outcome = event("failed", error) if error else watched("success", timeline=PHASES, result="[1]")
    if deferred:
        return life.tries.resume(outcome)
    monkeypatch.setattr(PodAttempt, "watch_here", lambda _: outcome)
    return life.tries.run()


BOTH_WAYS = pytest.mark.parametrize("deferred", [True, False], ids=["deferred", "here"])
BROKEN = RuntimeError("Airflow's API did not answer.")


@BOTH_WAYS
@pytest.mark.parametrize("key", ["timeline", "return_value"])
def test_result_that_cannot_be_pushed(deferred: bool, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(deferrable=deferred)
    life.fails[f"push {key}"] = BROKEN
    with pytest.raises(PodFailed, match="It failed"):
        collected(life, PodFailed("It failed.", exit_code=3), deferred=deferred, monkeypatch=monkeypatch)
    assert life.steps[-1] == "release the pod"


def test_success_stands_without_its_timeline() -> None:
    life = Life(ENDED_WELL)
    life.fails["push timeline"] = BROKEN
    assert life.tries.resume(watched("success", timeline=PHASES, result="[1]")) == [1]


@pytest.mark.parametrize("result", [[1], {"loss": 0.1}])
def test_result_of_a_failed_pod_is_pushed_as_a_returned_one(result: Any) -> None:
    life = Life(multiple_outputs=True)
    life.extract = lambda _: result
    with pytest.raises(PodFailed):
        life.tries.resume(event("failed", PodFailed("It failed.", exit_code=3)))
    assert {key: value for key, value in life.pushed.items() if key != "timeline"} == {
        "return_value": result,
        **(result if isinstance(result, dict) else {}),
    }


@BOTH_WAYS
@pytest.mark.parametrize("step", ["on_pod_completion", "on_pod_teardown", "release the pod"])
def test_callback_that_fails_hides_no_failure(deferred: bool, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(deferrable=deferred)
    life.fails[step] = ValueError("a user's own")
    with pytest.raises(PodFailed, match="It failed"):
        collected(life, PodFailed("It failed.", exit_code=3), deferred=deferred, monkeypatch=monkeypatch)
    assert life.steps[-1] == "release the pod"


@BOTH_WAYS
def test_callback_that_fails_leaves_no_pod(
    deferred: bool, monkeypatch: pytest.MonkeyPatch, nodes: list[set[str]]
) -> None:
    life = Life(ENDED_WELL, deferrable=deferred)
    life.fails["on_pod_completion"] = ValueError("a user's own")
    with pytest.raises(ValueError, match="own"):
        collected(life, None, deferred=deferred, monkeypatch=monkeypatch)
    assert life.steps[-1] == "release the pod"
    assert nodes == [{"u1"}]


def test_skip_by_exit_code_is_the_outcome() -> None:
    life = Life()
    life.fails["release the pod"] = AirflowSkipException("Exit code 3.")
    with pytest.raises(AirflowSkipException):
        life.tries.resume(event("failed", PodFailed("It failed.", exit_code=3)))

"""The life of a task's pods, without Airflow and without a cluster: in which order it is decided, read and released."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException, AirflowTaskTimeout, TaskDeferred
from kubernetes.client import ApiClient, ApiException, V1ObjectMeta, V1Pod, V1PodSpec

from airflow_gpu_provider.cluster.demand import DemandKey
from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import (
    ClusterUnreachable,
    EndUnknown,
    PodFailed,
    PodPreempted,
    PodResultLost,
    TaskKilled,
)
from airflow_gpu_provider.pods import collect, deadline, pod_try, task_attempt
from airflow_gpu_provider.pods.attempt import PodAttempt
from airflow_gpu_provider.pods.ownership import Ownership
from airflow_gpu_provider.pods.placement import Placement
from airflow_gpu_provider.pods.pod_try import PodTry
from airflow_gpu_provider.pods.preemptions import Preemptions
from airflow_gpu_provider.pods.task import PodTask
from airflow_gpu_provider.pods.task_log import TaskLog
from airflow_gpu_provider.pods.verdict import Watched
from airflow_gpu_provider.scaling.setbacks import Setbacks
from airflow_gpu_provider.stopping import Stop
from airflow_gpu_provider.triggers.pod import GpuPodTrigger
from airflow_gpu_provider.workloads.workload_attempt import WorkloadAttempt
from tests.unit.pods.test_pod_end import START, disrupted, ended, lost, pod, running
from tests.unit.pods.test_pod_placement import a_pool
from tests.unit.pods.test_pod_verdict import watched

LATER = START + timedelta(minutes=10)
AWAY = ClusterUnreachable("The API server was away.")
PHASES = [{"phase": "ran", "seconds": 1.0}]
FAILED = pod(ended(3), phase="Failed")
ENDED_WELL = pod(ended(0), phase="Succeeded")
UNSEEN = pod(lost(), phase="Failed")
EVICTED = pod(ended(143, at=55), phase="Failed", conditions=(disrupted(at=50),))


class Life:
    """One try of a task, whose pod is always in the same state; `steps` are what was done, in this order."""

    def __init__(self, state: PodState = FAILED, **changes: Any) -> None:
        self.steps: list[str] = []
        self.records: list[dict[str, Any]] = []
        self.stop = Stop()
        self.fails: dict[str, BaseException] = {}
        self._state = state
        log: Any = logging.getLogger(__name__)
        meta = V1ObjectMeta(name="train-x", namespace="ml", uid="u1", creation_timestamp=START)
        self._pod = V1Pod(metadata=meta, spec=V1PodSpec(containers=[], node_name="n1"))
        owner = Ownership(
            key=DemandKey(installation="i", dag_id="d", run_id="r", pool="train-gpu"),
            task_id="train",
            map_index=-1,
            try_id="t1",
        )
        arguments: dict[str, Any] = {
            "log": log,
            "placement": Placement(pool=a_pool(), gpus=1, base_container="base"),
            "checkpoint": None,
            "preemptions": Preemptions(resume=False, at_most=3),
            "schedule_seconds": 60.0,
            "start_seconds": 60.0,
            "execution_timeout": None,
            "started_at": None,
            "grace_seconds": 30,
            "reattaches": True,
            "has_result": True,
            "deferrable": True,
            "is_kept_when_killed": False,
            "holder": "somebody",
            "owner": lambda: owner,
            "execute": lambda: self.tries.run(),
            "build": self._build,
            "create": self._step("create", self._pod),
            "defer": self._defer,
            "extract_result": self._step("read the result", [1]),
            "release": self._step("release the pod"),
            "call_back": lambda name, **_: self._step(name)(),
            "push": lambda key, _: self._step(f"push {key}")(),
            "on_pod": lambda _: None,
        }
        its_log = TaskLog(
            log=log,
            containers=True,
            init_containers=None,
            get_logs=False,
            with_name=True,
            formatter=None,
            in_triggerer=True,
        )
        cluster: Any = SimpleNamespace(
            pool=a_pool(),
            base_container="base",
            api=ApiClient(),
            client=SimpleNamespace(read_namespaced_pod_log=_no_log),
            clock=SimpleNamespace(now=lambda: LATER),
            now=lambda: LATER,
            pods=SimpleNamespace(
                read=lambda *_, **__: self._pod, delete_from_signal_handler=self._step("delete the pod")
            ),
            manager=SimpleNamespace(extract_xcom_kill=self._step("end the sidecar")),
            gpu_health=SimpleNamespace(of_node=lambda _: ""),
            state=lambda _: self._state,
        )
        given = {"pod_log": its_log, "cluster": cluster, "stop": self.stop}
        self.tries = PodTry(PodTask(**(arguments | given | changes)), {})

    def _build(self) -> V1Pod:
        assert self.tries.attempt.owner.attempt >= 1  # it is asked for: it stands on the pod
        return self._pod

    def _step(self, name: str, returns: Any = None) -> Callable[..., Any]:
        def do(*_: Any, **__: Any) -> Any:
            self.steps.append(name)
            if name in self.fails:
                raise self.fails[name]
            return returns

        return do

    def _defer(self, record: dict[str, Any], timeout: timedelta) -> None:
        self.records.append(record)
        raise TaskDeferred(trigger=GpuPodTrigger(record), method_name="trigger_reentry", timeout=timeout)


def _no_log(*_: Any, **__: Any) -> Any:
    raise ApiException(status=404)


@pytest.fixture(autouse=True)
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The pods whose nodes were released; no demand covers any."""
    released: list[set[str]] = []
    monkeypatch.setattr(deadline, "list_demand", lambda *_: ())
    monkeypatch.setattr(pod_try, "list_demand", lambda *_: ())
    monkeypatch.setattr(pod_try, "open_pool", lambda *_, **__: None)
    monkeypatch.setattr(pod_try, "release_without_sensor", lambda *_, own, **__: released.append(own))
    return released


def event(status: str, error: Any = None) -> Watched:
    return watched(status, error, timeline=PHASES)


@pytest.mark.parametrize(("state", "error"), [(ENDED_WELL, None), (FAILED, PodFailed("It failed.", exit_code=3))])
def test_pod_is_read_before_it_is_released_and_released_before_the_task_ends(
    state: PodState, error: PodFailed | None, nodes: list[set[str]]
) -> None:
    life = Life(state)
    if error is None:
        assert life.tries.go_on(watched("success", timeline=PHASES, result="[1]")) == [1]
    else:
        with pytest.raises(PodFailed, match="It failed"):
            life.tries.go_on(event("failed", error))
    read = "end the sidecar" if error is None else "read the result"
    pushed = [] if error is None else ["push return_value"]  # Airflow pushes what a successful task returns
    callbacks = ["on_pod_completion", "on_pod_teardown"]
    assert life.steps == [read, "push timeline", *callbacks, *pushed, "release the pod"]
    assert nodes == [{"u1"}]


def test_pod_that_may_still_run_is_untouched_and_watched_again_later(nodes: list[set[str]]) -> None:
    life = Life(pod(running()))
    with pytest.raises(TaskDeferred):
        life.tries.go_on(event("error", AWAY))
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

    def times_out(_: PodAttempt) -> Watched:
        raise AirflowTaskTimeout

    monkeypatch.setattr(PodAttempt, "watch_here", times_out)
    with pytest.raises(AirflowTaskTimeout):
        life.tries.run()
    assert life.steps[-2:] == ["release the pod", "delete the pod"]
    assert nodes == [{"u1"}]
    assert life.tries.has_timed_out


def test_timeout_before_the_pod_was_read_ends_it_too(nodes: list[set[str]]) -> None:
    life, deleted = Life(pod(running())), list[V1Pod]()
    cluster: Any = life.tries._cluster

    def times_out(*_: Any, **__: Any) -> Any:
        raise AirflowTaskTimeout

    cluster.pods.delete_from_signal_handler = lambda pod, **_: deleted.append(pod)
    cluster.pods.read = times_out
    with pytest.raises(AirflowTaskTimeout):
        life.tries.go_on(event("error", AWAY))
    assert [(pod.metadata.name, pod.metadata.uid) for pod in deleted] == [("train-x", "u1")]
    assert nodes == [{"u1"}]
    assert life.tries.has_timed_out


def test_timeout_may_come_while_the_node_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life()
    tries: list[str] = []

    def times_out_once(*_: Any, **__: Any) -> None:
        tries.append("release the node")
        if len(tries) == 1:
            raise AirflowTaskTimeout

    monkeypatch.setattr(pod_try, "release_without_sensor", times_out_once)
    with pytest.raises(AirflowTaskTimeout):
        life.tries.go_on(event("failed", PodFailed("It failed.", exit_code=3)))
    assert life.steps[-1] == "delete the pod"
    assert len(tries) == 2
    assert life.tries.has_timed_out


def test_pod_of_a_task_that_was_told_to_stop_is_not_taken_for_preempted(nodes: list[set[str]]) -> None:
    life = Life(EVICTED, preemptions=Preemptions(resume=True, at_most=3))
    life.stop.error = TaskKilled("Told to stop.")
    with pytest.raises(TaskKilled):
        life.tries.go_on(event("timeout", PodPreempted("It was deleted.", machine="m")))
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
        built.append(life._pod)
        return life._pod

    monkeypatch.setattr(task_attempt, "check_pods", check)
    monkeypatch.setattr(task_attempt, "placement_of", lambda *_: None)
    monkeypatch.setattr(task_attempt, "place", lambda pod, _: pod)
    monkeypatch.setattr("airflow_gpu_provider.scaling.setbacks._EVERY", 0.0)
    assert life.tries.attempt.request(build) is life._pod
    assert (built, answers) == ([life._pod], [])


@pytest.mark.parametrize("lines", [[], ["releasing node n1"]])
def test_why_a_task_releases_nodes_is_said_where_it_releases_any(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lines: list[str]
) -> None:
    def release(*_: Any, say: Callable[[str], None], **__: Any) -> None:
        for line in lines:
            say(line)

    monkeypatch.setattr(pod_try, "release_without_sensor", release)
    life = Life()
    with caplog.at_level(logging.INFO), pytest.raises(PodFailed):
        life.tries.go_on(event("failed", PodFailed("It failed.", exit_code=3)))
    assert ("No block's demand covers this task" in caplog.text) == bool(lines)


def test_what_may_have_finished_is_not_run_again_by_itself(
    nodes: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workload that vanished: its ttl deletes one that has finished."""
    monkeypatch.setattr(PodAttempt, "why_not_again", WorkloadAttempt.why_not_again)
    life = Life(UNSEEN, preemptions=Preemptions(resume=True, at_most=3))
    with pytest.raises(EndUnknown):
        life.tries.go_on(event("failed", EndUnknown("Nobody saw it.", machine="m")))
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
        life.tries.go_on(event(status, error))
    assert life.steps.index("release the pod") < life.steps.index("create")
    attempt = life.records[0]["extra"]["attempt"]
    assert attempt["number"] == 2
    assert [*attempt["timeline"]] == [{**PHASES[0], "attempt": 1}]
    assert attempt["deadline"] >= life.records[0]["wait"]["deadline"]
    assert not nodes


@pytest.mark.parametrize(("seconds", "says"), [(8, ", or 8 s after its start"), (None, " at the latest")])
def test_deferral_says_until_when(seconds: int | None, says: str, caplog: pytest.LogCaptureFixture) -> None:
    life = Life()
    life._pod.spec.active_deadline_seconds = seconds
    caplog.set_level(logging.INFO)
    with pytest.raises(TaskDeferred):
        life.tries.run()
    (line,) = [line for line in caplog.messages if line.startswith("Waiting in the triggerer")]
    assert line.endswith(says)
    assert re.search(r"until 2026-01-02 02:00:00Z at the latest", line)


@pytest.mark.parametrize("result", ["{", None], ids=["read by the triggerer", "read here"])
def test_failed_pod_with_a_broken_result_is_not_said_to_have_succeeded(
    result: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    def extract(_: V1Pod) -> Any:
        return json.loads("{")

    life = Life(extract_result=extract)
    caplog.set_level(logging.INFO)
    with pytest.raises(PodFailed, match="It failed"):
        life.tries.go_on(watched("failed", PodFailed("It failed.", exit_code=3), timeline=PHASES, result=result))
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
    life = Life(ENDED_WELL, extract_result=refuse)
    before = Setbacks(times=9, since=LATER - timedelta(minutes=minutes), last=LATER - timedelta(seconds=30))
    life.tries = PodTry(life.tries._task, {"setbacks": before.to_record()})
    with pytest.raises(PodResultLost, match="Pod train-x succeeded") if ends else pytest.raises(TaskDeferred):
        life.tries.go_on(watched("success", timeline=PHASES))
    assert ("release the pod" in life.steps) is ends


# -- what fails after a pod's end neither hides how it ended nor leaves it ---------------------------------------


def collected(life: Life, error: PodFailed | None, *, deferred: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Collect the pod in a worker to which the wait came back, or in the one that has waited."""
    outcome = event("failed", error) if error else watched("success", timeline=PHASES, result="[1]")
    if deferred:
        return life.tries.go_on(outcome)
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
    assert life.tries.go_on(watched("success", timeline=PHASES, result="[1]")) == [1]


@pytest.mark.parametrize("result", [[1], {"loss": 0.1}])
def test_result_of_a_failed_pod_is_pushed_as_a_returned_one(result: Any) -> None:
    pushed: dict[str, Any] = {}
    life = Life(extract_result=lambda _: result, multiple_outputs=True, push=pushed.__setitem__)
    with pytest.raises(PodFailed):
        life.tries.go_on(event("failed", PodFailed("It failed.", exit_code=3)))
    assert {key: value for key, value in pushed.items() if key != "timeline"} == {
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
        life.tries.go_on(event("failed", PodFailed("It failed.", exit_code=3)))

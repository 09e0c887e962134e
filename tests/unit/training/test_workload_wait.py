"""When the wait for a workload is over, how it ended, and what the log says meanwhile; in virtual time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_gpu_provider.cluster.model.events import PodEvent
from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.errors import (
    ControllerNotRunning,
    EndUnknown,
    GpuError,
    PodDeadline,
    PodFailed,
    PodImageError,
    PodPreempted,
    ResourceQuotaExceeded,
)
from airflow_gpu_provider.training.place.kinds import KINDS, WorkloadEnd
from airflow_gpu_provider.training.wait.object_wait import ENDS_REPORTED_WITHIN, WorkloadState, main_container
from airflow_gpu_provider.training.wait.pod_wait import PodSnapshot
from airflow_gpu_provider.training.wait.start_advice import Refusal
from airflow_gpu_provider.training.wait.workload_wait import WorkloadSnapshot, WorkloadWait

T0 = datetime(2026, 1, 1, tzinfo=UTC)
WAIT = WorkloadWait(
    kind="JobSet",
    namespace="ml",
    name="train",
    uid="w1",
    task="t1",
    try_id="y1",
    attempt=1,
    started=T0,
    schedule_seconds=600,
    start_seconds=300,
    deadline=T0 + timedelta(hours=1),
)
STATE = WorkloadState(
    kind="JobSet", name="train", uid="w1", created_at=T0, is_suspended=False, is_deleting=False, end=None
)
FAILED = WorkloadEnd(succeeded=False, reason="FailedJobs", message="a job has failed")


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def text(seconds: float) -> str:
    return at(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def a_pod(name: str, state: dict[str, Any] | None = None, *, node: str | None = "n1", **status: Any) -> PodSnapshot:
    containers = [{"name": "train", "image": "train:1"}]
    metadata = {"name": name, "namespace": "ml", "uid": f"u-{name}", "creationTimestamp": text(0)}
    shown = [{"name": "train", "state": state}] if state else []
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": text(5)}] if node else []
    raw = {
        "metadata": metadata,
        "spec": {"containers": containers, "nodeName": node},
        "status": {"phase": "Running", "containerStatuses": shown, "conditions": conditions, **status},
    }
    return PodSnapshot(pod=PodState.parse(raw, "train"))


def ended(code: int, seconds: float) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "startedAt": text(10), "finishedAt": text(seconds), "reason": "Error"}}


RUNS = {"running": {"startedAt": text(10)}}


def seen(workload: WorkloadState | None = STATE, pods: dict[str, PodSnapshot] | None = None, **more: Any) -> Any:
    return WorkloadSnapshot(object=workload, pods=pods or {}, **more)


def test_it_ends_when_its_controller_says_so() -> None:
    pods = {"workers 0": a_pod("a", ended(0, 30)), "workers 1": a_pod("b", RUNS)}
    assert not WAIT.step(seen(pods=pods), at(60)).done
    over = WAIT.step(seen(replace(STATE, end=WorkloadEnd(succeeded=True)), pods), at(60))
    assert (over.done, over.error) == (True, None)


def test_success_waits_a_moment_for_its_pods_ends_which_its_time_line_tells() -> None:
    succeeded = replace(STATE, end=WorkloadEnd(succeeded=True))
    told = {"workers 0": a_pod("a", ended(0, 30))}
    for pods in ({}, {**told, "workers 1": a_pod("b", RUNS)}):
        snapshot = seen(succeeded, pods, ended_at=at(45))
        assert not WAIT.step(snapshot, at(46)).done
        assert WAIT.next_deadline(snapshot, at(46)) <= at(45) + ENDS_REPORTED_WITHIN
        assert WAIT.step(snapshot, at(45) + ENDS_REPORTED_WITHIN).done
    both = {**told, "workers 1": a_pod("b", ended(0, 40))}
    assert WAIT.step(seen(succeeded, both, ended_at=at(45)), at(46)).done


def test_error_is_of_the_pod_that_failed_first() -> None:
    pods = {
        "workers 0": a_pod("a", ended(1, 40), phase="Failed"),
        "workers 1": a_pod("b", ended(3, 30), phase="Failed"),
    }
    error = WAIT.step(seen(replace(STATE, end=FAILED), pods, ended_at=at(45)), at(60)).error
    assert type(error) is PodFailed
    assert (error.details["rank"], error.details["exit_code"]) == ("workers 1", 3)
    assert error.what.startswith("Workers 1: ")


def test_pods_ends_are_waited_for_a_moment_and_then_its_own_word_counts() -> None:
    snapshot = seen(replace(STATE, end=FAILED), ended_at=at(45))
    assert WAIT.step(snapshot, at(46)).error is None
    assert WAIT.next_deadline(snapshot, at(46)) == at(45) + ENDS_REPORTED_WITHIN
    error = WAIT.step(snapshot, at(47)).error
    assert type(error) is PodFailed
    assert "FailedJobs: a job has failed" in error.what


def test_a_pod_that_has_not_told_its_end_yet_may_be_the_one_that_failed_first() -> None:
    told = {"workers 0": a_pod("a", ended(143, 40), phase="Failed")}
    snapshot = seen(replace(STATE, end=FAILED), {**told, "workers 1": a_pod("b", RUNS)}, ended_at=at(45))
    assert WAIT.step(snapshot, at(46)).error is None
    (rank,) = told
    last = WAIT.step(snapshot, at(45) + ENDS_REPORTED_WITHIN).error
    assert last is not None
    assert last.details["rank"] == rank
    both = {**told, "workers 1": a_pod("b", ended(3, 30), phase="Failed")}
    first = WAIT.step(seen(replace(STATE, end=FAILED), both, ended_at=at(45)), at(46)).error
    assert first is not None
    assert first.details["rank"] == "workers 1"


def test_a_job_that_its_policy_ended_for_a_disruption_was_preempted_though_nobody_has_seen_its_pods() -> None:
    said = "Pod ml/train-0-x has condition DisruptionTarget matching FailJob rule at index 0"
    end = WorkloadEnd(succeeded=False, reason="PodFailurePolicy", message=said)
    assert type(WAIT.step(seen(replace(STATE, end=end), ended_at=at(45)), at(60)).error) is PodPreempted
    code = replace(end, message="Container main for pod ml/train-0-x failed with exit code 3 matching FailJob rule")
    assert type(WAIT.step(seen(replace(STATE, end=code), ended_at=at(45)), at(60)).error) is PodFailed


def test_its_own_deadline_is_a_deadline() -> None:
    end = WorkloadEnd(succeeded=False, reason="DeadlineExceeded", message="was active longer than specified deadline")
    assert isinstance(WAIT.step(seen(replace(STATE, end=end), ended_at=at(0)), at(60)).error, PodDeadline)


def test_a_pod_that_fails_or_is_lost_may_be_replaced() -> None:
    lost = replace(a_pod("b", RUNS), node_gone=True)
    pods = {"workers 0": a_pod("a", ended(1, 40), phase="Failed"), "workers 1": lost}
    assert WAIT.step(seen(pods=pods), at(60)).error is None


def test_a_preemption_that_has_failed_it_is_a_preemption() -> None:
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    condition = {**evicted, "message": "Eviction API: evicting", "lastTransitionTime": text(29)}
    pod = a_pod("a", ended(143, 30), phase="Failed", conditions=[condition])
    error = WAIT.step(seen(replace(STATE, end=FAILED), {"workers 0": pod}, ended_at=at(31)), at(60)).error
    assert isinstance(error, PodPreempted)


def test_an_image_that_cannot_be_pulled_ends_it() -> None:
    waiting = {"waiting": {"reason": "InvalidImageName", "message": "couldn't parse image name"}}
    error = WAIT.step(seen(pods={"workers 1": a_pod("b", waiting, phase="Pending")}), at(20)).error
    assert isinstance(error, PodImageError)
    assert error.details["rank"] == "workers 1"


def test_without_a_pod_it_is_late_but_not_while_it_is_suspended() -> None:
    late = WAIT.step(seen(), at(600)).error
    assert isinstance(late, PodDeadline)
    assert "has no pod after" in late.what
    suspended = replace(STATE, is_suspended=True)
    waits = WAIT.step(seen(suspended, queued="2nd in queue team-a"), at(900))
    assert waits.error is None
    assert waits.lines == ("JobSet train waits to be admitted: 2nd in queue team-a",)
    assert WAIT.step(seen(queued_at=at(900)), at(1000)).error is None


def test_a_workload_on_which_nothing_acts_names_its_controller_and_ends() -> None:
    """KubeRay writes a status at its first look; its Deployment is kuberay-operator."""
    wait = replace(WAIT, kind="RayJob", schedule_seconds=1800)
    unseen = replace(STATE, kind="RayJob", has_status=False)
    assert wait.step(seen(unseen), at(59)).lines == ("RayJob train has no pod yet",)
    assert wait.next_deadline(seen(unseen), at(59)) == at(60)
    _, line = wait.step(seen(unseen), at(60)).lines
    assert "no controller seems to act on RayJob train" in line
    assert "grep kuberay-operator" in line
    assert wait.next_deadline(seen(unseen), at(60)) == at(300)
    error = wait.step(seen(unseen), at(300)).error
    assert isinstance(error, ControllerNotRunning)
    assert not error.retryable
    assert "kubectl describe rayjobs train -n ml" in error.fix


def test_what_acts_on_a_workload_or_may_not_yet_is_not_missed() -> None:
    unseen = replace(STATE, has_status=False)
    refused = Refusal(error=ResourceQuotaExceeded("no more"), since=at(290))
    attended = [
        seen(STATE),
        seen(unseen, {"workers 0": a_pod("a", RUNS)}),
        seen(replace(unseen, is_suspended=True), queued_at=at(300)),
        seen(unseen, queued_at=at(250)),
        seen(unseen, refused=refused),
    ]
    assert not any("controller" in line for each in attended for line in WAIT.step(each, at(300)).lines)
    assert [WAIT.step(each, at(300)).error for each in attended] == [None] * len(attended)
    job = WorkloadState.parse(
        {"metadata": {"name": "train", "uid": "w1", "creationTimestamp": text(0)}, "spec": {}}, KINDS["Job"]
    )
    assert replace(WAIT, kind="Job").step(seen(job), at(300)).error is None  # the control plane's own


def test_who_is_deleted_or_loses_its_place_is_preempted() -> None:
    for snapshot in (seen(gone=True), seen(replace(STATE, is_deleting=True)), seen(evicted="Preempted: to team-b")):
        assert isinstance(WAIT.step(snapshot, at(60)).error, PodPreempted)


def test_who_went_while_nobody_watched_is_not_called_preempted() -> None:
    for last_seen in (None, STATE):
        error = WAIT.step(seen(last_seen, gone=True, is_unseen=True), at(60)).error
        assert type(error) is EndUnknown
        assert "JobSet train is gone, and its end was not seen: it may have finished" in error.what
    assert isinstance(
        WAIT.step(seen(replace(STATE, is_deleting=True), gone=True, is_unseen=True), at(60)).error, PodPreempted
    )
    well = replace(STATE, end=WorkloadEnd(succeeded=True))
    assert WAIT.step(seen(well, gone=True, is_unseen=True, ended_at=at(50)), at(60)).done


def test_the_runs_deadline_ends_it_also_while_it_is_suspended() -> None:
    for state in (STATE, replace(STATE, is_suspended=True)):
        assert isinstance(WAIT.step(seen(state), at(3600)).error, PodDeadline)


def test_one_line_says_how_all_pods_stand() -> None:
    pods = {f"workers {n}": a_pod(f"w{n}", RUNS) for n in range(3)}
    pods["workers 3"] = a_pod("w3", None, node=None, phase="Pending")
    assert WAIT.step(seen(pods=pods), at(20)).lines == ("3 of 4 pods run; workers 3 waits for its node",)
    pods["workers 3"] = a_pod("w3", ended(0, 15))
    assert WAIT.step(seen(pods=pods), at(20)).lines == ("3 of 4 pods run, 1 has finished",)


def test_a_pod_without_a_node_hears_who_brings_nodes() -> None:
    about = {"uid": "e1", "pod": "w0", "pod_uid": "w0", "by": "karpenter", "type": "Warning"}
    said = PodEvent(**about, reason="FailedScheduling", message="Failed to schedule pod, limits exceeded", at=at(5))
    waits = replace(a_pod("w0", None, node=None, phase="Pending"), events=(said,))
    assert WAIT.step(seen(pods={"workers 0": waits}), at(20)).lines == (
        "0 of 1 pods run; workers 0 waits for its node: Karpenter brings no node: limits exceeded",
    )


def test_the_wait_survives_as_a_record() -> None:
    assert WorkloadWait.from_record(WAIT.to_record()) == WAIT


def test_main_container_is_kubectls_or_has_the_gpus_or_is_the_first() -> None:
    gpus = {"name": "b", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    pod: dict[str, Any] = {"metadata": {}, "spec": {"containers": [{"name": "a"}, gpus, {"name": "c"}]}}
    assert main_container(pod) == "b"
    assert main_container({**pod, "spec": {"containers": [{"name": "a"}, {"name": "c"}]}}) == "a"
    named = {"annotations": {"kubectl.kubernetes.io/default-container": "c"}}
    assert main_container({**pod, "metadata": named}) == "c"


def test_a_container_that_its_job_has_started_too_often_has_failed_and_was_not_taken_away() -> None:
    def deleted(state: dict[str, Any], last: dict[str, Any] | None, *conditions: dict[str, Any]) -> PodSnapshot:
        status = {"name": "train", "state": state, **({"lastState": last} if last else {})}
        raw = {
            "metadata": {
                "name": "train-x7k2p",
                "namespace": "ml",
                "uid": "u-1",
                "creationTimestamp": text(0),
                "deletionTimestamp": text(80),
                "deletionGracePeriodSeconds": 30,
            },
            "spec": {"containers": [{"name": "train", "image": "train:1"}], "nodeName": "n1"},
            "status": {"phase": "Running", "containerStatuses": [status], "conditions": conditions},
        }
        return PodSnapshot(pod=PodState.parse(raw, "train"), gone=True)

    failed = replace(STATE, kind="Job", end=WorkloadEnd(succeeded=False, reason="BackoffLimitExceeded"))
    job = replace(WAIT, kind="Job")

    def error_of(pod: PodSnapshot) -> GpuError | None:
        return job.step(seen(failed, {"train-x7k2p": pod}, ended_at=at(52)), at(60)).error

    for state in (RUNS, ended(143, 51), {"waiting": {"reason": "CrashLoopBackOff"}}):
        error = error_of(deleted(state, ended(7, 48)))
        assert type(error) is PodFailed
        assert error.details["exit_code"] == 7
        assert error.what == "Pod train-x7k2p: container train ended with exit code 7."
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    assert isinstance(error_of(deleted(RUNS, ended(7, 48), disrupted)), PodPreempted)
    assert isinstance(error_of(deleted(RUNS, None)), PodPreempted)

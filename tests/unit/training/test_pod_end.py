"""Kubernetes' ways to say that a pod is over, and the error that each becomes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.errors import EndUnknown, PodDeadline, PodFailed, PodOutOfMemory, PodPreempted
from airflow_gpu_provider.training.wait.end import certain_at, end_of, end_of_gone

START = datetime(2026, 1, 1, 2, 0, 0, tzinfo=UTC)


def stamp(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def ended(
    exit_code: int, *, started: float = 10, at: float = 60, reason: str = "", name: str = "base", message: str = ""
) -> dict[str, Any]:
    times = {"startedAt": stamp(started), "finishedAt": stamp(at)}
    end = {"exitCode": exit_code, **times, "reason": reason, "message": message}
    return {"name": name, "state": {"terminated": end}}


def running(name: str = "base", *, at: float = 10) -> dict[str, Any]:
    return {"name": name, "state": {"running": {"startedAt": stamp(at)}}}


def waiting(reason: str, message: str = "", name: str = "base") -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}}


def disrupted(reason: str = "EvictionByEvictionAPI", at: float = 50) -> dict[str, Any]:
    return {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": reason,
        "message": "Eviction API: evicting",
        "lastTransitionTime": stamp(at),
    }


def pod(
    *containers: dict[str, Any],
    phase: str = "Running",
    conditions: tuple[dict[str, Any], ...] = (),
    spec: dict[str, Any] | None = None,
    deleted_at: float | None = None,
    grace: int = 30,
    annotations: dict[str, str] | None = None,
    finalizers: bool = False,
    **status: Any,
) -> PodState:
    metadata: dict[str, Any] = {"namespace": "ml", "name": "train-x", "uid": "u1", "creationTimestamp": stamp(0)}
    metadata["annotations"] = annotations or {}
    if finalizers:
        metadata["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    if deleted_at is not None:
        metadata |= {"deletionTimestamp": stamp(deleted_at + grace), "deletionGracePeriodSeconds": grace}
    base = {"name": "base", "image": "train:1", "resources": {"limits": {"memory": "2Gi"}}}
    raw = {
        "metadata": metadata,
        "spec": {"containers": [base], "nodeName": "n1", **(spec or {})},
        "status": {
            "phase": phase,
            "startTime": stamp(5),
            "containerStatuses": list(containers),
            "conditions": list(conditions),
            **status,
        },
    }
    return PodState.parse(raw, "base")


def error_of(state: PodState) -> Any:
    end = end_of(state)
    assert end is not None
    return end.error


def test_pod_that_kueue_takes_away_is_preempted_in_its_words() -> None:
    condition = {**disrupted("Preempted", at=50), "type": "TerminationTarget", "message": "for a higher priority"}
    error = error_of(pod(ended(143, at=60), phase="Failed", conditions=(condition,), deleted_at=51))
    assert type(error) is PodPreempted
    assert "Preempted: for a higher priority" in str(error)


def test_running_pod_has_no_end() -> None:
    assert end_of(pod(running())) is None
    assert end_of(pod(phase="Pending")) is None


def test_success_is_the_base_containers() -> None:
    assert error_of(pod(ended(0), running("exporter"))) is None
    assert error_of(pod(ended(0), ended(1, name="exporter"), phase="Failed")) is None
    assert error_of(pod(phase="Succeeded")) is None


@pytest.mark.parametrize("exit_code", [1, 2, 134, 139, 143, 255])
def test_a_killed_helper_s_reason_stays_with_an_end_that_it_was_not(exit_code: int) -> None:
    error = error_of(pod(ended(exit_code, reason="OOMKilled")))
    assert type(error) is PodFailed
    assert error.details["exit_code"] == exit_code
    believed_at = certain_at(pod(ended(exit_code, at=60, reason="OOMKilled")))
    assert believed_at == certain_at(pod(ended(exit_code, at=60, reason="Error")))
    assert believed_at is not None


def test_exit_code_and_termination_message() -> None:
    error = error_of(pod(ended(3, message="loss is NaN")))
    assert type(error) is PodFailed
    assert "exit code 3: loss is NaN" in str(error)
    assert error.fix == "Correct the program by what its log says, and clear the task."
    assert error.details["exit_code"] == 3


def test_out_of_memory_names_the_limit() -> None:
    error = error_of(pod(ended(137, reason="OOMKilled")))
    assert type(error) is PodOutOfMemory
    assert "2Gi" in str(error)


@pytest.mark.parametrize("exit_code", [0, 1, 137, 143])
def test_container_that_ended_after_the_disruption_was_cut_short(exit_code: int) -> None:
    assert type(error_of(pod(ended(exit_code), conditions=(disrupted(at=50),)))) is PodPreempted
    assert type(error_of(pod(ended(exit_code), deleted_at=50))) is PodPreempted


def test_container_that_ended_before_the_disruption_has_its_own_end() -> None:
    assert error_of(pod(ended(0, at=40), conditions=(disrupted(at=50),))) is None
    assert error_of(pod(ended(0, at=40), deleted_at=50)) is None
    assert type(error_of(pod(ended(1, at=40), deleted_at=50))) is PodFailed


@given(at=st.integers(11, 100), told=st.integers(11, 100), exit_code=st.sampled_from([0, 1, 143]))
def test_never_green_when_told_to_stop_first(at: int, told: int, exit_code: int) -> None:
    error = error_of(pod(ended(exit_code, at=at), deleted_at=told))
    assert (type(error) is PodPreempted) == (at >= told)


@given(
    told=st.integers(11, 100), took=st.integers(0, 29), removed=st.integers(0, 5), exit_code=st.sampled_from([0, 143])
)
def test_never_green_when_told_to_stop_first_whatever_the_last_delete_makes_of_its_time(
    told: int, took: int, removed: int, exit_code: int
) -> None:
    asked = pod(running(), deleted_at=told)
    last = pod(ended(exit_code, at=told + took), deleted_at=told + took + removed, grace=0)
    seen = last.following(asked)
    assert seen.deletion_asked_at == asked.deletion_asked_at
    assert seen.following(seen) == seen
    assert type(error_of(seen)) is PodPreempted


def test_a_pod_that_ended_before_it_was_deleted_has_its_own_end() -> None:
    before = pod(ended(0, at=40), phase="Succeeded")
    deleted = pod(ended(0, at=40), phase="Succeeded", deleted_at=50, grace=0)
    assert error_of(deleted.following(before)) is None
    assert error_of(deleted.following(None)) is None
    kept = pod(ended(0, at=40), phase="Succeeded", deleted_at=50, grace=0, finalizers=True)
    assert error_of(kept.following(before)) is None
    assert error_of(kept.following(kept.following(before))) is None  # its finalizer is taken off
    assert type(error_of(kept)) is PodPreempted  # nobody can tell


@pytest.mark.parametrize(
    "reason", ["Terminated", "NodeShutdown", "Shutdown", "Preempting", "NodeLost", "NodeAffinity", "Evicted"]
)
def test_reasons_of_the_nodes_making_are_preemptions(reason: str) -> None:
    assert type(error_of(pod(phase="Failed", reason=reason, message="The node was low on resource: memory."))) is (
        PodPreempted
    )
    assert type(error_of(pod(ended(0), phase="Failed", reason=reason))) is PodPreempted


LOW = "The node was low on resource: {}. "
DISK = LOW.format("ephemeral-storage") + "Threshold quantity: 3219048867, available: 1204Ki. "
MEMORY = LOW.format("memory") + "Threshold quantity: 100Mi, available: 71444Ki. "


def using(container: str, used: str, asked: str = "0", resource: str = "memory") -> str:
    return f"Container {container} was using {used}, request is {asked}, has larger consumption of {resource}. "


@pytest.mark.parametrize(
    ("message", "what", "fix"),
    [
        ('Usage of EmptyDir volume "gpu-pod-shm" exceeds the limit "1Gi". ', "exceeds the limit", "Raise the limit"),
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
            "the total limit",
            "Raise the",
        ),
        ('Container base exceeded its local ephemeral storage limit "1Gi". ', "local ephemeral storage", "Raise the"),
        (
            DISK + using("base", "17196Mi", resource="ephemeral-storage"),
            "its container base used 17196Mi of ephemeral-storage, with a request of 0, until the node had too little",
            "Enlarge the pool's disk",
        ),
        (MEMORY + using("base", "14893Mi"), "its container base used 14893Mi of memory", "Request as much memory"),
        (
            MEMORY + using("base", "17Gi", "16Gi"),
            "used 17Gi of memory, with a request of 16Gi",
            "Request as much memory",
        ),
        (
            MEMORY + using("base", "60Mi") + using("exporter", "90Mi"),
            "its container exporter used 90Mi",
            "Request as much",
        ),
        (
            MEMORY
            + "Pod train-x was using 20Gi, request is 8Gi, has larger consumption of memory. "
            + using("base", "1Gi"),
            "it used 20Gi of memory, with a request of 8Gi",
            "Request as much memory",
        ),
        (
            LOW.format("ephemeral-storage") + "Container base was using 17196Mi, which exceeds its request of 0. ",
            "its container base used 17196Mi of ephemeral-storage",
            "Enlarge the pool's disk",
        ),
    ],
)
@pytest.mark.parametrize("exit_code", [137, 143, 0])
def test_pod_evicted_for_its_own_use_failed(message: str, what: str, fix: str, exit_code: int) -> None:
    status: dict[str, Any] = {"phase": "Failed", "reason": "Evicted", "message": message}
    pressed = {**disrupted("TerminationByKubelet", at=59), "message": message}
    for evicted in (
        pod(**status),
        pod(ended(exit_code), conditions=(pressed,), **status),
        pod(ended(exit_code), conditions=(pressed,)),
    ):
        error = error_of(evicted)
        assert type(error) is PodFailed
        assert error.what.startswith("Pod train-x was evicted from node n1: ")
        assert what in error.what
        assert fix in error.fix


@pytest.mark.parametrize(
    "message",
    [
        DISK,
        DISK + using("base", "40Ki", resource="ephemeral-storage"),
        MEMORY + using("base", "16Gi", "16300Mi"),
        MEMORY + using("base", "40Mi") + using("exporter", "40Mi"),
        LOW.format("memory") + "Container base was using 40Mi, which exceeds its request of 0. ",
        LOW.format("inodes"),
        "The node had condition: [DiskPressure]. ",
        "something new",
    ],
)
def test_pod_evicted_for_what_others_used_is_preempted(message: str) -> None:
    pressed = {**disrupted("TerminationByKubelet", at=59), "message": message}
    assert type(error_of(pod(phase="Failed", reason="Evicted", message=message))) is PodPreempted
    evicted = pod(ended(137), phase="Failed", reason="Evicted", message=message, conditions=(pressed,))
    assert type(error_of(evicted)) is PodPreempted


def test_pod_that_another_takes_away_did_not_use_up_its_node() -> None:
    other = {**disrupted("EvictionByEvictionAPI", at=59), "message": MEMORY + using("base", "14893Mi")}
    assert type(error_of(pod(ended(137), conditions=(other,)))) is PodPreempted


@pytest.mark.parametrize("exit_code", [0, 137, 143])
def test_deadline_is_known_before_the_node_says_it(exit_code: int) -> None:
    over = pod(ended(exit_code, at=65), spec={"activeDeadlineSeconds": 60})
    assert type(error_of(over)) is PodDeadline
    assert error_of(pod(ended(0, at=64), spec={"activeDeadlineSeconds": 60})) is None
    assert type(error_of(pod(phase="Failed", reason="DeadlineExceeded"))) is PodDeadline


@pytest.mark.parametrize(
    ("asked", "what", "fix"),
    [
        ("60", "longer than its activeDeadlineSeconds. ", "Raise the pool's max_runtime"),
        (None, "longer than its activeDeadlineSeconds. ", "Raise the pool's max_runtime"),
        (
            "3600",
            "activeDeadlineSeconds of 60, and not the 3600 that this package asked for: a cluster policy",
            "Have that policy allow the pods of this namespace more",
        ),
    ],
)
def test_a_deadline_that_is_another_s_is_not_told_as_this_package_s(asked: str | None, what: str, fix: str) -> None:
    annotations = {"airflow-gpu-provider/active-deadline-seconds": asked} if asked else {}
    for over in (
        pod(ended(137, at=65), spec={"activeDeadlineSeconds": 60}, annotations=annotations),
        pod(phase="Failed", reason="DeadlineExceeded", spec={"activeDeadlineSeconds": 60}, annotations=annotations),
    ):
        error = error_of(over)
        assert type(error) is PodDeadline
        assert what in str(error)
        assert fix in error.fix


def test_init_container_that_failed_is_named() -> None:
    state = pod(waiting("PodInitializing"), phase="Failed", initContainerStatuses=[ended(7, name="fetch")])
    assert "container fetch ended with exit code 7" in str(error_of(state))


def lost(**more: Any) -> dict[str, Any]:
    said = "The container could not be located when the pod was terminated"
    made_up = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": said, "startedAt": None}
    return {"name": "base", "state": {"terminated": {**made_up, "finishedAt": None, **more}}}


EPOCH = "1970-01-01T00:00:00Z"


@pytest.mark.parametrize("finished", [None, stamp(60), EPOCH])
def test_an_end_that_the_node_made_up_is_the_disruption_s(finished: str | None) -> None:
    container = lost(finishedAt=finished)
    for reason in ("DeletionByTaintManager", "EvictionByEvictionAPI", "DeletionByPodGC", "TerminationByKubelet"):
        error = error_of(pod(container, phase="Failed", conditions=(disrupted(reason, at=50),)))
        assert type(error) is PodPreempted
        assert reason in str(error)
    assert type(error_of(pod(container, deleted_at=50))) is PodPreempted


@pytest.mark.parametrize(
    "made_up",
    [lost(), lost(finishedAt=stamp(60)), ended(255, reason="Unknown"), lost(reason="Error", finishedAt=EPOCH)],
)
def test_an_end_that_nobody_saw_is_not_the_program_s(made_up: dict[str, Any]) -> None:
    error = error_of(pod(made_up, phase="Failed"))
    assert type(error) is EndUnknown
    assert error.retryable
    assert "node n1 has lost container base, and its end was not seen" in error.what
    assert "exit_code" not in error.details
    init = pod(waiting("PodInitializing"), phase="Failed", initContainerStatuses=[{**made_up, "name": "fetch"}])
    assert type(error_of(init)) is EndUnknown


def test_an_end_without_a_time_may_still_be_the_program_s_or_the_deadline_s() -> None:
    assert error_of(pod(lost(exitCode=0, reason="Completed"), phase="Succeeded")) is None
    assert type(error_of(pod(lost(exitCode=128, reason="StartError"), phase="Failed"))) is PodFailed
    assert type(error_of(pod(lost(), phase="Failed", reason="DeadlineExceeded"))) is PodDeadline
    assert type(error_of(pod(ended(255), phase="Failed"))) is PodFailed


@pytest.mark.parametrize(
    "reason",
    ["OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfnvidia.com/gpu", "NodePorts", "TaintToleration", "NodeAffinity"],
)
def test_pod_whose_place_on_its_node_was_gone_is_nobody_s_failed_training(reason: str) -> None:
    message = "Pod was rejected: Node didn't have enough resource: requested: 1, used: 1, capacity: 1"
    error = error_of(pod(phase="Failed", reason=reason, message=message))
    assert type(error) is PodPreempted
    assert f"{reason}: {message}" in str(error)


@pytest.mark.parametrize("reason", ["TopologyAffinityError", "UnexpectedAdmissionError"])
def test_pod_whose_node_could_not_give_it_its_devices_may_get_another_node(reason: str) -> None:
    error = error_of(pod(phase="Failed", reason=reason, message="Pod was rejected: not now"))
    assert type(error) is PodFailed
    assert error.fix.startswith("Retry the task: the next try may get ")


def test_pod_refused_by_its_node() -> None:
    message = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"
    error = error_of(pod(phase="Failed", reason="UnexpectedAdmissionError", message=message))
    assert type(error) is PodFailed
    assert "UnexpectedAdmissionError" in str(error)


# -- when to believe it ------------------------------------------------------------------------------------------


def test_ends_that_are_certain_at_once() -> None:
    assert certain_at(pod(ended(0), phase="Succeeded")) is None
    assert certain_at(pod(ended(137, reason="OOMKilled"))) is None
    assert certain_at(pod(ended(143), conditions=(disrupted(),))) is None
    assert certain_at(pod(ended(0), running("airflow-xcom-sidecar"))) is None


def test_node_has_a_moment_to_say_why() -> None:
    assert certain_at(pod(ended(0, at=60))) == START + timedelta(seconds=65)
    killed = pod(ended(143, at=60), running("exporter"), spec={"terminationGracePeriodSeconds": 10})
    assert certain_at(killed) == START + timedelta(seconds=75)


# -- gone -------------------------------------------------------------------------------------


def test_pod_that_is_gone() -> None:
    assert type(end_of_gone(None, name="train-x").error) is PodPreempted
    assert "EvictionByEvictionAPI" in str(end_of_gone(pod(running(), conditions=(disrupted(),)), name="train-x").error)
    assert end_of_gone(pod(ended(0)), name="train-x").error is None


def test_pod_that_went_while_nobody_watched_is_not_called_preempted() -> None:
    for last_seen in (None, pod(running())):
        error = end_of_gone(last_seen, name="train-x", is_unseen=True).error
        assert type(error) is EndUnknown
        assert error.what.startswith("Pod train-x is gone, and its end was not seen")
        assert "before it had finished" not in str(error)
    for going in (pod(running(), conditions=(disrupted(),)), pod(running(), deleted_at=50)):
        assert type(end_of_gone(going, name="train-x", is_unseen=True).error) is PodPreempted
    assert end_of_gone(pod(ended(0)), name="train-x", is_unseen=True).error is None

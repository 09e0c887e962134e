"""The wait for a pod in virtual time: deadlines, explanations, losses, and its record."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.cluster.model.events import PodEvent
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.errors import (
    EndUnknown,
    GpuHung,
    OutOfStock,
    PodDeadline,
    PodFailed,
    PodPreempted,
    PodUnschedulable,
)
from airflow_gpu_provider.pools import Taint
from airflow_gpu_provider.times import format_time
from airflow_gpu_provider.training.wait.attempt_wait import Silence
from airflow_gpu_provider.training.wait.pod_wait import PodSnapshot, PodWait, phase_in_words, timeline
from tests.unit.training.test_pod_end import START, disrupted, ended, pod, running, stamp, waiting

WAIT = PodWait(
    namespace="ml",
    name="train-x",
    uid="u1",
    base_container="base",
    started=START,
    schedule_seconds=600,
    start_seconds=300,
    deadline=START + timedelta(hours=6),
)
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
NODE = Node(
    name="n1", machine="i-1", ready=True, gpus=1, created_at=START, zone="us-west-2a", instance_type="g6.xlarge"
)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def scheduled(seconds: float) -> dict[str, Any]:
    return {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(seconds)}


def unplaced(message: str) -> PodState:
    return pod(phase="Pending", conditions=({**UNSCHEDULABLE, "message": message},), spec={"nodeName": None})


PENDING = unplaced("0/1 nodes: no GPU.")
STARTING = pod(waiting("ContainerCreating"), phase="Pending", conditions=(scheduled(100),))


def event(reason: str, message: str, *, seconds: float = 0, type: str = "Normal") -> PodEvent:
    about = {"uid": message, "pod": "train-x", "pod_uid": "u1"}
    return PodEvent(**about, type=type, reason=reason, message=message, at=at(seconds))


PULLED = event(
    "Pulled",
    'Successfully pulled image "train:1" in 40s (40s including waiting). Image size: 8589934592 bytes.',
    seconds=150,
)


def test_sidecar_that_does_not_start_is_told_beside_the_training() -> None:
    sidecar = waiting("ImagePullBackOff", 'Back-off pulling image "alpine"', name="airflow-xcom-sidecar")
    lines = WAIT.step(PodSnapshot(pod=pod(running(), sidecar)), at(5)).lines
    assert 'container airflow-xcom-sidecar waits: ImagePullBackOff: Back-off pulling image "alpine"' in lines


# -- deadlines ---------------------------------------------------------------------------------------------------


@given(seconds=st.floats(0, 2000))
def test_pod_without_a_node_is_late_after_its_time(seconds: float) -> None:
    progress = WAIT.step(PodSnapshot(pod=PENDING), at(seconds))
    assert (type(progress.error) is PodDeadline) == (seconds >= 600)


def test_error_of_a_late_pod_is_the_explanation() -> None:
    progress = WAIT.step(PodSnapshot(pod=PENDING, notes=("no g6.xlarge in us-west-2a",)), at(601))
    assert "got no node in 10 min 0 s (waits for a node: 0/1 nodes: no GPU; no g6.xlarge in us-west-2a)" in str(
        progress.error
    )


def test_pod_that_gets_no_node_for_want_of_machines_is_out_of_stock_and_not_late() -> None:
    why = OutOfStock("Pool train: 0 of 1 nodes. No capacity for g6.xlarge.", "Add zones.", pool="train", tried=[])
    snapshot = PodSnapshot(pod=PENDING, no_capacity=why)
    assert WAIT.step(snapshot, at(599)).error is None
    error = WAIT.step(snapshot, at(600)).error
    assert type(error) is OutOfStock
    assert str(error) == (
        "Pod train-x got no node in 10 min 0 s. Pool train: 0 of 1 nodes. No capacity for g6.xlarge. Add zones."
    )
    assert error.details == {"pool": "train", "tried": [], "pod": "train-x"}
    assert type(WAIT.step(PodSnapshot(pod=STARTING, no_capacity=why), at(400)).error) is PodDeadline


@given(seconds=st.floats(0, 2000))
def test_pod_that_idle_nodes_do_not_take_ends_with_the_scheduler_s_reason(seconds: float) -> None:
    error = WAIT.step(PodSnapshot(pod=PENDING, nodes=(NODE,), passed_over=True), at(seconds)).error
    assert (type(error) is PodUnschedulable) == (seconds >= 600)
    why = (
        "got no node in 10 min 0 s, for a reason other than the pods running on the pool's nodes (waits for a node: 0/1"
        " nodes: no"
    )
    assert error is None or why in str(error)


def test_a_taint_that_stays_is_named_with_what_to_do_about_it() -> None:
    waits = replace(
        unplaced("0/2 nodes are available: 2 node(s) had untolerated taint(s)."),
        tolerations=({"key": "nvidia.com/gpu", "operator": "Exists"},),
    )
    taints = (Taint.parse("example.com/agent=not-ready:NoSchedule"), Taint.parse("nvidia.com/gpu=true:NoSchedule"))
    step = WAIT.step(PodSnapshot(pod=waits, nodes=(replace(NODE, taints=taints),), passed_over=True), at(601))
    assert step.error is not None
    assert step.error.fix.startswith(
        "See what should take the taint example.com/agent=not-ready:NoSchedule off the node, or"
    )
    line = "node n1 is Ready, with the taint example.com/agent=not-ready:NoSchedule, which the pod does not tolerate"
    assert line in step.lines


def test_a_late_pod_is_told_what_would_bring_more_machines() -> None:
    error = WAIT.step(PodSnapshot(pod=PENDING, to_widen="Add nodes to the pool"), at(601)).error
    assert error is not None
    assert error.fix == "Add nodes to the pool, or raise schedule_timeout_seconds."


@given(seconds=st.floats(0, 4000))
def test_pod_whose_nodes_have_too_little_left_is_late_and_may_be_tried_again(seconds: float) -> None:
    """A node is on its way: the pool is not full."""
    waits = unplaced("0/1 nodes are available: 1 Insufficient cpu.")
    error = WAIT.step(PodSnapshot(pod=waits, nodes=(NODE,)), at(seconds)).error
    assert (error is not None) == (seconds >= 600)
    assert error is None or (type(error) is PodDeadline and error.retryable)
    assert error is None or "1 Insufficient cpu" in str(error)


def test_a_queued_pod_is_told_what_there_is_too_little_of_besides_gpus() -> None:
    queued = "the pool is full (all its nodes are up and in use): the pod is queued"
    for message, line in (
        ("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", queued),
        (
            "0/1 nodes are available: 1 Insufficient memory.",
            f"{queued} (0/1 nodes are available: 1 Insufficient memory)",
        ),
    ):
        snapshot = PodSnapshot(pod=unplaced(message), is_full=True, full_at=at(1))
        assert line in WAIT.step(snapshot, at(1)).lines


@pytest.mark.parametrize(("seconds", "is_told"), [(3600, False), (60, True)])
def test_a_deadline_that_a_policy_has_set_is_told_before_it_comes(seconds: int, is_told: bool) -> None:
    made: dict[str, Any] = {"annotations": {"airflow-gpu-provider/active-deadline-seconds": "3600"}}
    made["spec"] = {"activeDeadlineSeconds": seconds}
    for state in (pod(running(), **made), pod(waiting("ContainerCreating"), **made)):
        lines = WAIT.step(PodSnapshot(pod=state), at(1)).lines
        line = "the pod's activeDeadlineSeconds are 60, and not the 3600 that this package asked for: "
        assert any(each.startswith(line) for each in lines) == is_told


def test_labels_that_no_node_has_are_told_at_once() -> None:
    lines = WAIT.step(PodSnapshot(pod=PENDING, nodes=(NODE,), no_node_has="team=ml"), at(1)).lines
    assert "no node of the pool has team=ml, which the pod's node selector asks for" in lines


@given(full_until=st.floats(0, 5000), seconds=st.floats(0, 8000))
def test_time_in_the_queue_does_not_count(full_until: float, seconds: float) -> None:
    snapshot = PodSnapshot(pod=PENDING, full_at=at(full_until))
    assert (WAIT.step(snapshot, at(seconds)).error is not None) == (seconds >= full_until + 600)


@given(seconds=st.floats(100, 2000))
def test_container_has_its_time_from_the_node_on(seconds: float) -> None:
    progress = WAIT.step(PodSnapshot(pod=STARTING), at(seconds))
    assert (type(progress.error) is PodDeadline) == (seconds >= 400)


def test_error_of_a_pod_that_does_not_start_is_the_explanation() -> None:
    events = (
        event("TriggeredScaleUp", "pod triggered scale-up: [{gpu-a 0->1 (max: 3)}]"),
        event("FailedMount", "MountVolume.SetUp failed: no such secret", seconds=150, type="Warning"),
        event("Pulling", 'Pulling image "train:1"', seconds=200),
    )
    assert (
        "did not start in 5 min 0 s on node n1 (placed on node n1; "
        "FailedMount: MountVolume.SetUp failed: no such secret; pulls image train:1)"
    ) in str(WAIT.step(PodSnapshot(pod=STARTING, events=events), at(400)).error)


@pytest.mark.parametrize(
    ("state", "events", "says"),
    [
        (
            waiting("CreateContainerConfigError", 'configmap "training" not found'),
            (),
            'CreateContainerConfigError: configmap "training" not found). Create what it names',
        ),
        (
            waiting("ContainerCreating"),
            (event("FailedMount", 'MountVolume.SetUp failed for volume "c" : configmap "training" not found'),),
            "Create what it names",
        ),
        (waiting("ImagePullBackOff", "no such host"), (), "reach the image's registry"),
        (waiting("ContainerCreating"), (event("Pulling", 'Pulling image "train:1"', seconds=200),), "a smaller image"),
    ],
)
def test_error_of_a_pod_that_does_not_start_says_what_to_do(
    state: dict[str, Any], events: tuple[PodEvent, ...], says: str
) -> None:
    starting = pod(state, phase="Pending", conditions=(scheduled(0),))
    late = tuple(replace(each, at=each.at + timedelta(seconds=1)) for each in events)
    assert says in str(WAIT.step(PodSnapshot(pod=starting, events=late), at(300)).error)


def test_error_of_a_pod_that_an_autoscaler_brings_no_node_is_the_explanation() -> None:
    events = (event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 in backoff after failed scale-up"),)
    assert "cluster-autoscaler adds no node: 1 in backoff after failed scale-up" in str(
        WAIT.step(PodSnapshot(pod=PENDING, events=events), at(600)).error
    )


def test_running_pod_has_until_its_deadline() -> None:
    snapshot = PodSnapshot(pod=pod(running(at=160), conditions=(scheduled(100),)), events=(PULLED,))
    assert WAIT.step(snapshot, at(6 * 3600 - 1)).error is None
    assert (
        "had not finished at its deadline, 6 h 0 min after it was created"
        " (waited for a node: 1 min 40 s; image pull: 40 s; start: 20 s)"
    ) in str(WAIT.step(snapshot, at(6 * 3600)).error)


@pytest.mark.parametrize(("lasts", "now", "hangs"), [(59, 100, False), (60, 100, True), (3600, 69, False)])
def test_silence_of_a_pod_counts_from_its_start(lasts: float, now: float, hangs: bool) -> None:
    wait = replace(WAIT, hang_seconds=60)
    silence = Silence(lasts=timedelta(seconds=lasts), last_lines={0: "step 7"})
    seen = PodSnapshot(pod=pod(running(at=10)), silence=silence)
    progress = wait.step(seen, at(now))
    assert (type(progress.error) is GpuHung) is hangs
    assert WAIT.step(seen, at(now)).error is None
    assert wait.step(replace(seen, silence=None), at(now)).error is None
    assert wait.step(replace(seen, pod=pod(running(at=10), deleted_at=now - 1)), at(now)).error is None
    if progress.error is not None:
        assert progress.error.what == "Pod train-x has printed nothing for 1 min 0 s."
        assert progress.result is not None
    else:
        assert wait.next_deadline(seen, at(now)) == at(max(now - lasts, 10) + 60)


@given(seconds=st.floats(0, 30000), full=st.one_of(st.none(), st.floats(0, 5000)))
def test_step_changes_its_mind_only_at_the_next_deadline(seconds: float, full: float | None) -> None:
    for state in (PENDING, STARTING, pod(running()), pod(running(), deleted_at=50), pod(ended(143))):
        snapshot = PodSnapshot(pod=state, full_at=None if full is None else at(full))
        now, then = at(seconds), WAIT.next_deadline(PodSnapshot(pod=state, full_at=snapshot.full_at), at(seconds))
        before = WAIT.step(snapshot, now)
        if before.error is None and not before.done:
            assert then > now
            assert WAIT.step(snapshot, now + (then - now) * 0.99).error is None


# -- ends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exit_code", [137, 143])
@pytest.mark.parametrize("gone", [False, True])
def test_container_that_was_killed_as_its_node_went_down_is_preempted(exit_code: int, gone: bool) -> None:
    killed = PodSnapshot(pod=pod(ended(exit_code)), nodes=(NODE,), gone=gone)
    assert type(WAIT.step(killed, at(200)).error) is PodFailed
    for loss in (replace(killed, node_gone=True), replace(killed, nodes=(replace(NODE, ready=False),))):
        assert type(WAIT.step(loss, at(200)).error) is PodPreempted
    notice = replace(killed, nodes=(replace(NODE, leaving="spot interruption notice"),))
    assert "its node n1 is being removed, spot interruption notice" in str(WAIT.step(notice, at(200)).error)


def test_program_that_failed_on_a_node_that_goes_down_has_failed() -> None:
    failed = PodSnapshot(pod=pod(ended(1)), node_gone=True)
    assert type(WAIT.step(failed, at(200)).error) is PodFailed


def test_base_container_that_ended_is_the_end() -> None:
    snapshot = PodSnapshot(pod=pod(ended(0), running("exporter"), conditions=(scheduled(4),)))
    progress = WAIT.step(snapshot, at(61))
    assert progress.done
    assert progress.result == {
        "container_ended": True,
        "deletion_asked_at": None,
        "machine": "",
        "timeline": [
            {"phase": "waited for a node", "at": format_time(at(0)), "seconds": 4.0},
            {"phase": "start", "at": format_time(at(4)), "seconds": 6.0},
            {"phase": "ran", "at": format_time(at(10)), "seconds": 50.0},
        ],
    }


def test_container_that_was_killed_is_not_judged_before_its_node_spoke() -> None:
    killed = pod(ended(143, at=60))
    assert not WAIT.step(PodSnapshot(pod=killed), at(61)).error
    assert type(WAIT.step(PodSnapshot(pod=killed), at(96)).error) is PodFailed
    told = pod(ended(143, at=60), phase="Failed", reason="Terminated")
    assert type(WAIT.step(PodSnapshot(pod=told), at(61)).error) is PodPreempted


def test_lost_pods_are_preempted() -> None:
    assert type(WAIT.step(PodSnapshot(gone=True), at(5)).error) is PodPreempted
    assert type(WAIT.step(PodSnapshot(pod=pod(running()), node_gone=True), at(5)).error) is PodPreempted
    unseen = PodSnapshot(pod=pod(running()), gone=True, is_unseen=True)
    assert type(WAIT.step(unseen, at(5)).error) is EndUnknown
    assert type(WAIT.step(replace(unseen, node_gone=True), at(5)).error) is PodPreempted
    deleted = PodSnapshot(pod=pod(running(), deleted_at=50, grace=30))
    assert WAIT.step(deleted, at(109)).error is None
    assert "does not answer" in str(WAIT.step(deleted, at(111)).error)


def test_pod_that_had_finished_before_it_went_has_succeeded() -> None:
    assert WAIT.step(PodSnapshot(pod=pod(ended(0)), gone=True), at(70)).done
    assert WAIT.step(PodSnapshot(pod=pod(ended(0), phase="Succeeded"), node_gone=True), at(70)).done


# -- words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("snapshot", "lines"),
    [
        (PodSnapshot(), ()),
        (PodSnapshot(pod=PENDING), ("waits for a node: 0/1 nodes: no GPU",)),
        (
            PodSnapshot(pod=PENDING, nodes=(replace(NODE, ready=False),)),
            (
                "waits for a node: 0/1 nodes: no GPU",
                "node n1 joined (g6.xlarge, us-west-2a), not Ready yet",
            ),
        ),
        (
            PodSnapshot(pod=PENDING, nodes=(replace(NODE, gpus=0),)),
            (
                "waits for a node: 0/1 nodes: no GPU",
                "node n1 is Ready, its GPUs are not allocatable yet: driver or device plugin",
            ),
        ),
        (
            PodSnapshot(pod=PENDING, nodes=(NODE,), is_full=True, full_at=START),
            ("the pool is full (all its nodes are up and in use): the pod is queued (0/1 nodes: no GPU)",),
        ),
        (PodSnapshot(pod=STARTING), ("placed on node n1",)),
        (
            PodSnapshot(pod=STARTING, events=(event("Pulling", 'Pulling image "train:1"'),)),
            ("pulls image train:1", "placed on node n1"),
        ),
        (
            PodSnapshot(
                pod=STARTING,
                events=(
                    event("Pulling", 'Pulling image "train:1"'),
                    event("Pulled", 'Successfully pulled image "train:1" in 40s (40s including waiting)'),
                ),
            ),
            ("pulled image train:1 in 40 s", "placed on node n1"),
        ),
        (
            PodSnapshot(
                pod=pod(waiting("CreateContainerConfigError", "no secret"), phase="Pending", conditions=(scheduled(1),))
            ),
            ("placed on node n1", "container base waits: CreateContainerConfigError: no secret"),
        ),
        (PodSnapshot(pod=pod(running())), ("container base started on node n1",)),
        (
            PodSnapshot(pod=pod(running(), conditions=(disrupted(),), deleted_at=50)),
            (
                "container base started on node n1",
                "the pod is being preempted: EvictionByEvictionAPI: Eviction API: evicting",
            ),
        ),
    ],
)
def test_lines(snapshot: PodSnapshot, lines: tuple[str, ...]) -> None:
    assert WAIT.step(snapshot, at(55)).lines == lines


# -- the record --------------------------------------------------------------------------------------------------


def test_record_survives_the_database() -> None:
    assert PodWait.from_record(json.loads(json.dumps(WAIT.to_record()))) == WAIT


def test_record_of_a_newer_release_still_loads() -> None:
    assert PodWait.from_record({**WAIT.to_record(), "max_preemptions": 3}) == WAIT


def test_record_of_this_release_is_kept_readable() -> None:
    """A triggerer may be upgraded while pods run: a field may be added with a default, never renamed or dropped."""
    assert {field.name for field in fields(PodWait)} >= {
        "namespace",
        "name",
        "uid",
        "base_container",
        "started",
        "schedule_seconds",
        "start_seconds",
        "deadline",
    }


def test_timeline_has_only_what_is_over() -> None:
    assert timeline(PENDING) == []
    assert timeline(STARTING) == [{"phase": "waited for a node", "at": format_time(at(0)), "seconds": 100.0}]
    assert [each["phase"] for each in timeline(STARTING, (PULLED,))] == ["waited for a node", "image pull"]


@given(seconds=st.floats(-10, 200))
def test_timeline_has_the_time_in_the_queue_apart_from_that_without_a_node(seconds: float) -> None:
    turn, node = timeline(STARTING, (), at(seconds))
    assert (turn["phase"], node["phase"]) == ("waited for its turn", "waited for a node")
    assert turn["seconds"] == pytest.approx(min(max(seconds, 0), 100), abs=0.1)
    assert turn["seconds"] + node["seconds"] == pytest.approx(100, abs=0.2)


def test_timeline_has_the_pulls_before_the_container_with_their_size() -> None:
    ran = pod(ended(0, started=160, at=200), conditions=(scheduled(100),))
    quick = event("Pulled", 'Successfully pulled image "init:1" in 12ms (12ms including waiting)', seconds=101)
    sidecars = event("Pulled", 'Successfully pulled image "exporter:1" in 30s', seconds=190)
    phases = timeline(ran, (quick, PULLED, sidecars))
    assert phases == [
        {"phase": "waited for a node", "at": format_time(at(0)), "seconds": 100.0},
        {"phase": "image pull", "at": format_time(at(110)), "seconds": 40.0, "image": "train:1", "bytes": 8589934592},
        {"phase": "start", "at": format_time(at(140)), "seconds": 20.0},
        {"phase": "ran", "at": format_time(at(160)), "seconds": 40.0},
    ]
    assert [phase_in_words(phase) for phase in phases[:2]] == [
        "waited for a node   100.0 s",
        "image pull           40.0 s  train:1, 8.0 GiB",
    ]


# -- a node that is about to go --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({}, None),
        ({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}, None),
        (
            {"taints": [{"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}]},
            "node n1 is about to be removed: spot interruption notice",
        ),
        (
            {"taints": [{"key": "aws-node-termination-handler/rebalance-recommendation", "effect": "NoSchedule"}]},
            "node n1 is about to be removed: spot rebalance recommendation",
        ),
        (
            {"taints": [{"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}]},
            "node n1 is about to be removed: Google Cloud preempts or ends it",
        ),
        ({"unschedulable": True}, "node n1 was cordoned under the pod: it may be drained"),
    ],
)
def test_a_running_pods_node_that_is_about_to_go_is_told(spec: dict[str, Any], line: str | None) -> None:
    raw = {"metadata": {"name": "n1", "uid": "n1", "creationTimestamp": stamp(0)}, "spec": spec}
    other = replace(NODE, name="n2", leaving="spot interruption notice")
    lines = WAIT.step(PodSnapshot(pod=pod(running()), nodes=(Node.parse(raw), other)), at(700)).lines
    assert [each for each in lines if each.startswith("node ")] == ([line] if line else [])


def test_time_at_a_scheduling_gate_does_not_count() -> None:
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    gated = pod(phase="Pending", spec={"nodeName": None, "schedulingGates": gates})
    progress = WAIT.step(PodSnapshot(pod=gated), at(900))
    assert progress.error is None
    assert progress.lines == ("waits to be admitted: its scheduling gate kueue.x-k8s.io/admission is not lifted yet",)
    admitted = PodSnapshot(pod=PENDING, full_at=at(900))
    assert WAIT.step(admitted, at(1499)).error is None
    assert type(WAIT.step(admitted, at(1500)).error) is PodDeadline

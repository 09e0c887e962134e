"""When a pod is queued in a full pool, what the scheduler and new nodes say against that, and what time counts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.api.informer import Change
from airflow_gpu_provider.errors import PermissionDenied, PodDeadline
from airflow_gpu_provider.scaling.wait.pool_updates import PoolUpdates
from airflow_gpu_provider.training.watch.surroundings import NEW
from tests.unit.training.test_pod_wait import WAIT
from tests.unit.training.test_pod_watch import NODES, NOW, PODS, a_view, present, raw_node, raw_pod, synced, trouble

MISMATCH = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."
TAKEN = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {a: b}."
NO_ROOM = "0/2 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 1 node(s) had untolerated taint {a: b}."


def unschedulable(message: str, **selector: str) -> dict[str, Any]:
    raw = raw_pod()
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    raw["status"]["conditions"] = [condition]
    raw["spec"]["nodeSelector"] = selector
    return raw


def labelled(raw: dict[str, Any], **labels: str) -> dict[str, Any]:
    raw["metadata"]["labels"] = labels
    return raw


@pytest.mark.parametrize(
    ("message", "is_full", "passed_over"),
    [("", True, False), (TAKEN, True, False), (NO_ROOM, True, False), (MISMATCH, False, True)],
)
def test_pod_is_queued_only_while_the_scheduler_finds_other_pods_in_the_way(
    message: str, is_full: bool, passed_over: bool
) -> None:
    view = a_view(max_nodes=1)
    view.take([present(PODS, unschedulable(message)), present(NODES, raw_node()), synced(NODES)], NOW)
    snapshot = view.snapshot(NOW)
    assert (snapshot.is_full, snapshot.passed_over) == (is_full, passed_over)
    assert (snapshot.full_at is not None) == is_full


def test_a_node_that_karpenter_removes_neither_fills_the_pool_nor_refuses_the_pod() -> None:
    """The scheduler keeps pods off it for its taint; there is nothing that the pod could do about that."""
    goes = {**raw_node(), "spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}}
    said = "0/1 nodes are available: 1 node(s) had untolerated taint(s)."
    view = a_view(max_nodes=1)
    view.take([present(PODS, unschedulable(said)), present(NODES, goes), synced(NODES)], NOW)
    snapshot = view.snapshot(NOW)
    assert (snapshot.is_full, snapshot.passed_over, snapshot.full_at) == (False, False, None)
    step = WAIT.step(snapshot, NOW + timedelta(seconds=WAIT.schedule_seconds))
    assert "node n1 is being removed: Karpenter disrupts it" in step.lines
    assert isinstance(step.error, PodDeadline)


def test_pod_for_which_an_empty_node_has_too_little_room_is_not_queued() -> None:
    """What DaemonSets' pods take of a node, it never gives back; the trainings on other nodes do."""
    view = a_view(max_nodes=2)
    view.take(
        [present(PODS, unschedulable(NO_ROOM)), present(NODES, raw_node("n1")), present(NODES, raw_node("n2"))], NOW
    )
    for empty, passed_over in (((), False), (("n2",), True), (("n1", "n2"), True), (("left",), False)):
        view.take_update(PoolUpdates(empty_nodes=frozenset(empty)))
        snapshot = view.snapshot(NOW)
        assert (snapshot.is_full, snapshot.passed_over) == (not passed_over, passed_over), empty


def test_pod_that_is_queued_for_room_has_its_time_from_then_on() -> None:
    view = a_view(max_nodes=1)
    view.take([present(PODS, unschedulable(NO_ROOM)), present(NODES, raw_node())], NOW)
    hours_later = WAIT.deadline - timedelta(hours=1)
    assert WAIT.step(view.snapshot(hours_later), hours_later).error is None
    at_its_end = WAIT.step(view.snapshot(WAIT.deadline), WAIT.deadline).error
    assert isinstance(at_its_end, PodDeadline)
    assert at_its_end.retryable


def test_pod_is_queued_no_more_once_its_siblings_have_ended() -> None:
    view = a_view(max_nodes=1)
    view.take([present(PODS, unschedulable(TAKEN)), present(NODES, raw_node()), synced(NODES)], NOW)
    later = NOW + timedelta(minutes=5)
    view.take([present(PODS, unschedulable(MISMATCH))], later)
    assert not view.snapshot(later).is_full
    assert view.snapshot(later).full_at == NOW


def test_pod_of_a_pool_without_usable_nodes_is_not_passed_over() -> None:
    view = a_view(max_nodes=1)
    view.take([present(PODS, unschedulable(MISMATCH)), present(NODES, raw_node(gpus=0))], NOW)
    assert not view.snapshot(NOW).passed_over


def test_pod_is_not_queued_for_nodes_without_the_labels_that_it_selects() -> None:
    """Other nodes of the cluster may have the labels, and no GPUs."""
    view = a_view(max_nodes=1)
    view.take([present(PODS, unschedulable(TAKEN, team="ml")), present(NODES, raw_node())], NOW)
    snapshot = view.snapshot(NOW)
    assert (snapshot.is_full, snapshot.passed_over, snapshot.no_node_has) == (False, True, "team=ml")
    view.take([present(NODES, labelled(raw_node(), team="ml"))], NOW)
    snapshot = view.snapshot(NOW)
    assert (snapshot.is_full, snapshot.passed_over, snapshot.no_node_has) == (True, False, "")


def test_pool_is_full_while_all_its_nodes_are_up() -> None:
    view = a_view(max_nodes=2)
    view.take([present(PODS, raw_pod()), present(NODES, raw_node("n1")), synced(NODES)], NOW)
    assert not view.snapshot(NOW).is_full
    view.take([present(NODES, raw_node("n2"))], NOW)
    assert view.snapshot(NOW).full_at == NOW
    later = NOW + timedelta(minutes=5)
    assert view.snapshot(later).full_at == later
    view.take([Change(resource=NODES, kind="gone", raw=raw_node("n2"))], later)
    assert not view.snapshot(later).is_full
    assert view.snapshot(later).full_at == NOW


@pytest.mark.parametrize("was_there", [False, True], ids=["joins", "gets its GPUs"])
def test_pool_is_not_called_full_when_a_node_has_just_become_usable(was_there: bool) -> None:
    """The scheduler is about to take the pod there. Its time for a node starts anew all the same."""
    view = a_view(max_nodes=2)
    before = [present(NODES, raw_node("n2", gpus=0))] if was_there else []
    view.take([present(PODS, raw_pod()), present(NODES, raw_node("n1")), *before, synced(NODES)], NOW)
    view.take([present(NODES, raw_node("n2"))], NOW)
    assert not any("full" in line for line in WAIT.step(view.snapshot(NOW), NOW).lines)
    assert view.snapshot(NOW).full_at == NOW
    assert view.longest <= NEW.total_seconds()
    assert "the pool is full" in WAIT.step(view.snapshot(NOW + NEW), NOW + NEW).lines[-1]


@pytest.mark.parametrize("told", [synced(NODES), trouble(NODES, PermissionDenied("No."))], ids=["shown", "refused"])
def test_pod_is_late_for_its_node_only_once_the_nodes_are_known(told: Change) -> None:
    """They have a watch of their own, which may be later than the pods': the pool may be full, and the pod queued."""
    view = a_view()
    view.take([present(PODS, raw_pod()), synced(PODS)], NOW)
    created = view.snapshot(NOW).pod
    assert created is not None
    assert created.created_at + timedelta(seconds=WAIT.schedule_seconds) < NOW < WAIT.deadline
    assert WAIT.step(view.snapshot(NOW), NOW).error is None
    view.take([told], NOW)
    assert type(WAIT.step(view.snapshot(NOW), NOW).error) is PodDeadline


def test_node_whose_gpus_are_not_there_yet_does_not_fill_the_pool() -> None:
    view = a_view()
    view.take([present(PODS, raw_pod()), present(NODES, raw_node(gpus=0))], NOW)
    assert not view.snapshot(NOW).is_full

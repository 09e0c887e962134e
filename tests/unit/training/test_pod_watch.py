"""What a pod's watch makes of the changes that it is told."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.cluster.api.informer import Change, Feed
from airflow_gpu_provider.cluster.api.watched import Resource, pod_events, pods, pool_nodes
from airflow_gpu_provider.cluster.model.node import CORDONED_BY
from airflow_gpu_provider.errors import (
    ClusterUnreachable,
    CredentialsError,
    GpuError,
    OutOfStock,
    PermissionDenied,
    PodDeadline,
    PodPreempted,
    PodUnschedulable,
)
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.wait.pool_updates import PoolUpdates
from airflow_gpu_provider.training.watch.pod_view import PodView
from airflow_gpu_provider.training.watch.surroundings import AFTER_FAILURE
from tests.unit.training.test_pod_placement import a_pool
from tests.unit.training.test_pod_wait import WAIT

PODS, EVENTS = pods("ml"), pod_events("ml")
(NODES,) = pool_nodes(a_pool().node_selector)
NOW = datetime(2026, 1, 1, 3, 0, tzinfo=UTC)


class Api:
    """An API server with one answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def get(self, path: str) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Woken:
    """A feed that counts how often it is woken, and answers a look at the pod itself."""

    def __init__(self, answer: Any = None) -> None:
        self.times = 0
        self.api = Api(answer)

    def wake(self) -> None:
        self.times += 1


def a_view(max_nodes: int = 1, answer: Any = None) -> PodView:
    return PodView(WAIT, a_pool(max_nodes=max_nodes), cast("Feed", Woken(answer)))


def refusal(view: PodView, now: datetime) -> GpuError | None:
    asyncio.run(view.confirm(now))
    return view.refusal(now)


def present(resource: Resource, raw: dict[str, Any]) -> Change:
    return Change(resource=resource, kind="present", raw=raw)


def synced(resource: Resource) -> Change:
    return Change(resource=resource, kind="synced")


def trouble(resource: Resource, error: GpuError) -> Change:
    return Change(resource=resource, kind="trouble", error=error)


def raw_pod(uid: str = "u1", *, scheduled: bool = False) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": "Pending"}
    if scheduled:
        stamp = "2026-01-01T02:30:00Z"
        status["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp}]
    metadata: dict[str, Any] = {"namespace": "ml", "name": "train-x", "uid": uid, "labels": {POOL_LABEL: "train-gpu"}}
    metadata["creationTimestamp"] = "2026-01-01T02:00:00Z"
    return {"metadata": metadata, "spec": {"nodeName": "n1" if scheduled else None}, "status": status}


def raw_node(name: str = "n1", gpus: int = 1) -> dict[str, Any]:
    metadata = {"name": name, "uid": name, "creationTimestamp": "2026-01-01T01:00:00Z", "labels": {}}
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T01:00:00Z"}]
    return {"metadata": metadata, "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}, "conditions": conditions}}


def sized(raw: dict[str, Any], *, cpu: str, memory: str, gpus: str = "1", kind: str = "") -> dict[str, Any]:
    """A node with what its kubelet says that pods can have of it."""
    raw["status"]["allocatable"] = {"cpu": cpu, "memory": memory, "nvidia.com/gpu": gpus}
    raw["status"]["capacity"] = {"nvidia.com/gpu": gpus}
    raw["metadata"]["labels"] = {"node.kubernetes.io/instance-type": kind}
    return raw


def asking(raw: dict[str, Any], **requests: str) -> dict[str, Any]:
    raw["spec"]["containers"] = [{"name": "base", "resources": {"requests": requests}}]
    return raw


def raw_event(pod_uid: str, uid: str = "e1", at: str = "2026-01-01T02:00:00Z") -> dict[str, Any]:
    about = {"kind": "Pod", "name": "train-x", "uid": pod_uid}
    return {"metadata": {"uid": uid}, "involvedObject": about, "reason": "R", "message": uid, "lastTimestamp": at}


@pytest.mark.parametrize("exit_code", [0, 137, 143])
def test_an_end_that_is_seen_only_with_the_kubelets_last_delete_is_a_preemption(exit_code: int) -> None:
    """That delete has no grace period, and moves the deletionTimestamp to the present, past the container's end."""
    view, pod = a_view(), raw_pod(scheduled=True)
    pod["metadata"] |= {"deletionTimestamp": "2026-01-01T03:00:30Z", "deletionGracePeriodSeconds": 30}
    ended, last = deepcopy(pod), deepcopy(pod)
    ended["status"] |= {"phase": "Failed" if exit_code else "Succeeded"}
    ended["status"]["containerStatuses"] = [
        {"name": "base", "state": {"terminated": {"exitCode": exit_code, "finishedAt": "2026-01-01T03:00:06Z"}}}
    ]
    last["status"] = ended["status"]
    last["metadata"] |= {"deletionTimestamp": "2026-01-01T03:00:07Z", "deletionGracePeriodSeconds": 0}
    gone = Change(resource=PODS, kind="gone", raw=last, is_seen=True)
    view.take([present(PODS, pod), present(PODS, ended), present(PODS, last), gone], NOW)
    assert type(WAIT.step(view.snapshot(NOW), NOW).error) is PodPreempted


DISRUPTED = {
    "reason": "Disrupted",
    "source": {"component": "karpenter"},
    "message": "Deleting the pod to accommodate the terminationTime 2026-01-01 03:00:30 +0000 UTC of the node.",
}


@pytest.mark.parametrize("is_gone", [False, True], ids=["ended", "gone"])
def test_a_pod_that_karpenter_deletes_is_preempted_in_its_words(is_gone: bool) -> None:
    view, pod = a_view(), raw_pod()
    pod["metadata"] |= {"deletionTimestamp": "2026-01-01T03:00:30Z", "deletionGracePeriodSeconds": 30}
    view.take([present(PODS, pod), present(EVENTS, raw_event("u1") | DISRUPTED)], NOW)
    said = "Karpenter deletes it for the terminationGracePeriod of its node, which ends at 2026-01-01 03:00:30"
    assert any(
        f"the pod is being preempted: Disrupted: {said}" in line for line in WAIT.step(view.snapshot(NOW), NOW).lines
    )
    if is_gone:
        view.take([Change(resource=PODS, kind="gone", raw=pod, is_seen=True)], NOW)
        asyncio.run(view.confirm(NOW))
    else:
        pod["status"]["containerStatuses"] = [
            {"name": "base", "state": {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T03:00:20Z"}}}
        ]
        view.take([present(PODS, pod)], NOW)
    error = WAIT.step(view.snapshot(NOW), NOW).error
    assert isinstance(error, PodPreempted)
    assert said in error.what


def test_what_karpenter_says_of_a_pod_that_is_not_deleted_is_not_its_end() -> None:
    view = a_view()
    view.take([present(PODS, raw_pod()), present(EVENTS, raw_event("u1") | DISRUPTED)], NOW)
    assert not any("preempted" in line for line in WAIT.step(view.snapshot(NOW), NOW).lines)


def test_an_eviction_says_why() -> None:
    view, pod = a_view(), raw_pod()
    pod["metadata"] |= {"deletionTimestamp": "2026-01-01T03:00:30Z", "deletionGracePeriodSeconds": 30}
    by = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API"}
    pod["status"]["conditions"] = [by]
    evicted = {"reason": "Evicted", "source": {"component": "karpenter"}, "message": "Evicted pod: Underutilized"}
    view.take([present(PODS, pod), present(EVENTS, raw_event("u1") | evicted)], NOW)
    said = "the pod is being preempted: EvictionByEvictionAPI: Karpenter evicts it: Underutilized"
    assert said in WAIT.step(view.snapshot(NOW), NOW).lines


def test_another_pod_of_the_same_name_is_not_this_one() -> None:
    view = a_view()
    view.take([present(PODS, raw_pod(uid="another"))], NOW)
    assert view.snapshot(NOW).pod is None
    view.take([Change(resource=PODS, kind="gone", raw=raw_pod(uid="another"))], NOW)
    assert not view.snapshot(NOW).gone


def test_events_of_the_last_pod_of_that_name_are_left_out_and_the_rest_is_in_order() -> None:
    view = a_view()
    view.take(
        [
            present(EVENTS, raw_event("another", "e0")),
            present(EVENTS, raw_event("u1", "late", at="2026-01-01T02:10:00Z")),
            present(EVENTS, raw_event("u1", "early")),
        ],
        NOW,
    )
    assert [event.message for event in view.snapshot(NOW).events] == ["early", "late"]


@pytest.mark.parametrize(
    ("pool", "is_told"),
    [
        (a_pool(), False),
        (replace(a_pool(), scaling="autoscaler"), True),
        (KubernetesGpuPool(name="lab", nodes=["n1"], gpus_per_node=1), False),
        (KubernetesGpuPool(name="lab", provisioner="karpenter", node_selector_labels={"a": "b"}), False),
        (KubernetesGpuPool(name="lab", provisioner="cluster-autoscaler", node_selector_labels={"a": "b"}), True),
    ],
    ids=["direct", "autoscaler", "bare metal", "Karpenter", "cluster-autoscaler"],
)
def test_cluster_autoscaler_is_heard_only_where_it_adds_the_nodes(pool: GpuPool, is_told: bool) -> None:
    """It says of each pending pod of the cluster that no group of its own would do."""
    view = PodView(WAIT, pool, cast("Feed", Woken(None)))
    said = raw_event("u1") | {"reason": "NotTriggerScaleUp", "message": "pod didn't trigger scale-up: 2 didn't match"}
    view.take([present(PODS, raw_pod()), present(EVENTS, said)], NOW)
    assert any("cluster-autoscaler" in line for line in WAIT.step(view.snapshot(NOW), NOW).lines) == is_told


def test_pod_whose_node_this_package_released_is_told_who_did_and_what_to_do() -> None:
    by, node = "etl/train at 2026-01-01T02:59:00Z", raw_node()
    cordoned = deepcopy(node) | {"spec": {"unschedulable": True}}
    cordoned["metadata"]["annotations"] = {CORDONED_BY: by}
    pod = raw_pod(scheduled=True)
    stayed, released = a_view(), a_view()
    stayed.take([present(PODS, pod), present(NODES, cordoned), present(NODES, node)], NOW)
    released.take([present(PODS, pod), present(NODES, node), present(NODES, cordoned)], NOW)
    for view, is_told in ((stayed, False), (released, True)):
        view.take([Change(resource=kind, kind="gone", raw=raw) for kind, raw in ((PODS, pod), (NODES, node))], NOW)
        asyncio.run(view.confirm(NOW))
        error = WAIT.step(view.snapshot(NOW), NOW).error
        assert isinstance(error, PodPreempted)
        assert (error.details.get("released_by") == by) == is_told
        assert (f"the time of its run was over, and {by} released the node" in str(error)) == is_told


def test_machine_of_a_node_that_left_is_still_known() -> None:
    view = a_view()
    node = raw_node() | {"spec": {"providerID": "aws:///us-west-2a/i-0a"}}
    view.take([present(PODS, raw_pod())], NOW)
    assert view.snapshot(NOW).machine == ""
    view.take([present(PODS, raw_pod(scheduled=True)), present(NODES, node)], NOW)
    view.take([Change(resource=NODES, kind="gone", raw=node)], NOW)
    assert view.snapshot(NOW).machine == "i-0a"
    assert (WAIT.step(view.snapshot(NOW), NOW).result or {})["machine"] == "i-0a"


def test_pod_waits_for_a_node_until_it_has_one() -> None:
    view = a_view()
    assert not view.waits_for_node
    view.take([present(PODS, raw_pod())], NOW)
    assert view.waits_for_node
    view.take([present(PODS, raw_pod(scheduled=True))], NOW)
    assert not view.waits_for_node


def test_api_server_that_is_away_is_told_once() -> None:
    view = a_view()
    away = [trouble(resource, ClusterUnreachable(f"No answer to {resource.path}.")) for resource in (PODS, NODES)]
    view.take(away, NOW)
    assert view.snapshot(NOW).notes == ("the API server does not answer; the wait continues",)
    assert refusal(view, NOW) is None
    view.take([synced(PODS), synced(NODES)], NOW)
    assert view.snapshot(NOW).notes == ()


def test_permission_that_only_explains_is_not_needed() -> None:
    view = a_view()
    view.take([trouble(EVENTS, PermissionDenied("May not list events."))], NOW)
    assert refusal(view, WAIT.deadline - timedelta(seconds=1)) is None
    assert view.snapshot(NOW).notes == ("PermissionDenied: May not list events.",)


@pytest.mark.parametrize("cls", [PermissionDenied, CredentialsError, ClusterUnreachable])
def test_pod_that_was_seen_outlives_every_refusal(cls: type[GpuError]) -> None:
    view = a_view()
    view.take([present(PODS, raw_pod(scheduled=True)), trouble(PODS, cls("No."))], NOW)
    assert refusal(view, NOW) is None
    assert refusal(view, NOW + timedelta(hours=2)) is None


@pytest.mark.parametrize(
    ("answer", "lasts"),
    [
        (PermissionDenied("May not get pods."), timedelta(minutes=5)),
        (CredentialsError("Who?"), None),
        (ClusterUnreachable("Away."), None),
    ],
)
def test_pod_that_was_never_seen_is_given_up_when_a_refusal_has_lasted(
    answer: GpuError, lasts: timedelta | None
) -> None:
    view = a_view(answer=answer)
    view.take([trouble(PODS, answer)], NOW)
    end = WAIT.deadline if lasts is None else NOW + lasts
    assert refusal(view, NOW) is None
    assert refusal(view, end - timedelta(seconds=1)) is None
    assert refusal(view, end) is answer


def test_refusal_that_the_watch_met_last_and_that_is_over_is_none() -> None:
    view = a_view(answer=raw_pod())
    view.take([trouble(PODS, PermissionDenied("May not list pods."))], NOW)
    assert refusal(view, NOW) is None
    assert refusal(view, NOW + timedelta(minutes=5)) is None
    assert view.waits_for_node


def test_pod_that_is_not_there_when_it_is_asked_for_is_gone() -> None:
    view = a_view(answer=None)
    view.take([trouble(PODS, PermissionDenied("May not list pods."))], NOW)
    assert refusal(view, NOW) is None
    assert refusal(view, NOW + timedelta(minutes=5)) is None
    assert view.snapshot(NOW).gone
    assert view.snapshot(NOW).is_unseen


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_pod_s_going_is_seen_by_its_watch_and_not_by_a_list(is_seen: bool) -> None:
    view = a_view(answer=None)
    view.take([present(PODS, raw_pod()), synced(PODS)], NOW)
    view.take([Change(resource=PODS, kind="gone", raw=raw_pod(), is_seen=is_seen)], NOW)
    asyncio.run(view.confirm(NOW))
    assert view.snapshot(NOW).gone
    assert view.snapshot(NOW).is_unseen is not is_seen


def test_a_pod_that_lost_its_label_before_it_went_was_not_seen_going() -> None:
    view = a_view(answer=raw_pod())
    view.take([present(PODS, raw_pod()), synced(PODS)], NOW)
    view.take([Change(resource=PODS, kind="gone", raw=raw_pod())], NOW)
    asyncio.run(view.confirm(NOW))
    assert not view.snapshot(NOW).gone
    cast("Woken", view._feed).api.answer = None
    asyncio.run(view.confirm(NOW + timedelta(minutes=2)))
    assert view.snapshot(NOW).is_unseen


def test_look_at_the_pod_itself_that_fails_is_one_that_is_tried_again() -> None:
    view = a_view(answer=PermissionDenied("May not get pods."))
    view.take([synced(PODS)], NOW)
    assert refusal(view, NOW) is None
    assert view.snapshot(NOW).notes == ("PermissionDenied: May not get pods.",)
    cast("Woken", view._feed).api.answer = raw_pod()
    asyncio.run(view.confirm(NOW + AFTER_FAILURE))
    assert view.snapshot(NOW).notes == ()
    assert view.waits_for_node


def test_what_the_pools_keeper_says_is_told_at_once_and_once() -> None:
    view, why = a_view(), OutOfStock("Pool train-gpu: 0 of 1 nodes.")
    for no_capacity in (None, why):
        view.take_update(PoolUpdates(log_lines=("no g6.xlarge in us-west-2a",), no_capacity=no_capacity))
    assert view.snapshot(NOW).notes == ("no g6.xlarge in us-west-2a",)
    assert view.snapshot(NOW).no_capacity is why
    assert cast("Woken", view._feed).times == 1


# -- larger than any node --------------------------------------------------------------------------------------


def test_pod_larger_than_its_kind_of_node_turns_out_to_be_fails_at_once() -> None:
    view = PodView(WAIT, a_pool(instance_types=["g6.xlarge", "g5.xlarge"], max_nodes=2), cast("Feed", Woken()))
    view.take([present(PODS, asking(raw_pod(), memory="15500Mi"))], NOW)
    assert view.snapshot(NOW).too_large is None  # the catalogue: 16 GiB, less what an EKS node keeps at least
    small = sized(raw_node("n1"), cpu="3920m", memory="15000Mi", kind="g6.xlarge")
    view.take([present(NODES, small)], NOW)
    assert view.snapshot(NOW).too_large is None, "the other type may be large enough"
    view.take([present(NODES, sized(raw_node("n2"), cpu="3920m", memory="15000Mi", kind="g5.xlarge"))], NOW)
    error = view.snapshot(NOW).too_large
    assert isinstance(error, PodUnschedulable)
    assert "g6.xlarge has 3.92 CPUs, 14.6 GiB of memory" in str(error)
    assert str(WAIT.step(view.snapshot(NOW), NOW).error) == str(error)
    view.take([present(PODS, asking(raw_pod(scheduled=True), memory="15500Mi"))], NOW)
    assert view.snapshot(NOW).too_large is None


def test_pod_larger_than_all_given_nodes_fails_when_all_are_known() -> None:
    pool = KubernetesGpuPool(name="bare-metal", nodes=("n1", "n2"))
    view, (nodes,) = PodView(WAIT, pool, cast("Feed", Woken())), pool_nodes(pool.node_selector)
    view.take([present(PODS, asking(raw_pod(), **{"nvidia.com/gpu": "2"}))], NOW)
    view.take([present(nodes, sized(raw_node("n1"), cpu="8", memory="32Gi"))], NOW)
    view.take([synced(nodes)], NOW)
    assert view.snapshot(NOW).too_large is None, "the second node is not here yet"
    view.take([present(nodes, raw_node("n2"))], NOW)
    assert view.snapshot(NOW).too_large is None, "its kubelet has not said how large it is"
    view.take([present(nodes, sized(raw_node("n2"), cpu="8", memory="32Gi", gpus="0"))], NOW)
    assert view.snapshot(NOW).too_large is None, "its device plugin does not run yet"
    view.take([present(nodes, sized(raw_node("n2"), cpu="8", memory="32Gi"))], NOW)
    assert "2 GPUs, more than any machine of pool bare-metal has" in str(view.snapshot(NOW).too_large)


def test_a_provisioner_may_bring_a_larger_node() -> None:
    labels = {"karpenter.sh/nodepool": "gpu"}
    pool = KubernetesGpuPool(name="karpenter", node_selector_labels=labels, provisioner="karpenter")
    view, (nodes,) = PodView(WAIT, pool, cast("Feed", Woken())), pool_nodes(pool.node_selector)
    view.take([present(PODS, asking(raw_pod(), memory="99Gi"))], NOW)
    view.take([present(nodes, sized(raw_node("n1"), cpu="8", memory="32Gi")), synced(nodes)], NOW)
    assert view.snapshot(NOW).too_large is None


def test_a_pod_that_no_demand_covers_has_the_pool_looked_at_once_it_is_placed() -> None:
    """On a node that was there it waits for nothing, and the switch knows of the demand that there was before it."""
    for is_covered, needed in ((True, False), (False, True)):
        view = PodView(replace(WAIT, is_covered=is_covered), a_pool(), cast("Feed", Woken()))
        view.take([present(PODS, raw_pod(scheduled=True))], NOW)
        assert view.needs_pool_loop is needed
        view.take_update(PoolUpdates())
        assert not view.needs_pool_loop


def test_a_pod_at_a_scheduling_gate_is_no_demand_and_has_nobody_look_after_the_pool() -> None:
    view, raw = a_view(), raw_pod()
    raw["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    view.take([present(PODS, raw)], NOW)
    assert not view.needs_pool_loop
    view.take([present(PODS, raw_pod())], NOW)
    assert view.needs_pool_loop


def test_a_look_before_the_pod_is_placed_is_not_the_one() -> None:
    view = PodView(replace(WAIT, is_covered=False), a_pool(), cast("Feed", Woken()))
    view.take([present(PODS, raw_pod())], NOW)
    view.take_update(PoolUpdates())
    view.take([present(PODS, raw_pod(scheduled=True))], NOW)
    assert view.needs_pool_loop


@pytest.mark.parametrize("cls", [ClusterUnreachable, PermissionDenied])
def test_deadline_that_passes_while_the_pod_cannot_be_looked_at_is_not_believed(cls: type[GpuError]) -> None:
    """It has got its node, and runs, for all that is known."""
    view = a_view(answer=cls("No."))
    view.take([present(PODS, raw_pod()), trouble(PODS, cls("No.")), synced(NODES)], NOW)
    asyncio.run(view.confirm(NOW))
    late = WAIT.step(view.snapshot(NOW), NOW)
    assert isinstance(late.error, PodDeadline)
    assert not asyncio.run(view.believes(late.error, NOW))
    assert asyncio.run(view.believes(late.error, WAIT.deadline))
    view.take([synced(PODS), present(PODS, raw_pod())], NOW)
    assert asyncio.run(view.believes(late.error, NOW))


@pytest.mark.parametrize("told", [synced(EVENTS), trouble(EVENTS, PermissionDenied("No."))], ids=["shown", "refused"])
def test_end_waits_for_the_events_which_have_a_watch_of_their_own(told: Change) -> None:
    """The time line has the pull of an image from them. They may be late, and may not be read at all."""
    view = a_view()
    view.take([present(PODS, raw_pod(scheduled=True)), synced(PODS)], NOW)
    assert view.longest > 2
    assert not view.has_settled(NOW)
    assert view.longest == 2
    assert view.has_settled(NOW + timedelta(seconds=2))
    view.take([told], NOW)
    assert view.has_settled(NOW)

"""The stand-in autoscaler's pure decisions: what fits, what grows, what stays, which group waits."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sandbox.autoscaler import AutoscalerTimings, FailedLaunch, NodeGroup, NodeTemplate
from gpu_sandbox.autoscaler.backoff import Backoffs
from gpu_sandbox.autoscaler.fitting import selected, why_not
from gpu_sandbox.autoscaler.groups import SharedLimit
from gpu_sandbox.autoscaler.scale_down import blocks
from gpu_sandbox.autoscaler.scale_up import ScaleUp, reasons_text, without_room, worth_a_machine
from gpu_sandbox.manual_clock import ManualClock
from gpu_sandbox.nodes.spec import Taint

SIZE = {"pods": Decimal(110), "cpu": Decimal(4), "memory": Decimal(16 * 2**30), "nvidia.com/gpu": Decimal(1)}
GPU_TAINT = Taint(key="nvidia.com/gpu", value="true")


def pod(name: str = "train", *, gpus: int = 1, **spec: Any) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"cpu": "1", "memory": "1Gi"}}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "main", "resources": resources}], **spec},
        "status": {},
    }


def group(name: str, *, target: int = 0, max_size: int = 3, zone: str = "a", **more: Any) -> NodeGroup:
    template = NodeTemplate(labels={"topology.kubernetes.io/zone": zone, "role": "train"}, taints=(), allocatable=SIZE)
    fields = {"min_size": 0, "machines": frozenset[str](), "template": template}
    return NodeGroup(**{"name": name, "max_size": max_size, "target": target, **fields, **more})


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}, True),
        ({"key": "nvidia.com/gpu", "value": "present"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_taint_needs_its_toleration(toleration: dict[str, str], tolerated: bool) -> None:
    node = NodeTemplate(labels={}, taints=(GPU_TAINT,), allocatable=SIZE)
    found = why_not(pod(tolerations=[toleration]), node, free=SIZE)
    assert found == (None if tolerated else "node(s) had untolerated taint(s)")


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ({"key": "zone", "operator": "In", "values": ["a", "b"]}, True),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "missing", "operator": "NotIn", "values": ["a"]}, True),
        ({"key": "zone", "operator": "Exists"}, True),
        ({"key": "missing", "operator": "DoesNotExist"}, True),
        ({"key": "count", "operator": "Gt", "values": ["3"]}, True),
        ({"key": "count", "operator": "Lt", "values": ["3"]}, False),
        ({"key": "zone", "operator": "Gt", "values": ["3"]}, False),
    ],
)
def test_required_affinity(expression: dict[str, Any], matches: bool) -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    assert selected(pod(affinity=affinity), {"zone": "a", "count": "4"}) is matches


def test_a_pod_that_fits_a_node_under_way_needs_no_other() -> None:
    template = group("one").template
    assert without_room([pod("first"), pod("second")], [(template, SIZE)]) == [pod("second")]


def test_the_expendable_and_those_that_preempt_are_not_helped() -> None:
    kept = pod("placeholder", priority=-10)
    preempting = pod("preempting") | {"status": {"nominatedNodeName": "node"}}
    assert worth_a_machine([kept, pod("expendable", priority=-11), preempting]) == [kept]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4), st.integers(1, 12))
def test_no_group_passes_its_limit_and_as_many_pods_are_helped_as_nodes_come(
    sizes: list[tuple[int, int]], pods: int
) -> None:
    groups = [group(f"g{index}", target=target, max_size=target + room) for index, (target, room) in enumerate(sizes)]
    plan = ScaleUp().plan([pod(f"p{index}") for index in range(pods)], groups, backed_off=())
    assert all(increase.before < increase.after <= increase.max_size for increase in plan.increases)
    added = sum(increase.after - increase.before for increase in plan.increases)
    assert added == len(plan.helped) == min(pods, sum(room for _, room in sizes))
    assert len(plan.helped) + len(plan.refused) == pods


def test_zones_that_are_alike_share_the_nodes() -> None:
    zones = [group(f"zone-{zone}", zone=zone, target=int(zone == "a")) for zone in "abc"]
    scale_up = ScaleUp(similar_despite=frozenset({"topology.kubernetes.io/zone"}))
    plan = scale_up.plan([pod("first"), pod("second")], zones, backed_off=())
    assert sorted(map(str, plan.increases)) == ["{zone-b 0->1 (max: 3)}", "{zone-c 0->1 (max: 3)}"]
    alone = ScaleUp().plan([pod("first"), pod("second")], zones, backed_off=())
    assert len(alone.increases) == 1


def test_a_limit_of_a_whole_pool_holds_over_its_groups() -> None:
    shared = SharedLimit(pool="train", max_size=3)
    zones = [group(zone, zone=zone, target=int(zone == "a"), shared=shared) for zone in "abc"]
    scale_up = ScaleUp(similar_despite=frozenset({"topology.kubernetes.io/zone"}))
    plan = scale_up.plan([pod(str(index)) for index in range(4)], zones, backed_off=["a"])
    assert sum(increase.after - increase.before for increase in plan.increases) == 2
    full = scale_up.plan([pod()], [group("a", target=3, shared=shared), group("b", shared=shared)], backed_off=())
    assert reasons_text(full.refused[0][1]) == "2 max node group size reached"


def test_why_nothing_grows() -> None:
    groups = [group("full", target=3), group("tired"), group("other")]
    plan = ScaleUp().plan([pod(nodeSelector={"role": "other"})], groups, backed_off=["tired"])
    ((_, reasons),) = plan.refused
    assert reasons == {
        "node(s) didn't match Pod's node affinity/selector": 1,
        "in backoff after failed scale-up": 1,
        "max node group size reached": 1,
    }


@pytest.mark.parametrize(
    ("owner", "safe_to_evict", "blocked"),
    [
        (None, None, True),
        (None, "true", False),
        ("Job", None, False),
        ("Job", "false", True),
        ("ReplicaSet", None, False),
        ("TrainingJob", None, True),
    ],
)
def test_which_pods_keep_their_node(owner: str | None, safe_to_evict: str | None, blocked: bool) -> None:
    one = pod()
    if owner:
        one["metadata"]["ownerReferences"] = [{"kind": owner, "controller": True}]
    if safe_to_evict:
        one["metadata"]["annotations"] = {"cluster-autoscaler.kubernetes.io/safe-to-evict": safe_to_evict}
    assert blocks(one) is blocked


def test_a_group_that_fails_again_is_left_alone_for_longer() -> None:
    clock, why = ManualClock(), FailedLaunch(code="code", message="message")
    backoffs = Backoffs(timings=AutoscalerTimings(), clock=clock)
    for minutes in (5, 10, 20, 30, 30):
        backoffs.failed("group", why)
        clock.advance(minutes=minutes, seconds=-1)
        assert backoffs.why("group") == why
        clock.advance(1)
        assert backoffs.why("group") is None
    clock.advance(hours=3)
    backoffs.failed("group", why)
    clock.advance(minutes=5)
    assert backoffs.why("group") is None


def test_a_speed_divides_every_time() -> None:
    timings = AutoscalerTimings().scaled(20)
    assert (timings.new_gpu_pod, timings.unneeded, timings.speed) == (1.5, 30.0, 20.0)
    with pytest.raises(ValueError, match="above 0"):
        AutoscalerTimings().scaled(0)

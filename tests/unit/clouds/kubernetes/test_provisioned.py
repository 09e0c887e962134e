"""A pool whose nodes Karpenter brings: what Ensure says of its NodePools, and what becomes of its launches."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.clouds.base import Group
from airflow_gpu_provider.errors import NoProvisioner
from tests.unit.clouds.kubernetes.karpenter import NOW, Cluster, condition, stamp


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster()
    found.node_pool()
    return found


def group_of(cluster: Cluster) -> Group:
    (group,) = cluster.platform().observe()
    return group


# -- what Ensure says -----------------------------------------------------------------------------------------------


def test_a_node_pool_that_can_bring_nodes_is_named_and_nothing_is_wrong(cluster: Cluster) -> None:
    plan = cluster.platform().plan(2)
    (brought,) = plan.brought
    assert brought == "Karpenter (NodePool gpu) provisions nodes with karpenter.sh/nodepool=gpu when pods request them"
    assert (plan.notes, plan.is_empty) == ((), True)


UNHEALTHY = condition("Ready", "False", "UnhealthyDependents", "NodeClassReady=False")
NO_CLASS = condition("NodeClassReady", "False", "NodeClassNotFound", "NodeClass not found on cluster")


@pytest.mark.parametrize(
    ("raw", "why", "fix"),
    [
        (
            {"status": {"conditions": []}},
            "it is not ready (no controller has set its status: does its provisioner run?)",
            "Start Karpenter: no controller has looked at NodePool gpu.",
        ),
        (
            {"status": {"conditions": [UNHEALTHY, NO_CLASS]}},
            "(NodeClassNotFound: NodeClass not found on cluster)",
            "Make NodePool gpu Ready again: see `kubectl describe nodepool`.",
        ),
        (
            {"status": {"conditions": [condition("Ready", "Unknown", "AwaitingReconciliation", "awaiting")]}},
            "it is not ready (AwaitingReconciliation: awaiting)",
            "Make NodePool gpu Ready again: see `kubectl describe nodepool`.",
        ),
        (
            {"metadata": {"deletionTimestamp": stamp()}},
            "it is being deleted",
            "Make NodePool gpu Ready again: see `kubectl describe nodepool`.",
        ),
        (
            {"spec": {"replicas": 2}},
            "it is static (replicas), which brings no node for a pod",
            "Take replicas out of that NodePool, or select another by node_selector_labels.",
        ),
    ],
    ids=["no Karpenter", "no node class", "not looked at", "deleted", "static"],
)
def test_node_pools_that_karpenter_ignores_are_refused_and_told_while_nodes_are_wanted(
    cluster: Cluster, raw: dict[str, Any], why: str, fix: str
) -> None:
    cluster.server.patch("apis/karpenter.sh/v1/nodepools/gpu", raw)
    with pytest.raises(NoProvisioner) as refused:
        cluster.platform().plan(1)
    assert f"gpu: {why}" in refused.value.what or why in refused.value.what
    assert refused.value.fix == fix
    (issue,) = group_of(cluster).issues
    assert issue.startswith("no NodePool would provision nodes (gpu: ")
    assert why in issue


def test_limits_that_are_used_up_are_a_note_for_other_runs_nodes_may_go(cluster: Cluster) -> None:
    cluster.node_pool(limits={"nvidia.com/gpu": "4", "memory": "1Ti"}, used={"nvidia.com/gpu": "4", "memory": "64Gi"})
    said = "NodePool gpu has no room in its limits (nvidia.com/gpu: 4 of 4)"
    assert cluster.platform().plan(1).notes == (said,)
    assert group_of(cluster).issues == (said,)
    cluster.node_pool(limits={"nvidia.com/gpu": "4", "memory": "1Ti"}, used={"nvidia.com/gpu": "3", "memory": "64Gi"})
    assert (cluster.platform().plan(4).notes, group_of(cluster).issues) == ((), ())


def test_limits_of_nothing_leave_no_room_either(cluster: Cluster) -> None:
    cluster.node_pool(limits={"cpu": "0"})
    assert cluster.platform().plan(1).notes == ("NodePool gpu has no room in its limits (cpu: 0 of 0)",)


def test_limits_that_are_less_than_the_run_wants_are_a_note(cluster: Cluster) -> None:
    cluster.node_pool(limits={"nvidia.com/gpu": "1k"})
    assert cluster.platform().plan(2).notes == ()
    cluster.node_pool(limits={"nvidia.com/gpu": "1"})
    assert cluster.platform().plan(2).notes == ("the limits of NodePool gpu allow 1 nvidia.com/gpu; 2 nodes have 2",)
    cluster.node_pool("gpu-more")
    more = {"node_selector_labels": {"karpenter.k8s.aws/instance-gpu-name": "l4"}}
    assert cluster.platform(**more).plan(2).notes == (), "another NodePool has no limits"


def test_a_node_pool_that_removes_no_idle_node_is_noted(cluster: Cluster) -> None:
    cluster.node_pool(disruption={"consolidateAfter": "Never"})
    (note,) = cluster.platform().plan(1).notes
    assert note.startswith("NodePool gpu removes no idle node (consolidateAfter: Never)")


def test_machines_of_a_node_pool_that_have_not_come_are_told_before_the_next_one(cluster: Cluster) -> None:
    sick = condition("NodeRegistrationHealthy", "False", "RegistrationFailed", "Failed to register node")
    cluster.node_pool("gpu", condition("Ready"), sick)
    said = "machines of NodePool gpu do not launch or register (RegistrationFailed: Failed to register node)"
    assert (cluster.platform().plan(1).notes, group_of(cluster).issues) == ((said,), (said,))


# -- launches that failed ---------------------------------------------------------------------------------------------

UNAUTHORIZED = "User is not authorized to perform this operation because no identity-based policy allows it"
ICE = "creating instance, insufficient capacity, with fleet error(s), "
VCPUS = f"{ICE}VcpuLimitExceeded: You have requested more vCPU capacity than your current vCPU limit of 0 allows"


@pytest.mark.parametrize(
    ("reason", "message", "kind"),
    [
        ("Unauthorized", f"Error creating fleet request: {UNAUTHORIZED}", "refused"),
        ("SpotSLRCreationFailed", "User does not have sufficient permission", "refused"),
        ("AMINotFound", "AMI used for instance launch does not exist", "refused"),
        ("VCPULimitExceeded", "An instance was requested that would exceed your VCPU quota", "quota"),
        ("SubnetResolutionFailed", "Error getting subnets", "other"),
        ("LaunchFailed", "launching nodeclaim, no permission", "other"),
    ],
)
def test_a_launch_that_the_cloud_refuses_is_a_failure_in_karpenters_words(
    cluster: Cluster, reason: str, message: str, kind: str
) -> None:
    cluster.refused("gpu-x7k2p", reason, message)
    group = group_of(cluster)
    assert group.launch_failure is not None
    assert (group.launch_failure.message, group.launch_failure.kind) == (f"{reason}: {message}", kind)
    (asked,) = group.machines
    assert (asked.state, asked.lacks) == ("requested", f"NodeClaim gpu-x7k2p: {reason}: {message}")


def test_a_claim_that_was_just_made_has_not_failed(cluster: Cluster) -> None:
    cluster.refused("gpu-x7k2p", "AwaitingReconciliation", "object is awaiting reconciliation")
    group = group_of(cluster)
    assert (group.launch_failure, group.machines[0].state, group.machines[0].lacks) == (None, "requested", "")


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (f"{ICE}InsufficientInstanceCapacity: We currently do not have sufficient g6.xlarge capacity", "out_of_stock"),
        ("all requested instance types were unavailable during launch", "out_of_stock"),
        (VCPUS, "quota"),
        (f"{ICE}MaxSpotInstanceCountExceeded: Max spot instance count exceeded", "quota"),
        (f"{ICE}MaxFleetCountExceeded: too many fleets", "quota"),
        (f"{ICE}InsufficientFreeAddressesInSubnet: There are not enough free addresses", "other"),
        (f"{ICE}Unsupported: The requested configuration is currently not supported", "other"),
        (f"{ICE}InvalidBlockDeviceMapping: Volume of size 2GB; UnfulfillableCapacity: Unable to", "refused"),
        (f"{ICE}UnfulfillableCapacity: Unable to fulfill capacity", "out_of_stock"),
        (f"{ICE}AuthFailure.ServiceLinkedRoleCreationNotPermitted: The provided credentials", "refused"),
        (f"{VCPUS}; InsufficientInstanceCapacity: We currently do not have sufficient capacity", "out_of_stock"),
    ],
)
def test_a_quota_is_told_apart_from_a_stock_out_by_the_codes_of_ec2(cluster: Cluster, message: str, kind: str) -> None:
    cluster.no_capacity("gpu-x7k2p", message)
    failure = group_of(cluster).launch_failure
    assert failure is not None
    assert (failure.message, failure.kind) == (message, kind)


def test_launches_that_failed_are_counted_and_their_claims_are_not_named(cluster: Cluster) -> None:
    for number in range(10):
        cluster.no_capacity(f"gpu-{number}aaaa", ago=10 - number)
    group = group_of(cluster)
    assert len(group.failures) == 10
    assert {each.message for each in group.failures} == {"insufficient capacity"}
    assert group.launch_failure is not None
    assert len(group.launch_failure.earlier) == 9


LAUNCHED = "Status condition transitioned, Type: Launched, Status: Unknown -> True, Reason: Launched"


def test_a_failure_is_past_once_a_later_launch_has_worked_even_when_that_machine_is_gone(cluster: Cluster) -> None:
    cluster.no_capacity("gpu-aaaaa", ago=50)
    assert group_of(cluster).launch_failure is not None
    cluster.event("gpu-bbbbb", "Launched", LAUNCHED, ago=40, type="Normal")
    assert group_of(cluster).launch_failure is None
    cluster.no_capacity("gpu-ccccc", ago=30)
    failure = group_of(cluster).launch_failure
    assert failure is not None
    assert failure.earlier == ()


def test_a_failure_is_past_once_a_node_has_come(cluster: Cluster) -> None:
    cluster.no_capacity("gpu-aaaaa", ago=50)
    cluster.node("node-1", "i-1", ago=40)
    assert group_of(cluster).launch_failure is None


def test_events_of_claims_that_are_gone_have_no_name_and_are_no_launches(cluster: Cluster) -> None:
    """operatorpkg's status controller publishes them so; seen with Karpenter 1.14.1 after each claim's end."""
    cluster.no_capacity("gpu-aaaaa", ago=50)
    cluster.event("", "Finalized", "Finalized karpenter.sh/termination", ago=40, type="Normal")
    assert group_of(cluster).launch_failure is not None


def test_launches_of_other_node_pools_do_not_matter(cluster: Cluster) -> None:
    cluster.node_pool("cpu")
    cluster.no_capacity("cpu-aaaaa")
    cluster.event("cpu-bbbbb", "Launched", LAUNCHED, ago=0, type="Normal")
    assert group_of(cluster).launch_failure is None


# -- machines -----------------------------------------------------------------------------------------------------


def test_what_a_machine_lacks_is_its_claims_first_condition_that_is_not_true(cluster: Cluster) -> None:
    not_there = condition("Registered", "Unknown", "NodeNotFound", "Node not registered with cluster")
    no_plugin = condition("Initialized", "Unknown", "ResourceNotRegistered", 'Resource "nvidia.com/gpu" was requested')
    cluster.launched("gpu-aaaaa", no_plugin, not_there, ago=5)
    cluster.launched("gpu-bbbbb", condition("Registered"), no_plugin, nodeName="node-b", ago=5)
    cluster.launched("gpu-ccccc", condition("Registered"), condition("Initialized"), nodeName="node-c", ago=5)
    by_id = {machine.id: machine for machine in group_of(cluster).machines}
    assert by_id["i-gpu-aaaaa"].lacks == "NodeClaim gpu-aaaaa: NodeNotFound: Node not registered with cluster"
    assert by_id["i-gpu-bbbbb"].lacks.endswith('ResourceNotRegistered: Resource "nvidia.com/gpu" was requested')
    assert by_id["i-gpu-ccccc"].lacks == ""
    assert [by_id[f"i-gpu-{each * 5}"].state for each in "abc"] == ["pending", "running", "running"]


def test_a_machine_that_is_removed_is_not_asked_for(cluster: Cluster) -> None:
    cluster.launched("gpu-aaaaa", nodeName="node-a")
    cluster.server.patch("apis/karpenter.sh/v1/nodeclaims/gpu-aaaaa", {"metadata": {"deletionTimestamp": stamp()}})
    group = group_of(cluster)
    assert (group.machines[0].state, group.desired, group.unfilled) == ("terminating", 0, 0)


def test_zone_type_and_market_are_those_of_the_machines(cluster: Cluster) -> None:
    assert str(group_of(cluster).candidate) == "machine on-demand"
    cluster.node("node-1", "i-1")
    cluster.launched("gpu-bbbbb")
    group = group_of(cluster)
    assert str(group.candidate) == "g6.xlarge spot in us-west-2c"
    assert {machine.market for machine in group.machines} == {"SPOT"}
    assert group.machines[0].launched_at is not None
    assert group.machines[0].launched_at < NOW

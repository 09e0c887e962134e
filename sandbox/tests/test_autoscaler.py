"""The stand-in of cluster-autoscaler: what it does to the sandbox's groups, and what it says of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu_sandbox import SandboxProcess
from sandbox.tests.autoscaling import STATUS_SHAPE, TEMPLATE, Eks, gpu_pod, shape_of

# In seconds. A GPU pod is new for 30, and is looked at by the next scan; a group reacts after 5, launches for 35, and a
# machine boots for 45.
SEEN = 30 + 10
JOINED = SEEN + 5 + 35 + 45
GROUPS = 60  # so long groups are believed as they were last seen
CANDIDATE = "DeletionCandidateOfClusterAutoscaler"


@pytest.fixture(scope="module")
def sandbox(gpu_sandbox_factory: Callable[..., SandboxProcess]) -> SandboxProcess:
    """Of this file alone: in it time passes by hand."""
    sandbox = gpu_sandbox_factory(clock="manual")
    Eks(sandbox).install_device_plugin()
    return sandbox


@pytest.fixture
def eks(sandbox: SandboxProcess) -> Iterator[Eks]:
    cluster = Eks(sandbox)
    yield cluster
    sandbox.clear_faults()
    cluster.delete_pods()
    for name in cluster.node_groups():
        cluster.delete_group(name)
    sandbox.advance(minutes=20)
    assert (cluster.node_groups(), cluster.gpu_nodes(), cluster.pods()) == ([], [], [])
    cluster.forget_events()


def for_group(name: str) -> dict[str, Any]:
    """A pod's spec that only one group's nodes meet."""
    return {"nodeSelector": {"role": name}}


def settled(status: dict[str, Any], *, nodes: int) -> bool:
    """Whether so many nodes are ready, no group grows, and no node may go."""
    wide = status["clusterWide"]
    ready = wide["health"]["nodeCounts"]["registered"]["ready"]
    return (ready, wide["scaleUp"]["status"], wide["scaleDown"]["status"]) == (nodes, "NoActivity", "NoCandidates")


def test_a_waiting_pod_gets_a_node_from_zero_and_it_goes_again(eks: Eks, sandbox: SandboxProcess) -> None:
    asg = eks.node_group("train")
    eks.create(gpu_pod("train", **for_group("train")))
    sandbox.advance(29)
    assert eks.events("TriggeredScaleUp", about="train") == []
    sandbox.advance(SEEN - 29)
    assert eks.events("TriggeredScaleUp", about="train") == [f"pod triggered scale-up: [{{{asg} 0->1 (max: 3)}}]"]
    assert f"Scale-up: group {asg} size set to 1 instead of 0 (max: 3)" in eks.events("ScaledUpGroup")
    sandbox.advance(JOINED - SEEN)
    eks.until_running("train")
    (node,) = eks.gpu_nodes()
    sandbox.advance(10)
    status = eks.status()
    assert settled(status, nodes=2), "the cluster's own node and the group's"
    assert shape_of(status) == STATUS_SHAPE
    (ready,) = (group for group in status["nodeGroups"] if group["name"] == asg)
    assert ready["health"]["cloudProviderTarget"] == 1
    assert ready["health"]["nodeCounts"]["registered"]["ready"] == 1

    eks.delete_pods()
    sandbox.advance(10)
    assert CANDIDATE in eks.taints()
    sandbox.advance(minutes=9, seconds=40)
    assert eks.desired(asg) == 1
    sandbox.advance(minutes=2)  # ten minutes since it is idle, seconds with a taint, and the machine's end
    assert (eks.desired(asg), eks.gpu_nodes()) == (0, [])
    assert eks.events("ScaleDown", about=node["metadata"]["name"]) == ["marked the node as toBeDeleted/unschedulable"]
    removed = f"Scale-down: empty node {node['metadata']['name']} removed"
    assert removed in eks.events("ScaleDownEmpty")


def test_a_pod_that_no_group_fits_is_told_why(eks: Eks, sandbox: SandboxProcess) -> None:
    asg = eks.node_group("train")
    sandbox.advance(GROUPS)
    assert eks.group_status(asg)
    eks.create(gpu_pod("elsewhere", **for_group("another")))
    eks.create(gpu_pod("intolerant", **for_group("train"), tolerations=[]))
    eks.create(gpu_pod("large", gpus=8, **for_group("train")))
    sandbox.advance(SEEN)
    # The group of the cluster's own node, without GPUs, is one of those that do not do.
    assert eks.events("NotTriggerScaleUp", about="elsewhere") == [
        "pod didn't trigger scale-up: 2 node(s) didn't match Pod's node affinity/selector"
    ]
    assert "1 node(s) had untolerated taint(s)" in str(eks.events("NotTriggerScaleUp", about="intolerant"))
    assert "1 Insufficient nvidia.com/gpu" in str(eks.events("NotTriggerScaleUp", about="large"))
    assert not eks.events("TriggeredScaleUp", about="elsewhere")


def test_a_group_at_its_largest_says_so(eks: Eks, sandbox: SandboxProcess) -> None:
    asg = eks.node_group("small", max_size=1)
    eks.create(gpu_pod("first", **for_group("small")))
    sandbox.advance(JOINED)
    eks.until_running("first")
    eks.create(gpu_pod("second", **for_group("small")))
    sandbox.advance(SEEN)
    assert "1 max node group size reached" in str(eks.events("NotTriggerScaleUp", about="second"))
    assert eks.desired(asg) == 1


def test_a_group_without_its_discovery_tag_is_nobodys(eks: Eks, sandbox: SandboxProcess) -> None:
    asg = eks.node_group("untagged")
    sandbox.advance(GROUPS)
    assert eks.group_status(asg)
    eks.client("autoscaling").delete_tags(
        Tags=[
            {
                "ResourceId": asg,
                "ResourceType": "auto-scaling-group",
                "Key": "k8s.io/cluster-autoscaler/enabled",
            }
        ]
    )
    sandbox.advance(GROUPS + 10)
    eks.create(gpu_pod("waiting", **for_group("untagged")))
    sandbox.advance(SEEN)
    assert eks.events("NotTriggerScaleUp", about="waiting")
    assert eks.desired(asg) == 0
    assert eks.group_status(asg) == {}

    eks.tag(asg, **{"k8s.io/cluster-autoscaler/enabled": "true"})
    sandbox.advance(GROUPS + JOINED)
    eks.until_running("waiting")


def self_managed(eks: Eks, name: str, **tags: str) -> None:
    """An Auto Scaling group that somebody made; only its tags say what its nodes would be."""
    template = eks.client("ec2").create_launch_template(
        LaunchTemplateName=name,
        LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": "g6.xlarge"},
    )["LaunchTemplate"]
    eks.client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName=name,
        LaunchTemplate={"LaunchTemplateId": template["LaunchTemplateId"]},
        MinSize=0,
        MaxSize=2,
        VPCZoneIdentifier=eks.subnets[eks.zones[0]],
    )
    cluster = eks.sandbox.cluster_name
    eks.tag(name, **{"k8s.io/cluster-autoscaler/enabled": "1", f"k8s.io/cluster-autoscaler/{cluster}": "1", **tags})


def test_a_self_managed_group_is_what_its_tags_say(eks: Eks, sandbox: SandboxProcess) -> None:
    try:
        self_managed(eks, "mine", **{f"{TEMPLATE}/taint/nvidia.com/gpu": "true:NoSchedule"})
        eks.create(gpu_pod("waiting", **for_group("mine")))
        sandbox.advance(GROUPS + SEEN)
        assert eks.events("NotTriggerScaleUp", about="waiting")
        assert eks.desired("mine") == 0
        eks.tag("mine", **{f"{TEMPLATE}/label/role": "mine"})
        sandbox.advance(GROUPS + 10)
        assert eks.events("TriggeredScaleUp", about="waiting")
        assert eks.desired("mine") == 1
    finally:
        eks.client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName="mine", ForceDelete=True)


def test_several_pods_share_nodes_and_three_zones_share_them(eks: Eks, sandbox: SandboxProcess) -> None:
    """They have to be there in one scan: a group that has a node is no longer like those without."""
    groups = [
        eks.node_group(f"zone-{index}", max_size=2, labels={"role": "spread"}, subnets=[eks.subnets[zone]])
        for index, zone in enumerate(eks.zones)
    ]
    discovery = {"ResourceType": "auto-scaling-group", "Key": "k8s.io/cluster-autoscaler/enabled"}
    eks.client("autoscaling").delete_tags(Tags=[{**discovery, "ResourceId": group} for group in groups])
    sandbox.advance(GROUPS + 10)
    assert eks.status()
    assert not any(eks.group_status(group) for group in groups)
    for index in range(4):
        eks.create(gpu_pod(f"pod-{index}", **for_group("spread")))
    sandbox.advance(SEEN)
    assert all(eks.events("NotTriggerScaleUp", about=f"pod-{index}") for index in range(4)), "it has seen each of them"
    found = [{**discovery, "ResourceId": group, "Value": "true", "PropagateAtLaunch": False} for group in groups]
    eks.client("autoscaling").create_or_update_tags(Tags=found)
    sandbox.advance(GROUPS + JOINED)
    for index in range(4):
        eks.until_running(f"pod-{index}")
    told = eks.events("ScaledUpGroup")
    grown = {
        found for line in told for found in re.findall(r"group (\S+) size (?:set )?to (\d) instead of (\d) ", line)
    }
    assert {group for group, *_ in grown} == {*groups}, told
    assert sorted((int(size), int(before)) for _, size, before in grown) == [(1, 0), (1, 0), (2, 0)], told


def test_capacity_that_is_not_there_is_backed_off_from_and_another_group_grows(
    eks: Eks, sandbox: SandboxProcess
) -> None:
    first = eks.node_group("first", labels={"role": "either", "k8s.amazonaws.com/accelerator": "nvidia-l4"})
    sandbox.apply_faults({"stockouts": [{"zone": eks.zones[0]}]})
    eks.create(gpu_pod("waiting", **for_group("either")))
    sandbox.advance(SEEN + 60)  # it has tried, and then looked at groups again
    backoff = eks.group_status(first)["scaleUp"]["backoffInfo"]
    assert backoff == {
        "errorCode": "placeholder-cannot-be-fulfilled",
        "errorMessage": "AWS cannot provision any more instances for this node group",
    }
    assert eks.events("ScaleUpFailed")
    assert eks.desired(first) == 0
    assert "in backoff after failed scale-up" in str(eks.events("NotTriggerScaleUp", about="waiting"))

    labels = {"role": "either", "k8s.amazonaws.com/accelerator": "nvidia-l4"}
    second = eks.node_group("second", labels=labels, subnets=[eks.subnets[eks.zones[1]]])
    sandbox.advance(60 + JOINED)
    eks.until_running("waiting")
    assert (eks.desired(first), eks.desired(second)) == (0, 1)


@pytest.mark.parametrize("keeps", ["bare pod", "scale-down-disabled"])
def test_what_keeps_a_node(eks: Eks, sandbox: SandboxProcess, keeps: str) -> None:
    asg = eks.node_group("kept", instanceTypes=["g6.12xlarge"])
    eks.create(gpu_pod("train", **for_group("kept")))
    sandbox.advance(JOINED)
    eks.until_running("train")
    (node,) = eks.gpu_nodes()
    path = f"/api/v1/nodes/{node['metadata']['name']}"
    if keeps == "scale-down-disabled":
        annotation = {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}
        eks.call("PATCH", path, {"metadata": {"annotations": annotation}})
        eks.delete("train")
    sandbox.advance(hours=1)
    assert eks.desired(asg) == 1
    assert eks.group_status(asg)["scaleDown"]["status"] == "NoCandidates"


def test_a_low_priority_placeholder_brings_a_node_and_an_expendable_one_does_not(
    eks: Eks, sandbox: SandboxProcess
) -> None:
    for name, value in (("placeholder", -10), ("expendable", -11)):
        eks.call(
            "POST",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
                "preemptionPolicy": "Never",
            },
        )
    asg = eks.node_group("warm")
    # Of its own: on the placeholder's node, back-off in the scheduler can let the expendable pod be first.
    own = eks.node_group("own")
    eks.create(gpu_pod("expendable", priorityClassName="expendable", **for_group("own")))
    eks.create(gpu_pod("placeholder", priorityClassName="placeholder", **for_group("warm")))
    sandbox.advance(JOINED)
    eks.until_running("placeholder")
    assert (eks.desired(asg), eks.desired(own)) == (1, 0)
    eks.create(gpu_pod("train", priority=None, **for_group("warm")))
    eks.until_running("train")
    sandbox.advance(minutes=2)
    assert eks.desired(own) == 0
    assert not eks.events("TriggeredScaleUp", about="expendable")
    assert eks.phase("expendable") == "Pending"


def test_a_dead_autoscaler_grows_nothing_and_its_status_grows_old(eks: Eks, sandbox: SandboxProcess) -> None:
    asg = eks.node_group("train")
    before = eks.status_updated()
    sandbox.advance(minutes=2)
    living = eks.status_updated()
    assert living != before
    sandbox.apply_faults({"autoscaler_dead": True})
    eks.create(gpu_pod("waiting", **for_group("train")))
    sandbox.advance(hours=1)
    assert eks.status_updated() == living
    assert (eks.desired(asg), eks.phase("waiting")) == (0, "Pending")
    sandbox.clear_faults()
    sandbox.advance(JOINED)
    eks.until_running("waiting")


def test_without_an_autoscaler_there_is_no_status(gpu_sandbox_factory: Callable[..., SandboxProcess]) -> None:
    sandbox = gpu_sandbox_factory(autoscaler="none", clock="manual")
    eks = Eks(sandbox)
    asg = eks.node_group("train")
    eks.create(gpu_pod("waiting", **for_group("train")))
    sandbox.advance(hours=1)
    assert (eks.desired(asg), eks.status()) == (0, {})

"""Spot instances taken by a fault, and group labels that change, as a cluster's Nodes and pods see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpu_sandbox import SandboxProcess
from gpu_sandbox.cli import main
from gpu_sandbox.errors import ControlApiError
from sandbox.tests.autoscaling import Eks, gpu_pod


@pytest.fixture(scope="module")
def sandbox(gpu_sandbox_factory: Callable[..., SandboxProcess]) -> SandboxProcess:
    sandbox = gpu_sandbox_factory(clock="manual", autoscaler="none")
    Eks(sandbox).install_device_plugin()
    return sandbox


@pytest.fixture
def eks(sandbox: SandboxProcess) -> Iterator[Eks]:
    cluster = Eks(sandbox)
    yield cluster
    cluster.delete_pods()
    sandbox.advance(minutes=1)  # an update of a node group holds its deletion up
    for name in cluster.node_groups():
        cluster.delete_group(name)
    sandbox.advance(minutes=20)
    assert (cluster.node_groups(), cluster.gpu_nodes()) == ([], [])


def with_one_node(eks: Eks, **request: object) -> tuple[str, str]:
    """A spot group with a pod on its one node; the group's and the node's name."""
    scaling = {"minSize": 0, "maxSize": 2, "desiredSize": 1}
    asg = eks.node_group("spot", capacityType="SPOT", scalingConfig=scaling, **request)
    eks.sandbox.advance(45)
    eks.create(gpu_pod("train", nodeSelector={"role": "spot"}))
    eks.until_running("train")
    (node,) = eks.gpu_nodes()
    return asg, str(node["metadata"]["name"])


def reasons(eks: Eks, node: str) -> set[str]:
    events = eks.call("GET", "/api/v1/namespaces/default/events")["items"]
    return {event["reason"] for event in events if event["involvedObject"]["name"] == node}


def cordoned(eks: Eks) -> dict[str, bool]:
    return {node["metadata"]["name"]: bool(node["spec"].get("unschedulable")) for node in eks.gpu_nodes()}


def test_a_recommendation_brings_another_node_and_then_drains(
    eks: Eks, sandbox: SandboxProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    asg, node = with_one_node(eks)
    assert main(["fault", "spot-rebalance", "--name", sandbox.name, "--node", node]) == 0
    assert capsys.readouterr().out.startswith("i-")
    sandbox.advance(35 + 45 - 1)  # another machine's launch and boot
    assert cordoned(eks) == {node: False}
    sandbox.advance(1)
    assert len(cordoned(eks)) == 2, "the new node joins before the old one is gone"
    assert cordoned(eks)[node]
    sandbox.advance(45)
    assert [*cordoned(eks).values()] == [False]
    assert node not in cordoned(eks)
    assert eks.desired(asg) == 1
    assert "SpotRebalanceRecommendation" in reasons(eks, node)
    # A bare pod that is evicted does not come back.
    assert eks.pods() == []


def test_a_notice_names_its_node_and_its_zone(eks: Eks, sandbox: SandboxProcess) -> None:
    _, node = with_one_node(eks)
    with pytest.raises(ControlApiError, match=r"no spot instance runs \(zone us-west-2c\)"):
        sandbox.interrupt_spot(zone="us-west-2c")
    (instance,) = sandbox.interrupt_spot(zone=eks.zones[0])
    sandbox.advance()
    assert instance in str(eks.gpu_nodes())
    assert "SpotInterruption" in reasons(eks, node)


def test_new_labels_of_a_node_group_reach_its_nodes_and_pods_can_ask_for_them(eks: Eks) -> None:
    with_one_node(eks, instanceTypes=["g6.12xlarge"])
    eks.client("eks").update_nodegroup_config(
        clusterName=eks.sandbox.cluster_name,
        nodegroupName="spot",
        labels={"addOrUpdateLabels": {"role": "renamed"}},
        taints={"addOrUpdateTaints": [{"key": "night", "value": "1", "effect": "NO_SCHEDULE"}]},
    )
    eks.sandbox.advance()
    assert eks.gpu_nodes()[0]["metadata"]["labels"]["role"] == "renamed"
    assert eks.taints() >= {"night", "nvidia.com/gpu"}
    eks.create(gpu_pod("renamed", nodeSelector={"role": "renamed"}, tolerations=[{"operator": "Exists"}]))
    eks.until_running("renamed")
    assert eks.phase("train") == "Running"

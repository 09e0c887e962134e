"""How a scale-down ends, and what it says while Karpenter keeps a node.

Karpenter looks every ten seconds, and leaves a node alone for ten seconds after it has nominated it for a pod.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider.errors import PodDeadline, PoolNotReleased
from gpu_sandbox.karpenter import MachineCloud
from tests.karpenter.cluster import NEVER, QUICK, Cluster
from tests.karpenter.nights import FOREVER, Night, failure, late, side_by_side, told
from tests.sandbox.running import eventually

BY_PRICE = {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s"}
GOING = {
    "at-once": QUICK,
    "in-a-while": {**QUICK, "consolidateAfter": "15s"},
    "by-price": BY_PRICE,
    "balanced": {**BY_PRICE, "consolidationPolicy": "Balanced"},
}
KEPT = {
    "never": (NEVER, "consolidateAfter|consolidation disabled"),
    "no-budget": ({**QUICK, "budgets": [{"nodes": "0"}]}, "budget"),
    "not-when-empty": ({**QUICK, "budgets": [{"nodes": "0", "reasons": ["Empty"]}]}, "budget"),
    "annotated": (QUICK, "carries karpenter.sh/do-not-disrupt"),
}
LONG_ENOUGH = timedelta(seconds=40)


def trained(cluster: Cluster, name: str, disruption: dict[str, Any]) -> Night:
    """A run whose training is over; its node is there."""
    night = Night(cluster.node_pool(name, disruption=disruption))
    night.ensure()
    night.train()
    return night


def test_empty_nodes_go_by_each_policy(cluster: Cluster) -> None:
    nights = side_by_side({name: lambda n=name: trained(cluster, n, GOING[n]) for name in GOING})
    with told() as lines:
        results = side_by_side({name: nights[name].scale_down for name in GOING})
    for name in GOING:
        assert results[name] == {**results[name], "nodes": 0, "desired": 0, "kept": []}, results[name]
        assert lines.matching(rf"of {name}: waiting for Karpenter to remove it, no run wants it")
        assert not cluster.claims(name)


def test_why_karpenter_keeps_a_node_is_told_and_what_removes_it(cluster: Cluster) -> None:
    nights = side_by_side({name: lambda n=name: trained(cluster, n, KEPT[n][0]) for name in KEPT})
    (node,) = cluster.nodes("annotated")
    cluster.core.patch_node(node.metadata.name, {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}})
    release: dict[str, Callable[[], Any]] = {n: lambda n=n: nights[n].scale_down(timeout=LONG_ENOUGH) for n in KEPT}
    errors = side_by_side(release)
    for name, (_, why) in KEPT.items():
        error = errors[name]
        assert isinstance(error, PoolNotReleased), error
        (claim,) = cluster.claims(name)
        assert f"kubectl delete nodeclaim {claim['metadata']['name']}" in str(error)
        assert re.search(why, str(error)), str(error)


def test_where_karpenter_has_stopped_the_machine_is_named(cluster: Cluster) -> None:
    night = trained(cluster, "unattended", QUICK)
    cluster.karpenter.pause()
    try:
        error = failure(night.begin_scale_down(timeout=timedelta(seconds=8)), PoolNotReleased, "waiting for Karpenter")
    finally:
        cluster.karpenter.resume()
    (claim,) = cluster.claims("unattended")
    assert f"kubectl delete nodeclaim {claim['metadata']['name']}" in str(error)


def test_a_node_whose_device_plugin_never_came_stays_and_that_is_told(cluster: Cluster, cloud: MachineCloud) -> None:
    cloud.brings_plugin = False
    night = Night(cluster.node_pool("uninitialized"))
    night.ensure()
    with told() as lines:
        training = night.begin_train()
        lines.until("its GPUs are not allocatable yet")
        late(training, PodDeadline, "got no node")
    error = failure(night.begin_scale_down(timeout=timedelta(seconds=15)), PoolNotReleased, "waiting for Karpenter")
    assert "nvidia.com/gpu" in str(error).partition("waiting for Karpenter")[2]
    (claim,) = cluster.claims("uninitialized")
    assert f"kubectl delete nodeclaim {claim['metadata']['name']}" in str(error)


def test_a_node_with_another_s_pod_is_kept_and_named(cluster: Cluster) -> None:
    night = trained(cluster, "shared", QUICK)
    (node,) = cluster.nodes("shared")
    cluster.core.create_namespaced_pod("default", stranger(node.metadata.name))
    eventually(lambda: cluster.core.read_namespaced_pod("stranger", "default").status.phase == "Running")
    with told() as lines:
        result = night.scale_down()
    assert result["nodes"] == 1
    assert lines.matching("kept.* pod default/stranger")


def stranger(node: str) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox:1", "command": [*FOREVER]}
    container["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 1}
    return {"metadata": {"name": "stranger"}, "spec": spec}


def test_a_pod_that_the_run_has_kept_goes_with_its_node(cluster: Cluster) -> None:
    night = Night(cluster.node_pool("leftover"))
    night.ensure()
    night.train(on_finish_action="keep_pod")
    assert cluster.core.list_namespaced_pod("default").items
    assert night.scale_down()["nodes"] == 0
    assert not cluster.core.list_namespaced_pod("default").items


def by_hand(cluster: Cluster, name: str) -> None:
    (claim,) = cluster.claims(name)
    cluster.delete_claim(claim["metadata"]["name"])


@pytest.mark.parametrize("how", ["claim", "node-pool"])
def test_nodes_that_somebody_removes_are_waited_for(cluster: Cluster, cloud: MachineCloud, how: str) -> None:
    cloud.end_seconds = 3.0
    name = f"removed-{how}"
    night = trained(cluster, name, NEVER)
    with told() as lines:
        released = night.begin_scale_down()
        lines.until("waiting for Karpenter to remove it")
        if how == "claim":
            by_hand(cluster, name)
        else:
            cluster.delete_node_pool(name)
        assert released.result(90)["nodes"] == 0
    assert lines.matching(rf"waiting for machine i-\w+ of {name} to end")


def test_a_node_that_expires_goes_though_it_is_never_consolidated(cluster: Cluster) -> None:
    night = Night(cluster.node_pool("expiring", disruption=NEVER, template={"expireAfter": "20s"}))
    night.ensure()
    night.train()
    assert night.scale_down()["nodes"] == 0

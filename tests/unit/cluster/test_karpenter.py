"""What Karpenter's objects say: which NodePool could bring a node, and which machines are on their way."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.cluster.model.karpenter import Launch, NodeClaim, NodePool
from airflow_gpu_provider.pools import Taint

READY = {"conditions": [{"type": "Ready", "status": "True", "reason": "Ready"}]}
STAMP = "2026-03-01T01:00:00Z"
GPUS_4 = {"karpenter.k8s.aws/instance-gpu-count": "4"}
ML = Taint(key="team", value="ml", effect="NoSchedule")


def node_pool(*requirements: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any) -> NodePool:
    node_class = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gpu"}
    template = {"spec": {"nodeClassRef": node_class, "requirements": list(requirements), **spec}}
    if labels:
        template["metadata"] = {"labels": labels}
    return NodePool.parse({"metadata": {"name": "gpu"}, "spec": {"template": template}, "status": READY})


def requirement(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("pool", "selector", "why"),
    [
        (node_pool(), {"karpenter.sh/nodepool": "gpu"}, ""),
        (node_pool(), {"karpenter.sh/nodepool": "cpu"}, "cannot have the label karpenter.sh/nodepool=cpu"),
        (node_pool(), {"karpenter.k8s.aws/instance-gpu-name": "l4"}, ""),
        (node_pool(), {"topology.kubernetes.io/zone": "us-west-2a"}, ""),
        (node_pool(), {"role": "train"}, "cannot have the label role=train"),
        (node_pool(), {"example.com/role": "train"}, "cannot have the label example.com/role=train"),
        (node_pool(labels={"role": "train"}), {"role": "train"}, ""),
        (node_pool(labels={"role": "serve"}), {"role": "train"}, "cannot have"),
        (node_pool(requirement("role", "In", "train", "serve")), {"role": "train"}, ""),
        (node_pool(requirement("role", "Exists")), {"role": "train"}, ""),
        (node_pool(requirement("role", "NotIn", "train")), {"role": "train"}, "cannot have"),
        (node_pool(requirement("role", "DoesNotExist")), {"role": "train"}, "cannot have"),
        (
            node_pool(requirement("karpenter.k8s.aws/instance-gpu-count", "Gt", "1")),
            GPUS_4,
            "",
        ),
        (node_pool(requirement("karpenter.k8s.aws/instance-gpu-count", "Lt", "4")), GPUS_4, "cannot have"),
        (node_pool(requirement("karpenter.k8s.aws/instance-gpu-count", "Gte", "4")), GPUS_4, ""),
        (node_pool(requirement("karpenter.k8s.aws/instance-gpu-count", "Gte", "5")), GPUS_4, "cannot have"),
        (node_pool(requirement("karpenter.k8s.aws/instance-gpu-count", "Lte", "4")), GPUS_4, ""),
        (node_pool(requirement("karpenter.k8s.aws/instance-gpu-count", "Lte", "3")), GPUS_4, "cannot have"),
        (node_pool(), {"node-role.kubernetes.io/gpu": "true"}, "cannot have the label node-role.kubernetes.io/gpu"),
        (node_pool(), {"karpenter.sh/made-up": "x"}, "cannot have the label karpenter.sh/made-up=x"),
        (node_pool(), {"node.kubernetes.io/instance-type": "g6.xlarge", "kubernetes.io/arch": "amd64"}, ""),
        (node_pool(), {"eks.amazonaws.com/instance-gpu-name": "l4"}, ""),
        (node_pool(labels={"node-role.kubernetes.io/gpu": "true"}), {"node-role.kubernetes.io/gpu": "true"}, ""),
        (
            node_pool(requirement("eks.amazonaws.com/instance-category", "In", "c", "m", "r")),
            {},
            "has no GPUs: c, m, r",
        ),
        (node_pool(requirement("eks.amazonaws.com/instance-category", "In", "c", "g")), {}, ""),
        (node_pool(taints=[{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}]), {}, ""),
        (node_pool(taints=[{"key": "team", "value": "ml", "effect": "NoSchedule"}]), {}, ""),
        (node_pool(taints=[{"key": "team", "value": "web", "effect": "NoSchedule"}]), {}, "team=web:NoSchedule"),
        (node_pool(taints=[{"key": "team", "value": "web", "effect": "PreferNoSchedule"}]), {}, ""),
    ],
)
def test_whether_a_node_pool_would_bring_the_node(pool: NodePool, selector: dict[str, str], why: str) -> None:
    said = pool.refuses(selector, (ML,))
    assert why in said
    assert bool(why) == bool(said)


def test_a_node_pool_that_is_not_ready_brings_nothing() -> None:
    broken = {"type": "Ready", "status": "False", "reason": "NodeClassNotReady", "message": "no such AMI"}
    raw = {"metadata": {"name": "gpu"}, "spec": {"template": {}}, "status": {"conditions": [broken]}}
    assert NodePool.parse(raw).refuses({}, ()) == "it is not ready (NodeClassNotReady: no such AMI)"
    assert NodePool.parse(raw).mismatch({}, ()) == "", "it is the pool's all the same: what its images bring matters"


def test_whose_node_pool_it_is() -> None:
    auto = node_pool(nodeClassRef={"group": "eks.amazonaws.com", "kind": "NodeClass", "name": "default"})
    assert (auto.is_auto_mode, node_pool().is_auto_mode) == (True, False)


def claim(labels: dict[str, str] | None = None, *requirements: dict[str, Any], **status: Any) -> NodeClaim:
    meta = {"name": "gpu-x7k2p", "creationTimestamp": STAMP, "labels": labels or {}}
    return NodeClaim.parse({"metadata": meta, "spec": {"requirements": list(requirements)}, "status": status})


def test_a_claim_before_and_after_its_launch() -> None:
    asked = claim()
    assert (asked.machine, asked.node, asked.launched_at) == ("gpu-x7k2p", "", None)
    launched = {"type": "Launched", "status": "True", "lastTransitionTime": STAMP}
    there = claim(providerID="aws:///us-west-2a/i-0abc", nodeName="ip-10-0-0-1", conditions=[launched])
    assert (there.machine, there.node, there.launched_at) == ("i-0abc", "ip-10-0-0-1", there.created_at)
    failed = {"type": "Launched", "status": "Unknown", "reason": "LaunchFailed", "message": "no permission"}
    assert claim(conditions=[failed]).problem == "LaunchFailed: no permission"


def test_which_nodes_a_claim_is_for() -> None:
    l4 = {"eks.amazonaws.com/instance-gpu-name": "l4"}
    assert claim(l4).serves(l4)
    assert not claim().serves(l4)
    assert claim(None, requirement("eks.amazonaws.com/instance-gpu-name", "In", "l4")).serves(l4)
    assert not claim(None, requirement("eks.amazonaws.com/instance-gpu-name", "In", "l4", "t4")).serves(l4)


def test_a_failed_launch_belongs_to_the_node_pool_in_its_name() -> None:
    at = claim().created_at
    failed = Launch(claim="gpu-spot-x7k2p", at=at, reason="InsufficientCapacityError", message="no capacity")
    assert failed.is_of("gpu-spot")
    assert not failed.is_of("gpu")

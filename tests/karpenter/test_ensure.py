"""What Ensure says of NodePools that the real Karpenter has looked at.

A pod of a pool that Ensure lets pass, and that Karpenter does not serve, is told why by Karpenter within seconds.
"""

from __future__ import annotations

import pytest

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.errors import GpuError, NoProvisioner
from tests.karpenter.cluster import CAPACITY_TYPE, NODE_POOL, Cluster, requirement
from tests.karpenter.nights import Night, late, told
from tests.sandbox.running import eventually

GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present"}


def refusal(pool: KubernetesGpuPool) -> str:
    """What Ensure refuses the pool with."""
    with pytest.raises(NoProvisioner) as refused:
        Night(pool).ensure()
    return str(refused.value)


@pytest.mark.parametrize("effect", [None, "NoSchedule", "NoExecute"])
def test_a_node_pool_that_is_ready_passes_with_a_taint_of_gpus_too(cluster: Cluster, effect: str | None) -> None:
    taints = [{**GPU_TAINT, "effect": effect}] if effect else []
    name = f"proper-{effect}".lower()
    pool = cluster.node_pool(name, template={"taints": taints})
    with told() as lines:
        assert Night(pool).ensure()["nodes"] == []
    assert lines.matching(rf"Karpenter \(NodePool {name}\) provisions nodes with karpenter.sh/nodepool={name}")


def test_without_a_node_pool_nothing_is_wanted(cluster: Cluster) -> None:
    eventually(lambda: not cluster.node_pools(), seconds=60)
    assert "Karpenter has no NodePool (karpenter.sh/v1) in the cluster" in refusal(cluster.pool("none"))


def test_labels_and_taints_that_do_not_fit_are_named(cluster: Cluster) -> None:
    cluster.node_pool("fits", labels={"team": "ml"}, template={"taints": [{"key": "own", "effect": "NoSchedule"}]})
    other, unknown = ({NODE_POOL: "fits", **more} for more in ({"team": "web"}, {"role": "train"}))
    assert "cannot have the label team=web" in refusal(cluster.pool("fits", node_selector_labels=other))
    assert "cannot have the label role=train" in refusal(cluster.pool("fits", node_selector_labels=unknown))
    assert "does not tolerate its taint own" in refusal(cluster.pool("fits"))
    night = Night(cluster.pool("fits", taints=["own:NoSchedule"]))
    night.ensure()
    night.train()


def test_a_node_class_that_is_missing_is_named(cluster: Cluster) -> None:
    pool = cluster.node_pool("classless", node_class="gone", ready=False)
    cluster.until_ready("classless", "False")
    refused = refusal(pool)
    assert "classless: it is not ready" in refused
    assert "NodeClass not found" in refused


def test_a_node_pool_that_no_karpenter_has_looked_at_is_refused(cluster: Cluster) -> None:
    cluster.karpenter.pause()
    try:
        pool = cluster.node_pool("unseen", ready=False)
        assert "unseen: it is not ready" in refusal(pool)
    finally:
        cluster.karpenter.resume()
    cluster.until_ready("unseen")
    Night(pool).ensure()


def test_a_node_pool_that_is_being_deleted_is_refused(cluster: Cluster) -> None:
    pool = cluster.node_pool("leaving")
    cluster.hold("nodepools", "leaving")
    cluster.delete_node_pool("leaving")
    try:
        assert "leaving: it is being deleted" in refusal(pool)
    finally:
        cluster.let_go("nodepools", "leaving")


def test_limits_that_are_used_up_are_noted_and_the_pod_is_told(cluster: Cluster) -> None:
    night = Night(cluster.node_pool("limited", limits={"nvidia.com/gpu": "0"}))
    with told() as lines:
        night.ensure()
        assert lines.matching(r"NodePool limited.*limits?.*nvidia.com/gpu")
        training = night.begin_train()
        lines.until(r"Karpenter brings no node: .*exceed limits for nodepool")
        late(training, GpuError, "exceed limits")


def test_a_static_node_pool_is_refused(cluster: Cluster) -> None:
    pool = cluster.node_pool("static", replicas=0, limits={"nodes": "1"})
    assert "static: it is static (replicas)" in refusal(pool)


@pytest.mark.parametrize(("operator", "value"), [("Gte", "4"), ("Lte", "4"), ("Gt", "3"), ("Lt", "5")])
def test_the_label_may_be_within_bounds(cluster: Cluster, operator: str, value: str) -> None:
    cpus = "karpenter.kwok.sh/instance-cpu"
    requirements = [requirement(cpus, operator, value), requirement(CAPACITY_TYPE, "In", "on-demand")]
    name = f"bounds-{operator}".lower()
    cluster.node_pool(name, requirements=requirements)
    Night(cluster.pool(name, node_selector_labels={NODE_POOL: name, cpus: "4"})).ensure()
    outside = "3" if operator in ("Gte", "Gt") else "5"
    assert f"cannot have the label {cpus}={outside}" in refusal(
        cluster.pool(name, node_selector_labels={NODE_POOL: name, cpus: outside})
    )


def test_a_label_of_kubernetes_that_karpenter_does_not_know_is_refused(cluster: Cluster) -> None:
    cluster.node_pool("roleless")
    role = {NODE_POOL: "roleless", "node-role.kubernetes.io/gpu": "true"}
    assert "cannot have the label node-role.kubernetes.io/gpu=true" in refusal(
        cluster.pool("roleless", node_selector_labels=role)
    )


def test_machines_without_gpus_by_their_category_are_refused(cluster: Cluster) -> None:
    category = "karpenter.k8s.aws/instance-category"
    requirements = [requirement(category, "In", "c"), requirement(CAPACITY_TYPE, "In", "on-demand")]
    assert f"its {category} has no GPUs: c" in refusal(cluster.node_pool("compute", requirements=requirements))


@pytest.mark.parametrize(
    ("types", "gpus", "words"),
    [
        pytest.param(["m7i.large"], 1, "no instance type", id="without-gpus"),
        pytest.param(["g6.12xlarge"], 8, "no instance type has enough resources", id="too-few"),
    ],
)
def test_machines_without_enough_gpus_are_told_of(cluster: Cluster, types: list[str], gpus: int, words: str) -> None:
    name = f"small-{gpus}"
    cluster.node_pool(name, types=types)
    night = Night(cluster.pool(name, gpus_per_node=gpus))
    with told() as lines:
        night.ensure()
        training = night.begin_train(gpus=gpus)
        lines.until(rf"Karpenter brings no node: .*{words}")
        late(training, GpuError, words)

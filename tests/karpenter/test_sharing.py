"""Several runs, and several nodes for one."""

from __future__ import annotations

import pytest

from airflow_gpu_provider.cluster.model.gpu_evidence import BAD_GPU
from airflow_gpu_provider.errors import GpuError
from gpu_sandbox.karpenter import MachineCloud
from tests.karpenter.cluster import INSTANCE_TYPE, NEVER, ZONE, Cluster, requirement
from tests.karpenter.nights import FOREVER, Night, failure, late, told
from tests.karpenter.test_launches import DRY
from tests.sandbox.running import eventually

TOGETHER = ("sh", "-c", "echo rank $JOB_COMPLETION_INDEX")
BROKEN = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.EVERY", 1.0)
    monkeypatch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.FIRST", 0.5)
    monkeypatch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.EVERY_FOR_GANGS", 1.0)


def test_two_runs_share_a_node_and_the_second_one_releases_it(cluster: Cluster) -> None:
    cluster.node_pool("four", types=["g6.12xlarge"])
    pool = cluster.pool("four", gpus_per_node=4)
    one, two = Night(pool, "one"), Night(pool, "two")
    for night in (one, two):
        night.ensure()
    trainings = [night.begin_train(gpus=2) for night in (one, two)]
    for training in trainings:
        training.result(90)
    assert len(cluster.claims("four")) == 1
    with told() as lines:
        assert one.scale_down()["nodes"] == 1
        assert lines.matching(r"kept for nightly/two: 1 node until")
        assert two.scale_down()["nodes"] == 0


def test_a_gang_hears_of_its_machines_and_they_go(cluster: Cluster) -> None:
    # Of one zone: with several, Karpenter may launch a third machine, nearer to the first (docs/provisioners.md).
    here = [requirement(INSTANCE_TYPE, "In", "g6.xlarge"), requirement(ZONE, "In", "us-west-2a")]
    night = Night(cluster.node_pool("gang", requirements=here))
    with told() as lines:
        night.ensure(nodes=2)
        night.train(*TOGETHER, nodes=2)
    assert len(cluster.nodes("gang")) == 2
    assert lines.matching("waits? for (its|their) nodes?.*Karpenter has asked for a machine")
    assert night.scale_down()["nodes"] == 0


def test_a_gang_hears_why_karpenter_brings_only_one_node(cluster: Cluster) -> None:
    night = Night(cluster.node_pool("narrow", limits={"nvidia.com/gpu": "1"}))
    night.ensure(nodes=2)
    with told() as lines:
        training = night.begin_train(*FOREVER, nodes=2, termination_grace_period=2)
        lines.until("Karpenter brings no node: .*exceed limits")
        lines.until(r"\bup$")  # the rank that has the one node, whose own time to start is over otherwise
        late(training, GpuError, "limits")


def test_a_gang_hears_of_launches_that_fail(cluster: Cluster, cloud: MachineCloud) -> None:
    night = Night(cluster.node_pool("parched"))
    night.ensure(nodes=2)
    cloud.refusal = DRY
    with told() as lines:
        training = night.begin_train(*TOGETHER, nodes=2)
        lines.until("Karpenter got no machine: .*insufficient capacity", seconds=30)
        cloud.refusal = None
        training.result(120)


@pytest.mark.parametrize("disruption", [NEVER, None], ids=["stays", "goes"])
def test_a_node_with_a_broken_gpu_is_avoided_and_karpenter_brings_another(
    cluster: Cluster, disruption: dict[str, str] | None
) -> None:
    name = "broken-never" if disruption else "broken"
    pool = cluster.node_pool(name, **({"disruption": disruption} if disruption else {}))
    night = Night(pool)
    night.ensure()
    breaks = ("sh", "-c", f"echo '{BROKEN}' >&2; exit 1")
    failure(night.begin_train(*breaks), GpuError, "ECC|broken")
    (marked,) = cluster.nodes(name)
    assert [label for label in marked.metadata.labels if label.startswith(BAD_GPU)]
    night.train()
    nodes = {node.metadata.name for node in cluster.nodes(name)}
    assert nodes - {marked.metadata.name}


def test_a_pod_that_excludes_hostnames_is_what_karpenter_refuses(cluster: Cluster) -> None:
    """Why nodes are avoided by a label: pkg/apis/v1/labels.go, RestrictedLabels."""
    pool = cluster.node_pool("hostnames")
    excluded = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["any"]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [excluded]}]}
        }
    }
    container = {"name": "main", "image": "busybox:1", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    spec = {"nodeSelector": pool.node_selector, "affinity": affinity, "containers": [container]}
    cluster.core.create_namespaced_pod("default", {"metadata": {"name": "picky"}, "spec": spec})
    refused = "kubernetes.io/hostname is not allowed"
    eventually(lambda: any(refused in line for line in cluster.events("picky")), seconds=30)
    assert not cluster.claims("hostnames")

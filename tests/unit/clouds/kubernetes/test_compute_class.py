"""A pool whose nodes GKE adds by a ComputeClass: what Ensure says of the class, and what it says while pods wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_gpu_provider import KubernetesGpuPool, placement
from airflow_gpu_provider.clouds.base import Group
from airflow_gpu_provider.clouds.kubernetes.provisioned import ProvisionedPlatform
from airflow_gpu_provider.errors import NoProvisioner
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient
from tests.unit.clouds.kubernetes.karpenter import NOW, condition, stamp

LABEL = "cloud.google.com/compute-class"
POOL = KubernetesGpuPool(
    name="train", provisioner="compute-class", node_selector_labels={LABEL: "gpu"}, gpus_per_node=1
)
PRIORITIES = [{"gpu": {"type": "nvidia-l4", "count": 1}, "spot": True}, {"gpu": {"type": "nvidia-l4", "count": 1}}]
STOCK_OUT = condition(
    "ProvisioningSuspended",
    "True",
    "OutOfResources",
    "NodeProvisioning associated with this priority failed due to the OutOfResources error."
    " Backing off the priority until 2026-03-01 02:05:00 UTC.",
)


class Cluster:
    """A GKE cluster with one ComputeClass."""

    def __init__(self) -> None:
        self.server = ApiServer(now=lambda: NOW)

    def compute_class(self, *conditions: Mapping[str, str], **refused: Mapping[str, str]) -> None:
        statuses = [{"identifier": name.strip("_"), "conditions": [each]} for name, each in refused.items()]
        self.server.put(
            "apis/cloud.google.com/v1/computeclasses/gpu",
            {
                "metadata": {"name": "gpu"},
                "spec": {"priorities": PRIORITIES, "nodePoolAutoCreation": {"enabled": True}},
                "status": {"conditions": list(conditions), "priorityStatuses": statuses},
            },
        )

    def platform(self) -> ProvisionedPlatform:
        found = ProvisionedPlatform(POOL)
        found.__dict__["_api"] = FakeApiClient(self.server)
        return found

    def group(self) -> Group:
        (group,) = self.platform().observe()
        return group


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_healthy_class_is_named_and_nothing_is_wrong(cluster: Cluster) -> None:
    cluster.compute_class(condition("Health", "True", "Health", "Crd is healthy."))
    plan = cluster.platform().plan(2)
    (brought,) = plan.brought
    assert brought == f"GKE (ComputeClass gpu) provisions nodes with {LABEL}=gpu when pods request them"
    assert (plan.notes, plan.is_empty, cluster.group().issues) == ((), True, ())


def test_a_class_that_gke_has_not_looked_at_yet_is_no_reason_to_refuse(cluster: Cluster) -> None:
    cluster.compute_class()
    assert cluster.platform().plan(1).notes == ()


def test_a_cluster_without_the_class_is_refused_and_told_while_nodes_are_wanted(cluster: Cluster) -> None:
    with pytest.raises(NoProvisioner) as refused:
        cluster.platform().plan(1)
    assert refused.value.what == "Pool train: the cluster has no ComputeClass gpu."
    assert "node_selector_labels" in refused.value.fix
    assert cluster.group().issues == ("ComputeClass gpu does not exist any more",)


def test_a_class_that_gke_refuses_is_refused_in_gkes_words(cluster: Cluster) -> None:
    words = "location config with specific reservations enabled"
    cluster.compute_class(condition("Health", "False", "Unhealthy", words))
    with pytest.raises(NoProvisioner, match=f"GKE adds no nodes by ComputeClass gpu: {words}"):
        cluster.platform().plan(1)
    assert cluster.group().issues == (f"ComputeClass gpu: {words}",)


def test_a_priority_that_is_suspended_is_told_and_stops_nothing(cluster: Cluster) -> None:
    cluster.compute_class(_0=STOCK_OUT)
    (note,) = cluster.platform().plan(1).notes
    assert note == f"ComputeClass gpu, priority 0: {STOCK_OUT['message']}"
    assert cluster.group().issues == (note,)


def test_a_class_whose_priorities_are_all_suspended_brings_nothing_now(cluster: Cluster) -> None:
    cluster.compute_class(_0=STOCK_OUT, _1=STOCK_OUT)
    assert cluster.group().issues[-1] == "no priority of ComputeClass gpu brings nodes now"
    cluster.compute_class(_0=STOCK_OUT, _1=condition("ProvisioningConstrained", "True", "QuotaExceeded", "in one zone"))
    assert cluster.group().issues[-1] == "ComputeClass gpu, priority 1: in one zone"


def test_what_is_over_or_goes_well_is_not_told(cluster: Cluster) -> None:
    over: dict[str, Any] = {**STOCK_OUT, "status": "False"}
    cluster.compute_class(_0=over, _1=condition("NodeProvisioningInProgress", "True", "PodPending", "1 new nodes"))
    assert cluster.group().issues == ()


def test_its_nodes_are_those_of_the_class_and_their_place_is_known(cluster: Cluster) -> None:
    cluster.compute_class()
    labels = {
        LABEL: "gpu",
        "cloud.google.com/gke-spot": "true",
        "node.kubernetes.io/instance-type": "g2-standard-4",
        "topology.kubernetes.io/zone": "us-central1-a",
    }
    for name, carries in (("mine", labels), ("other", {**labels, LABEL: "cpu"})):
        meta = {"name": name, "labels": carries, "creationTimestamp": stamp(1)}
        spec = {"providerID": f"gce://ml/us-central1-a/{name}"}
        status = {"conditions": [condition("Ready")], "allocatable": {"nvidia.com/gpu": "1"}}
        cluster.server.put(f"api/v1/nodes/{name}", {"metadata": meta, "spec": spec, "status": status})
    group = cluster.group()
    assert len(group.machines) == 1
    assert (group.candidate.instance_type, group.candidate.zone, group.candidate.market) == (
        "g2-standard-4",
        "us-central1-a",
        "SPOT",
    )
    assert group.provisioner == "GKE"


def test_pods_select_the_class_and_tolerate_its_taint() -> None:
    put = placement(POOL, gpus=1)
    assert put.node_selector == {LABEL: "gpu"}
    assert {"key": LABEL, "operator": "Equal", "value": "gpu", "effect": "NoSchedule"} in put.tolerations

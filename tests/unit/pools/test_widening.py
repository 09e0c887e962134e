"""What would let a pool have more machines, by the arguments that its spec has."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, KubernetesGpuPool
from airflow_gpu_provider.pools import GpuPool

EKS = {"name": "train", "cluster_name": "ml", "region": "us-west-2", "max_nodes": 2}
GKE = {"name": "train", "project_id": "my-project", "cluster_name": "ml", "location": "us-central1", "max_nodes": 2}


def brought_by(provisioner: str | None) -> KubernetesGpuPool:
    labels = {"role": "gpu", "cloud.google.com/compute-class": "gpu"}
    selector = {"node_selector_labels": labels, "gpus_per_node": 1}
    return KubernetesGpuPool(name="train", provisioner=provisioner, **selector)


ALL: dict[str, tuple[GpuPool, str]] = {
    "EKS": (EksGpuPool(instance_types=["g6.xlarge"], **EKS), "zones, instance_types or capacity_types"),
    "groups of others on EKS": (EksGpuPool(manage="scale", node_groups=["gpu"], **EKS), "node_groups or asg_names"),
    "GKE": (GkeGpuPool(machine_types=["g2-standard-4"], **GKE), "node_locations, machine_types or capacity_types"),
    "queued provisioning": (
        GkeGpuPool(
            machine_types=["g2-standard-4"], scaling="autoscaler", flex_start=True, queued_provisioning=True, **GKE
        ),
        "Add machine_types to the pool: each request waits in the one zone",
    ),
    "a reservation": (
        GkeGpuPool(
            machine_types=["a3-megagpu-8g"],
            reservation_affinity={"consume_reservation_type": "ANY_RESERVATION_THEN_FAIL"},
            **GKE,
        ),
        "Enlarge the reservation that reservation_affinity names",
    ),
    "node pools of others": (GkeGpuPool(manage="scale", node_pools=["gpu"], **GKE), "node_pools"),
    "karpenter": (brought_by("karpenter"), "its NodePool"),
    "auto-mode": (brought_by("auto-mode"), "its NodePool"),
    "autopilot": (brought_by("autopilot"), "by node_selector_labels"),
    "cluster-autoscaler": (
        brought_by("cluster-autoscaler"),
        "groups to cluster-autoscaler whose nodes have these labels",
    ),
    "compute-class": (brought_by("compute-class"), "its ComputeClass"),
    "bare metal": (brought_by(None), "Add nodes to the pool"),
}


@pytest.mark.parametrize(("pool", "says"), ALL.values(), ids=ALL)
def test_only_arguments_of_that_pool_are_named(pool: GpuPool, says: str) -> None:
    told = pool.how_to_widen
    assert says in told
    named: set[Any] = set(re.findall(r"[a-z]+(?:_[a-z]+)+", told))
    assert named <= {field.name for field in fields(pool)}

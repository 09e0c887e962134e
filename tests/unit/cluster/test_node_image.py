"""What a node's look says of NVIDIA's driver and a device plugin; the texts are those of real nodes."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.cluster.model.node import NodeImage

GKE = {"cloud.google.com/gke-nodepool": "train-a"}
FULL, MAJOR = "nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.major"


def node(system: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "n1", "labels": labels}, "status": {"nodeInfo": {"osImage": system}}}


@pytest.mark.parametrize(
    ("system", "labels", "driver", "has_plugin"),
    [
        ("Bottlerocket OS 1.50.0 (aws-k8s-1.36-nvidia)", {}, "its image", True),
        ("Bottlerocket (EKS Auto, Nvidia) 2026.4.23 (aws-k8s-1.34-nvidia)", {}, "its image", True),
        ("Container-Optimized OS from Google", {"cloud.google.com/gke-gpu-driver-version": "latest"}, "GKE", False),
        ("Ubuntu 24.04.2 LTS", {**GKE, "cloud.google.com/gke-gpu-driver-version": "default"}, "GKE", False),
        ("Ubuntu 22.04.5 LTS", {"nvidia.com/gpu.deploy.driver": "true"}, "NVIDIA's GPU Operator", False),
        ("Amazon Linux 2023.9.20251117", {FULL: "580.105.08"}, "driver 580.105.08", False),
        ("Ubuntu 22.04.5 LTS", {MAJOR: "570", "nvidia.com/cuda.driver.minor": "124"}, "driver 570.124", False),
    ],
)
def test_knows_who_brings_the_driver(system: str, labels: dict[str, str], driver: str, has_plugin: bool) -> None:
    image = NodeImage.parse(node(system, **labels))
    assert driver in image.driver
    assert image.has_plugin is has_plugin
    assert image.fix == ""


@pytest.mark.parametrize(
    ("system", "labels", "fix"),
    [
        ("Bottlerocket OS 1.50.0 (aws-k8s-1.36)", {}, "BOTTLEROCKET_x86_64_NVIDIA"),
        ("Bottlerocket (EKS Auto, Standard) 2026.9.14 (aws-k8s-1.36-standard)", {}, "BOTTLEROCKET_x86_64_NVIDIA"),
        ("Amazon Linux 2023.9.20251117", {}, "AL2023_x86_64_NVIDIA"),
        ("Container-Optimized OS from Google", GKE, 'driver="default"'),
        ("Ubuntu 24.04.2 LTS", {**GKE, "cloud.google.com/gke-gpu-driver-version": "disabled"}, 'driver="daemonset"'),
        ("Ubuntu 24.04.2 LTS", {}, "GPU Operator"),
        ("Talos (v1.11.0)", {}, "GPU Operator"),
        ("", {}, "GPU Operator"),
    ],
)
def test_names_what_would_bring_one(system: str, labels: dict[str, str], fix: str) -> None:
    image = NodeImage.parse(node(system, **labels))
    assert (image.driver, image.has_plugin) == ("", False)
    assert fix in image.fix


def test_a_node_that_has_not_reported_is_of_an_unknown_image() -> None:
    assert str(NodeImage.parse({"metadata": {"name": "n1"}})) == "an unknown image"

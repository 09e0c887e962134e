"""What this package puts into a cluster by itself is pinned: each image has a version, and no `latest`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool, GkeGpuPool
from airflow_gpu_provider.addons.cluster_autoscaler import ClusterAutoscaler
from airflow_gpu_provider.addons.device_plugin import DevicePlugin, driver_manifest

PACKAGE = Path(__file__).parents[3] / "airflow_gpu_provider"
EKS = EksGpuPool(
    name="train", cluster_name="ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1, scaling="autoscaler"
)
VERSIONED = re.compile(r"[\w.-]+(/[\w.-]+)*:v?\d[\w.-]*(@sha256:[\da-f]{64})?")
# Of GKE's node images: it is on the node's disk, and of the version of the node.
PRELOADED = re.compile(r"(cos|gke)-nvidia-installer:fixed")


def gke(image_type: str) -> GkeGpuPool:
    where = {"project_id": "my-project", "location": "us-central1", "cluster_name": "ml"}
    return GkeGpuPool(
        name="train", machine_types=["g2-standard-4"], driver="daemonset", image_type=image_type, max_nodes=1, **where
    )


MANIFESTS: dict[str, Any] = {
    "device plugin": DevicePlugin(pool=EKS).manifests(),
    "cluster-autoscaler": ClusterAutoscaler(pool=EKS).manifests(),
    "driver on COS": driver_manifest(gke("COS_CONTAINERD")),
    "driver on Ubuntu": driver_manifest(gke("UBUNTU_CONTAINERD")),
}


def images(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from [item] if key == "image" else images(item)
    if isinstance(value, list):
        for item in value:
            yield from images(item)


def is_pinned(image: str) -> bool:
    return bool(VERSIONED.fullmatch(image) or PRELOADED.fullmatch(image))


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_image_of_a_manifest_has_a_version(name: str) -> None:
    found = list(images(json.loads(json.dumps(MANIFESTS[name]))))
    assert found
    assert [image for image in found if not is_pinned(image)] == []


@pytest.mark.parametrize("image", ["nvcr.io/nvidia/k8s-device-plugin", "a/b:latest", "a/b:main", "alpine"])
def test_what_has_none_is_found(image: str) -> None:
    assert not is_pinned(image)


def test_nothing_in_the_package_says_latest() -> None:
    """Of an image; the sandbox's nodes read it as Docker does, and install nothing."""
    texts = (
        (path, node.value)
        for path in PACKAGE.rglob("*.py")
        if "sandbox" not in path.relative_to(PACKAGE).parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    assert [(str(path), text) for path, text in texts if ":latest" in text] == []

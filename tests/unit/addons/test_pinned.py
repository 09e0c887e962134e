"""What this package puts into a cluster by itself is pinned: each image has a version, and no `latest`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_gpu_provider import EksGpuPool, GkeGpuPool
from airflow_gpu_provider.addons.device_plugin import (
    PLUGIN_NAMESPACE,
    DevicePlugin,
    driver_manifest,
    fabric_manifest,
    namespace_manifests,
)
from airflow_gpu_provider.clouds.aws.cluster_autoscaler import image_for, manifest
from airflow_gpu_provider.operators import install_device_plugin

PACKAGE = Path(__file__).parents[3] / "airflow_gpu_provider"
EKS = EksGpuPool(
    name="train", cluster_name="ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1, scaling="autoscaler"
)
EFA = replace(EKS, scaling="direct", instance_types=["p4d.24xlarge"], network="efa")
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
    "cluster-autoscaler": list(yaml.safe_load_all(manifest(EKS, image=image_for("1.36")))),
    "EFA's plugin": fabric_manifest(EFA, namespace=PLUGIN_NAMESPACE),
    "driver on COS": driver_manifest(gke("COS_CONTAINERD"), namespace=PLUGIN_NAMESPACE),
    "driver on Ubuntu": driver_manifest(gke("UBUNTU_CONTAINERD"), namespace=PLUGIN_NAMESPACE),
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


@pytest.mark.parametrize("name", sorted(MANIFESTS.keys() - {"cluster-autoscaler"}))
def test_no_pod_has_a_token_that_it_does_not_need(name: str) -> None:
    manifest = MANIFESTS[name]
    sets = [each for each in (manifest if isinstance(manifest, list) else [manifest]) if each["kind"] == "DaemonSet"]
    assert [each["spec"]["template"]["spec"]["automountServiceAccountToken"] for each in sets] == [False]


def test_the_role_file_has_the_namespace_that_the_operator_makes() -> None:
    file = Path(__file__).parents[3] / "docs" / "rbac" / "device-plugin.yaml"
    documented = list(yaml.safe_load_all(file.read_text()))
    assert documented[:2] == namespace_manifests()
    assert {each["metadata"]["namespace"] for each in documented[1:]} == {PLUGIN_NAMESPACE}
    assert DevicePlugin(pool=EKS).namespace == install_device_plugin.NAMESPACE == PLUGIN_NAMESPACE

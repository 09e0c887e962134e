"""What this package puts into a cluster is pulled by digest, but for what docs/security.md names; yours can be, too."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from airflow_gpu_provider.addons import device_plugin
from airflow_gpu_provider.addons.device_plugin import DevicePlugin, fabric_manifest
from airflow_gpu_provider.clouds.aws.cluster_autoscaler import manifest
from airflow_gpu_provider.operators import install_device_plugin
from tests.unit.addons.test_pinned import EFA, EKS, MANIFESTS, PRELOADED, images

MINE = f"mirror.example:5000/gpu/mine:v1@sha256:{'0' * 64}"
# Open: docs/security.md has where to read theirs.
BY_TAG = re.compile(r"registry\.k8s\.io/autoscaling/cluster-autoscaler:\S+|\S+/eks/aws-efa-k8s-device-plugin:\S+")


def images_of(manifest: Any) -> list[str]:
    return list(images(json.loads(json.dumps(manifest))))


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_image_that_is_pulled_has_a_digest_but_what_is_named_as_open(name: str) -> None:
    pulled = [image for image in images_of(MANIFESTS[name]) if not PRELOADED.fullmatch(image)]
    by_tag = [image for image in pulled if not re.search(r":[\w.-]+@sha256:[\da-f]{64}$", image)]
    assert [image for image in by_tag if not BY_TAG.fullmatch(image)] == []


def test_a_digest_is_of_one_version() -> None:
    assert images_of(DevicePlugin(pool=EKS, version="v0.19.0").manifests()) == [
        "nvcr.io/nvidia/k8s-device-plugin:v0.19.0"
    ]


@pytest.mark.parametrize(
    "made",
    [
        DevicePlugin(pool=EKS, image=MINE).manifests(),
        list(yaml.safe_load_all(manifest(EKS, image=MINE))),
        fabric_manifest(EFA, namespace="x", image=MINE),
    ],
    ids=["device plugin", "cluster-autoscaler", "EFA's device plugin"],
)
def test_an_image_of_your_own_may_be_a_digest(made: Any) -> None:
    assert images_of(made) == [MINE]


def test_the_operator_s_defaults_are_the_addon_s() -> None:
    """A version that is raised in one place only would be pulled by its tag again."""
    assert install_device_plugin.VERSION == device_plugin.VERSION
    assert install_device_plugin.NAMESPACE == device_plugin.PLUGIN_NAMESPACE

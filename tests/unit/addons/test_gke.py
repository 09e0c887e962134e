"""GKE's own device plugin is found for what it is, and its driver is installed by a DaemonSet where a pool says so."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.addons.detection import find_servers, served_by
from airflow_gpu_provider.addons.device_plugin import PLUGIN_NAMESPACE, driver_manifest
from airflow_gpu_provider.errors import DevicePluginConflict
from tests.unit.addons.test_detection import STATIC, affinity, daemon_set
from tests.unit.clouds.google.test_gke_pool import pool
from tests.unit.training.test_pod_placement import a_pool

# As GKE has it in every cluster.
GKES = daemon_set(
    "nvidia-gpu-device-plugin-small-cos",
    "gke.gcr.io/nvidia-gpu-device-plugin@sha256:0",
    metadata={"labels": {"k8s-app": "nvidia-gpu-device-plugin", "addonmanager.kubernetes.io/mode": "Reconcile"}},
    affinity=affinity(("cloud.google.com/gke-accelerator", "nvidia-l4")),
)


def served(spec: Any, *sets: dict[str, Any]) -> str | None:
    server = served_by(spec, find_servers(spec, list(sets), []), ours=False)
    return str(server) if server else None


@pytest.mark.parametrize("driver", ["default", "latest", "disabled", "daemonset"])
def test_a_gke_pool_is_served_by_gke(driver: str) -> None:
    assert served(pool(driver=driver), GKES) == "GKE"
    assert served(pool(driver=driver)) == "GKE"


def test_a_pool_that_keeps_gkes_plugin_away_is_not() -> None:
    own = pool(node_labels={"gke-no-default-nvidia-gpu-device-plugin": "true"})
    assert served(own, GKES) is None
    assert served(own, GKES, STATIC) == "device plugin kube-system/nvidia-device-plugin-daemonset"


def test_our_own_plugin_next_to_gkes_is_a_conflict() -> None:
    with pytest.raises(DevicePluginConflict, match="GKE serves its nodes"):
        served_by(pool(), find_servers(pool(), [], []), ours=True)


def test_only_a_pool_that_wants_it_has_a_driver_installer() -> None:
    assert driver_manifest(pool(), namespace=PLUGIN_NAMESPACE) is None
    assert driver_manifest(a_pool(), namespace=PLUGIN_NAMESPACE) is None


@pytest.mark.parametrize(
    ("image_type", "installer", "host_network"),
    [
        ("COS_CONTAINERD", "cos-nvidia-installer:fixed", True),
        ("UBUNTU_CONTAINERD", "gke-nvidia-installer:fixed", None),
    ],
)
def test_the_installer_is_that_of_the_node_image(image_type: str, installer: str, host_network: bool | None) -> None:
    manifest = driver_manifest(pool(driver="daemonset", image_type=image_type), namespace=PLUGIN_NAMESPACE)
    assert manifest
    spec = manifest["spec"]["template"]["spec"]
    (container,) = spec["initContainers"]
    assert (container["image"], container["imagePullPolicy"]) == (installer, "Never")
    assert spec.get("hostNetwork") == host_network
    assert spec["nodeSelector"] == {"airflow-gpu-provider/pool": "train-gpu"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
    selector = manifest["spec"]["selector"]["matchLabels"]
    assert selector.items() <= manifest["spec"]["template"]["metadata"]["labels"].items()


def test_the_installer_may_be_ones_own() -> None:
    manifest = driver_manifest(pool(driver="daemonset"), namespace=PLUGIN_NAMESPACE, image="registry.example/driver:1")
    assert manifest
    (container,) = manifest["spec"]["template"]["spec"]["initContainers"]
    assert (container["image"], container["imagePullPolicy"]) == ("registry.example/driver:1", "IfNotPresent")

"""NVIDIA's driver on GKE nodes whose pool leaves it to a DaemonSet: Google's installers for COS and Ubuntu. Pure.

As in GoogleCloudPlatform/container-engine-accelerators, nvidia-driver-installer/{cos,ubuntu}/daemonset-preloaded.yaml,
but for one pool's nodes only.
"""

from __future__ import annotations

from typing import Any

from airflow_gpu_provider.pools import GkeGpuPool, GpuPool
from airflow_gpu_provider.pools.base import POOL_LABEL

NAMESPACE = "kube-system"
PAUSE_IMAGE = "gke.gcr.io/pause:3.8"

# The node images bring these; there is nothing to pull.
_PRELOADED = {"cos": "cos-nvidia-installer:fixed", "ubuntu": "gke-nvidia-installer:fixed"}
_NAME = {"app.kubernetes.io/name": "nvidia-driver-installer"}
_COS_ENVIRONMENT = {
    "NVIDIA_INSTALL_DIR_HOST": "/home/kubernetes/bin/nvidia",
    "NVIDIA_INSTALL_DIR_CONTAINER": "/usr/local/nvidia",
    "VULKAN_ICD_DIR_HOST": "/home/kubernetes/bin/nvidia/vulkan/icd.d",
    "VULKAN_ICD_DIR_CONTAINER": "/etc/vulkan/icd.d",
    "ROOT_MOUNT_DIR": "/root",
    "COS_TOOLS_DIR_HOST": "/var/lib/cos-tools",
    "COS_TOOLS_DIR_CONTAINER": "/build/cos-tools",
}
# What of the node each installer sees: name -> (path on the node, path in the container)
_MOUNTS = {
    "cos": {
        "dev": ("/dev", "/dev"),
        "vulkan-icd": ("/home/kubernetes/bin/nvidia/vulkan/icd.d", "/etc/vulkan/icd.d"),
        "nvidia": ("/home/kubernetes/bin/nvidia", "/usr/local/nvidia"),
        "root": ("/", "/root"),
        "cos-tools": ("/var/lib/cos-tools", "/build/cos-tools"),
    },
    "ubuntu": {"dev": ("/dev", "/dev"), "boot": ("/boot", "/boot"), "root": ("/", "/root")},
}


def driver_manifest(pool: GpuPool, *, image: str | None = None) -> dict[str, Any] | None:
    """Return the DaemonSet that installs the driver, or None where the pool does not leave that to one.

    Args:
        pool: The pool.
        image: Another installer instead of the node image's own.
    """
    if not isinstance(pool, GkeGpuPool) or pool.driver != "daemonset":
        return None
    labels = {**_NAME, "app.kubernetes.io/managed-by": "airflow-gpu-provider", POOL_LABEL: pool.name}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": f"nvidia-driver-installer-{pool.name}", "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": {**_NAME, POOL_LABEL: pool.name}},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {"metadata": {"labels": labels}, "spec": _pod_spec(pool, image)},
        },
    }


def _pod_spec(pool: GkeGpuPool, image: str | None) -> dict[str, Any]:
    system = "ubuntu" if "UBUNTU" in pool.image_type.upper() else "cos"
    mounts = _MOUNTS[system]
    return {
        "priorityClassName": "system-node-critical",
        "nodeSelector": pool.node_selector,
        "tolerations": [{"operator": "Exists"}],
        **({"hostNetwork": True, "hostPID": True} if system == "cos" else {}),
        "volumes": [{"name": name, "hostPath": {"path": host}} for name, (host, _) in mounts.items()],
        "initContainers": [_installer(system, image)],
        "containers": [{"name": "pause", "image": PAUSE_IMAGE}],
    }


def _installer(system: str, image: str | None) -> dict[str, Any]:
    environment = _COS_ENVIRONMENT if system == "cos" else {}
    return {
        "name": "nvidia-driver-installer",
        "image": image or _PRELOADED[system],
        "imagePullPolicy": "IfNotPresent" if image else "Never",
        "resources": {"requests": {"cpu": "150m"}},
        "securityContext": {"privileged": True},
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "volumeMounts": [{"name": name, "mountPath": inside} for name, (_, inside) in _MOUNTS[system].items()],
    }

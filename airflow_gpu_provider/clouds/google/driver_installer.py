"""NVIDIA's driver on GKE nodes whose pool leaves it to a DaemonSet: Google's installers for COS and Ubuntu. Pure.

As in GoogleCloudPlatform/container-engine-accelerators, nvidia-driver-installer/{cos,ubuntu}/daemonset-preloaded.yaml
have it, but for one pool's nodes only.
"""

from __future__ import annotations

from typing import Any

from airflow_gpu_provider.pools.on_nodes import NodeDaemon

# With the digest that daemonset-preloaded-latest.yaml beside it has.
PAUSE_IMAGE = "gke.gcr.io/pause:3.8@sha256:880e63f94b145e46f1b1082bb71b85e21f16b99b180b9996407d61240ceb9830"

_NAME = "nvidia-driver-installer"
# The node images bring these; there is nothing to pull.
_PRELOADED = {"cos": "cos-nvidia-installer:fixed", "ubuntu": "gke-nvidia-installer:fixed"}
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


def driver_installer(image_type: str, image: str | None) -> NodeDaemon:
    """Return the installer for a node image; `image` is another installer instead of the node image's own."""
    system = "ubuntu" if "UBUNTU" in image_type.upper() else "cos"
    mounts = _MOUNTS[system]
    return NodeDaemon(
        name=_NAME,
        pod_spec={
            "tolerations": [{"operator": "Exists"}],
            **({"hostNetwork": True, "hostPID": True} if system == "cos" else {}),
            "volumes": [{"name": name, "hostPath": {"path": host}} for name, (host, _) in mounts.items()],
            "initContainers": [_installer(system, image)],
            "containers": [{"name": "pause", "image": PAUSE_IMAGE}],
        },
    )


def _installer(system: str, image: str | None) -> dict[str, Any]:
    environment = _COS_ENVIRONMENT if system == "cos" else {}
    return {
        "name": _NAME,
        "image": image or _PRELOADED[system],
        "imagePullPolicy": "IfNotPresent" if image else "Never",
        "resources": {"requests": {"cpu": "150m"}},
        "securityContext": {"privileged": True},
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "volumeMounts": [{"name": name, "mountPath": inside} for name, (_, inside) in _MOUNTS[system].items()],
    }

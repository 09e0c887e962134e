"""What a node's image brings for its GPUs, NVIDIA's driver and a device plugin, told from the Node object. Pure.

A kubelet reports what its operating system calls itself (Node v1: status.nodeInfo.osImage), clouds and NVIDIA's add-ons
set labels:

- Bottlerocket says its variant, "Bottlerocket OS 1.50.0 (aws-k8s-1.36-nvidia)"; those for NVIDIA have driver and plugin
  (bottlerocket-os/bottlerocket, QUICKSTART-EKS.md). So do EKS Auto Mode's, "Bottlerocket (EKS Auto, Nvidia)".
- Amazon Linux says its version alone: EKS's images with NVIDIA's driver and those without look the same.
- GKE installs the driver where the label cloud.google.com/gke-gpu-driver-version says "default" or "latest" (GKE's page
  "Run GPUs in GKE Standard node pools"); else a DaemonSet has to, on Container-Optimized OS and on Ubuntu.
- NVIDIA's GPU Operator labels the nodes to which it brings the driver (nvidia.com/gpu.deploy.driver), and GPU feature
  discovery says which one it found (nvidia.com/cuda.driver-version.full, nvidia.com/cuda.driver.* before 0.15).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

_DISCOVERED = "nvidia.com/cuda.driver-version.full"
_DISCOVERED_BEFORE = ("nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.minor", "nvidia.com/cuda.driver.rev")
_OPERATORS_DRIVER = "nvidia.com/gpu.deploy.driver"
_GKES_DRIVER = "cloud.google.com/gke-gpu-driver-version"
_ON_GKE = "cloud.google.com/gke-nodepool"


@dataclass(frozen=True, kw_only=True)
class NodeImage:
    """What is known of a node's image.

    Attributes:
        system: What the operating system calls itself; empty where the kubelet has not said.
        driver: Who brings NVIDIA's driver, in words; empty where nobody does, or nothing says.
        has_plugin: The image brings a device plugin.
        fix: What brings the driver to a node with this image; empty where somebody does already.
    """

    system: str = ""
    driver: str = ""
    has_plugin: bool = False
    fix: str = "Choose a node image that brings NVIDIA's driver, or install NVIDIA's GPU Operator."

    @classmethod
    def parse(cls, node: Mapping[str, Any]) -> Self:
        """Read it from a node as the API server sends it."""
        return cls.of(system_of(node), node["metadata"].get("labels") or {})

    @classmethod
    def of(cls, system: str, labels: Mapping[str, str]) -> Self:
        """Tell it from what the operating system calls itself, and from the node's labels."""
        is_bottlerocket = system.startswith("Bottlerocket")
        has_plugin = is_bottlerocket and "nvidia" in system.lower()
        driver = _discovered(labels) or _brought(labels) or ("its image" if has_plugin else "")
        return cls(system=system, driver=driver, has_plugin=has_plugin, fix="" if driver else _fix(system, labels))

    def __str__(self) -> str:
        return self.system or "an unknown image"


def system_of(node: Mapping[str, Any]) -> str:
    """Return what a node's operating system calls itself; empty where its kubelet has not reported yet."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(info.get("osImage") or "")


def _discovered(labels: Mapping[str, str]) -> str:
    parts = [labels[key] for key in _DISCOVERED_BEFORE if labels.get(key)]
    version = labels.get(_DISCOVERED) or ".".join(parts)
    return f"driver {version}, as feature discovery found" if version else ""


def _brought(labels: Mapping[str, str]) -> str:
    if labels.get(_GKES_DRIVER) in ("default", "latest"):
        return f"GKE, the {labels[_GKES_DRIVER]} version"
    return "NVIDIA's GPU Operator" if labels.get(_OPERATORS_DRIVER) == "true" else ""


def _fix(system: str, labels: Mapping[str, str]) -> str:
    if _ON_GKE in labels:
        return 'Let GKE install NVIDIA\'s driver (driver="default"), or a DaemonSet (driver="daemonset").'
    if system.startswith("Bottlerocket"):
        return "Choose Bottlerocket's variant for NVIDIA, like ami_type BOTTLEROCKET_x86_64_NVIDIA."
    if system.startswith("Amazon Linux"):
        return "Choose EKS's image with NVIDIA's driver, like ami_type AL2023_x86_64_NVIDIA."
    if system.startswith("Ubuntu"):
        return "Install NVIDIA's GPU Operator: Ubuntu's images for EKS have no driver."
    return NodeImage.fix

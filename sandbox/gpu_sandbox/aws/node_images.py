"""What the nodes of a managed node group look like, and have, by the group's AMI type.

EKS's user guide, "Amazon EKS optimized accelerated AMIs": images with NVIDIA in their name bring NVIDIA's driver, and
Bottlerocket's the device plugin, too; all others bring neither. What systems call themselves is from `kubectl get nodes
-o wide` of clusters. NVIDIA's driver 470 was the last for Kepler GPUs (bottlerocket-os/bottlerocket#3959).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_sandbox.aws.user_data import node_configs, text_of

Volumes = Mapping[str, int]
"""Sizes in GiB that a launch template gives, by the device's name."""
IMAGES_OWN_GIB = 20
GP3_MIB = 125.0
"""What a gp3 volume writes a second, unless it is told more ("Amazon EBS General Purpose SSD volumes")."""
_LOCAL_MIB = 600.0
_KEPLER = ("p2.", "g2.")


@dataclass(frozen=True, kw_only=True)
class NodeImage:
    """What the operating system calls itself, and whether it brings NVIDIA's driver and device plugin."""

    system: str
    has_driver: bool = False
    has_plugin: bool = False


def node_image(ami_type: str | None, instance_type: str, *, kubernetes: str) -> NodeImage:
    """Return what a node has; one whose image is its owner's has a driver.

    ami_type: Of its node group; None for an instance of a self-managed group.
    kubernetes: Its version, like "v1.36.3".
    """
    version = ".".join(kubernetes.removeprefix("v").split(".")[:2])
    if ami_type in (None, "CUSTOM"):
        return NodeImage(system="Amazon Linux 2023.9.20251117", has_driver=True)
    nvidia = "NVIDIA" in ami_type or ami_type == "AL2_x86_64_GPU"
    has_driver = nvidia and not instance_type.startswith(_KEPLER)
    if ami_type.startswith("BOTTLEROCKET"):
        variant = f"aws-k8s-{version}{'-nvidia' if nvidia else ''}"
        return NodeImage(system=f"Bottlerocket OS 1.50.0 ({variant})", has_driver=has_driver, has_plugin=nvidia)
    system = "Amazon Linux 2" if ami_type.startswith("AL2_") else "Amazon Linux 2023.9.20251117"
    return NodeImage(system=system, has_driver=has_driver)


def image_disk_mib(ami_type: str, data: Mapping[str, Any], *, has_local_disk: bool, ebs: float = math.inf) -> float:
    """Return how many MiB a second the disk for images writes, by the data of a group's launch template.

    A volume writes no more than the machine's `ebs_mib`. With nodeadm's RAID0 images go to the machine's own disks;
    what FastImagePull asks of a disk is what they are taken to write (awslabs/amazon-eks-ami, nodeadm).
    """
    if has_local_disk and any(_strategy(each) == "RAID0" for each in node_configs(text_of(data.get("UserData")))):
        return _LOCAL_MIB
    device = "/dev/xvdb" if ami_type.startswith("BOTTLEROCKET") else "/dev/xvda"
    volumes = {each.get("DeviceName"): each.get("Ebs") or {} for each in data.get("BlockDeviceMappings") or ()}
    return min(float(volumes.get(device, {}).get("Throughput") or GP3_MIB), ebs)


def ebs_mib(described: Mapping[str, Any]) -> float:
    """Return how many MiB a second a type has for EBS at most, for a burst (DescribeInstanceTypes' EbsInfo)."""
    optimized = (described.get("EbsInfo") or {}).get("EbsOptimizedInfo") or {}
    return float(optimized.get("MaximumThroughputInMBps", math.inf)) * 1e6 / 2**20


def _strategy(config: Mapping[str, Any]) -> object:
    return ((config.get("spec") or {}).get("instance") or {}).get("localStorage", {}).get("strategy")


def image_disk_gib(ami_type: str, *, disk_gib: int | None, volumes: Volumes) -> int:
    """Return the size of the volume for images and pods.

    A node group's disk_gib is its root device's (botocore, CreateNodegroup). Bottlerocket has its system there, and
    images and pods on /dev/xvdb (eksctl-io/eksctl#2776; aws-ia/terraform-aws-eks-blueprints#1610).
    """
    if ami_type.startswith("BOTTLEROCKET"):
        return volumes.get("/dev/xvdb", IMAGES_OWN_GIB)
    return disk_gib or volumes.get("/dev/xvda", IMAGES_OWN_GIB)

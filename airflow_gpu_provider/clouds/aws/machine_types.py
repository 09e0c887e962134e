"""EC2's instance types with NVIDIA GPUs, and what pods can use of an EKS node. Data and look-ups, no I/O.

Sources: Amazon EC2's instance type pages (accelerated computing), DescribeInstanceTypes for vCPUs, memory and GPUs, and
the kubelet's reservations in awslabs/amazon-eks-ami.
A type that is not listed here still works: what depends on the catalogue is left to EC2 to check.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from airflow_gpu_provider.accelerators import CPUS_RESERVED, EVICTED_BELOW, GPUS, Gpu, GpusOfMachine, NodeSize, reserved


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """A machine type with GPUs: `gpus` of model `gpu`, `vcpus`, and `memory_gib` of main memory."""

    name: str
    gpu: Gpu
    gpus: int
    vcpus: int
    memory_gib: float
    arch: str = "amd64"


# EC2 type: (GPU, GPUs, vCPUs, memory GiB). A part of a GPU, as in g6f machines, is one that pods can ask for.
_EC2: dict[str, tuple[str, int, int, float]] = {
    "p2.xlarge": ("K80", 1, 4, 61),
    "p2.8xlarge": ("K80", 8, 32, 488),
    "p2.16xlarge": ("K80", 16, 64, 732),
    "p3.2xlarge": ("V100", 1, 8, 61),
    "p3.8xlarge": ("V100", 4, 32, 244),
    "p3.16xlarge": ("V100", 8, 64, 488),
    "p3dn.24xlarge": ("V100-32GB", 8, 96, 768),
    "p4d.24xlarge": ("A100", 8, 96, 1152),
    "p4de.24xlarge": ("A100-80GB", 8, 96, 1152),
    "p5.4xlarge": ("H100", 1, 16, 256),
    "p5.48xlarge": ("H100", 8, 192, 2048),
    "p5e.48xlarge": ("H200", 8, 192, 2048),
    "p5en.48xlarge": ("H200", 8, 192, 2048),
    "p6-b200.48xlarge": ("B200", 8, 192, 2048),
    "p6-b300.48xlarge": ("B300", 8, 192, 4096),
    "g4dn.xlarge": ("T4", 1, 4, 16),
    "g4dn.2xlarge": ("T4", 1, 8, 32),
    "g4dn.4xlarge": ("T4", 1, 16, 64),
    "g4dn.8xlarge": ("T4", 1, 32, 128),
    "g4dn.12xlarge": ("T4", 4, 48, 192),
    "g4dn.16xlarge": ("T4", 1, 64, 256),
    "g4dn.metal": ("T4", 8, 96, 384),
    "g5.xlarge": ("A10G", 1, 4, 16),
    "g5.2xlarge": ("A10G", 1, 8, 32),
    "g5.4xlarge": ("A10G", 1, 16, 64),
    "g5.8xlarge": ("A10G", 1, 32, 128),
    "g5.12xlarge": ("A10G", 4, 48, 192),
    "g5.16xlarge": ("A10G", 1, 64, 256),
    "g5.24xlarge": ("A10G", 4, 96, 384),
    "g5.48xlarge": ("A10G", 8, 192, 768),
    "g5g.xlarge": ("T4G", 1, 4, 8),
    "g5g.2xlarge": ("T4G", 1, 8, 16),
    "g5g.4xlarge": ("T4G", 1, 16, 32),
    "g5g.8xlarge": ("T4G", 1, 32, 64),
    "g5g.16xlarge": ("T4G", 2, 64, 128),
    "g5g.metal": ("T4G", 2, 64, 128),
    "g6.xlarge": ("L4", 1, 4, 16),
    "g6.2xlarge": ("L4", 1, 8, 32),
    "g6.4xlarge": ("L4", 1, 16, 64),
    "g6.8xlarge": ("L4", 1, 32, 128),
    "g6.12xlarge": ("L4", 4, 48, 192),
    "g6.16xlarge": ("L4", 1, 64, 256),
    "g6.24xlarge": ("L4", 4, 96, 384),
    "g6.48xlarge": ("L4", 8, 192, 768),
    "gr6.4xlarge": ("L4", 1, 16, 128),
    "gr6.8xlarge": ("L4", 1, 32, 256),
    "g6f.large": ("L4-3Q", 1, 2, 8),
    "g6f.xlarge": ("L4-3Q", 1, 4, 16),
    "g6f.2xlarge": ("L4-6Q", 1, 8, 32),
    "g6f.4xlarge": ("L4-12Q", 1, 16, 64),
    "gr6f.4xlarge": ("L4-12Q", 1, 16, 128),
    "g6e.xlarge": ("L40S", 1, 4, 32),
    "g6e.2xlarge": ("L40S", 1, 8, 64),
    "g6e.4xlarge": ("L40S", 1, 16, 128),
    "g6e.8xlarge": ("L40S", 1, 32, 256),
    "g6e.12xlarge": ("L40S", 4, 48, 384),
    "g6e.16xlarge": ("L40S", 1, 64, 512),
    "g6e.24xlarge": ("L40S", 4, 96, 768),
    "g6e.48xlarge": ("L40S", 8, 192, 1536),
    **{
        f"g7.{size}xlarge": ("RTX-PRO-4500", gpus, 4 * size, 16 * size)
        for size, gpus in ((2, 1), (4, 1), (8, 1), (12, 2), (24, 4), (48, 8))
    },
    "g7e.2xlarge": ("RTX-PRO-6000", 1, 8, 64),
    "g7e.4xlarge": ("RTX-PRO-6000", 1, 16, 128),
    "g7e.8xlarge": ("RTX-PRO-6000", 1, 32, 256),
    "g7e.12xlarge": ("RTX-PRO-6000", 2, 48, 512),
    "g7e.24xlarge": ("RTX-PRO-6000", 4, 96, 1024),
    "g7e.48xlarge": ("RTX-PRO-6000", 8, 192, 2048),
}


AMD_FAMILIES = ("g4ad",)
"""EC2 families whose GPUs are AMD's."""

KEPLER_FAMILIES = ("g2", "p2")
"""EC2 families whose GPUs NVIDIA's drivers support only up to release 470: today's GPU images have newer drivers, and
their nodes never join, or never have a GPU (bottlerocket-os/bottlerocket#3959)."""


_ARM = re.compile(r"(g|gr|p)\d+g|p6e-gb\d")
"""EC2 families of arm64 machines: with Graviton processors ("g5g"), and Grace's in UltraServers."""


def arch_of(name: str) -> str | None:
    """Return what processors EC2 type `name` has: "amd64" or "arm64"; None for one whose name alone is known."""
    if _ARM.match(name):
        return "arm64"
    return "amd64" if name in _EC2 else None


@cache
def instance_type(name: str) -> InstanceType | None:
    """Return what EC2 type `name` carries, or None where the catalogue does not know it."""
    row = _EC2.get(name)
    if row is None:
        return None
    gpu, gpus, vcpus, memory = row
    arch = arch_of(name) or "amd64"
    return InstanceType(name=name, gpu=GPUS[gpu], gpus=gpus, vcpus=vcpus, memory_gib=memory, arch=arch)


def instance_types() -> tuple[str, ...]:
    """Return the names of all EC2 types in the catalogue."""
    return tuple(_EC2)


def gpus_of_type(name: str) -> GpusOfMachine | None:
    """Return the GPUs of EC2 type `name`, or None where the catalogue does not know it."""
    machine = instance_type(name)
    return None if machine is None else GpusOfMachine(gpu=machine.gpu, gpus=machine.gpus)


_MEMORY_RESERVED = 255 * 2**20  # and 11 MiB for each pod that the node may have: how many is the group's own setting


@cache
def eks_node_size(name: str) -> NodeSize | None:
    """Return the most that pods can use of an EKS node of EC2 type `name`; None where the catalogue does not know it.

    A node has somewhat less: firmware and kernel take memory too.
    """
    machine = instance_type(name)
    if machine is None:
        return None
    memory = machine.memory_gib * 2**30 - _MEMORY_RESERVED - EVICTED_BELOW
    return NodeSize(cpus=machine.vcpus - reserved(machine.vcpus, CPUS_RESERVED), memory=memory, gpus=machine.gpus)


def _of(family: str, sizes: str, interfaces: int) -> dict[str, int]:
    return {f"{family}.{size}": interfaces for size in sizes.split()}


EFA_INTERFACES: Mapping[str, int] = {
    **_of("g4dn", "8xlarge 12xlarge 16xlarge metal", 1),
    **_of("g5", "8xlarge 12xlarge 16xlarge 24xlarge 48xlarge", 1),
    **_of("g6", "8xlarge 12xlarge 16xlarge 24xlarge 48xlarge", 1),
    **_of("gr6", "8xlarge", 1),
    **_of("g6e", "8xlarge 12xlarge 16xlarge", 1),
    **_of("g6e", "24xlarge", 2),
    **_of("g6e", "48xlarge", 4),
    **_of("g7", "8xlarge 12xlarge 24xlarge", 1),
    **_of("g7", "48xlarge", 2),
    **_of("g7e", "8xlarge 12xlarge", 1),
    **_of("g7e", "24xlarge", 2),
    **_of("g7e", "48xlarge", 4),
    **_of("p3dn", "24xlarge", 1),
    **_of("p4d", "24xlarge", 4),
    **_of("p4de", "24xlarge", 4),
    **_of("p5", "4xlarge", 1),
    **_of("p5", "48xlarge", 32),
    **_of("p5e", "48xlarge", 32),
    **_of("p5en", "48xlarge", 16),
    **_of("p6-b200", "48xlarge", 8),
    **_of("p6-b300", "48xlarge", 16),
}
"""How many a machine may have at most (DescribeInstanceTypes, EfaInfo)."""


def fast_network(machine_type: str) -> str:
    """Return what NCCL can use besides TCP on machines of a type, in words; empty: nothing."""
    interfaces = EFA_INTERFACES.get(machine_type)
    return f"up to {interfaces} EFA interface{'s' * (interfaces > 1)}" if interfaces else ""

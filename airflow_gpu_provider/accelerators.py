"""The GPU catalogue: which machine types carry which GPUs. Data and look-ups, no I/O.

Sources: Amazon EC2's instance type pages (accelerated computing) and DescribeInstanceTypes for vCPUs, memory
and GPUs; Google's "GPU platforms" page for the values of the label cloud.google.com/gke-accelerator, "GPU machine
types" and "N1 machine series" for Compute Engine's machine types and what can be attached to them. What nodes keep
from pods: the kubelet's reservations in awslabs/amazon-eks-ami, and GKE's page "Plan GKE Standard node sizes".
How many partitions a GPU gives: NVIDIA's "Multi-Instance GPU User Guide" and NVIDIA/mig-parted's default configuration.
A machine type that is not listed here still works: what depends on the catalogue is left to the cloud to check.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

GPU_RESOURCE = "nvidia.com/gpu"
"""The extended resource by which a pod asks for GPUs, as NVIDIA's device plugin names it."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU model.

    Attributes:
        name: What people call it, as in `g6` machines' "L4".
        product: The value NVIDIA's feature discovery gives `nvidia.com/gpu.product`.
        accelerator: The value for the labels cloud.google.com/gke-accelerator and k8s.amazonaws.com/accelerator.
        memory_gib: Memory of one GPU, in GiB.
    """

    name: str
    product: str
    accelerator: str
    memory_gib: int


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """A machine type with GPUs: `gpus` of model `gpu`, `vcpus`, and `memory_gib` of main memory."""

    name: str
    gpu: Gpu
    gpus: int
    vcpus: int
    memory_gib: float
    arch: str = "amd64"


@dataclass(frozen=True, kw_only=True)
class NodeSize:
    """What pods can use of one node: `cpus`, `memory` in bytes, and `gpus` (None: not known)."""

    cpus: float
    memory: float
    gpus: int | None = None


_PRO = "NVIDIA-RTX-PRO-%s-Blackwell-Server-Edition"
GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(name="K80", product="Tesla-K80", accelerator="nvidia-tesla-k80", memory_gib=12),
        Gpu(name="P4", product="Tesla-P4", accelerator="nvidia-tesla-p4", memory_gib=8),
        Gpu(name="P100", product="Tesla-P100-PCIE-16GB", accelerator="nvidia-tesla-p100", memory_gib=16),
        Gpu(name="V100", product="Tesla-V100-SXM2-16GB", accelerator="nvidia-tesla-v100", memory_gib=16),
        Gpu(name="V100-32GB", product="Tesla-V100-SXM2-32GB", accelerator="nvidia-tesla-v100", memory_gib=32),
        Gpu(name="T4", product="Tesla-T4", accelerator="nvidia-tesla-t4", memory_gib=16),
        Gpu(name="T4G", product="NVIDIA-T4G", accelerator="nvidia-t4g", memory_gib=16),
        Gpu(name="A10G", product="NVIDIA-A10G", accelerator="nvidia-a10g", memory_gib=24),
        Gpu(name="A100", product="NVIDIA-A100-SXM4-40GB", accelerator="nvidia-tesla-a100", memory_gib=40),
        Gpu(name="A100-80GB", product="NVIDIA-A100-SXM4-80GB", accelerator="nvidia-a100-80gb", memory_gib=80),
        Gpu(name="L4", product="NVIDIA-L4", accelerator="nvidia-l4", memory_gib=24),
        Gpu(name="L4-3Q", product="NVIDIA-L4-3Q", accelerator="nvidia-l4-3q", memory_gib=3),
        Gpu(name="L4-6Q", product="NVIDIA-L4-6Q", accelerator="nvidia-l4-6q", memory_gib=6),
        Gpu(name="L4-12Q", product="NVIDIA-L4-12Q", accelerator="nvidia-l4-12q", memory_gib=12),
        Gpu(name="L40S", product="NVIDIA-L40S", accelerator="nvidia-l40s", memory_gib=48),
        Gpu(name="H100", product="NVIDIA-H100-80GB-HBM3", accelerator="nvidia-h100-80gb", memory_gib=80),
        Gpu(name="H100-MEGA", product="NVIDIA-H100-80GB-HBM3", accelerator="nvidia-h100-mega-80gb", memory_gib=80),
        Gpu(name="H200", product="NVIDIA-H200", accelerator="nvidia-h200-141gb", memory_gib=141),
        Gpu(name="B200", product="NVIDIA-B200", accelerator="nvidia-b200", memory_gib=180),
        Gpu(name="B300", product="NVIDIA-B300-SXM6-AC", accelerator="nvidia-b300", memory_gib=268),
        Gpu(name="GB200", product="NVIDIA-GB200", accelerator="nvidia-gb200", memory_gib=186),
        Gpu(name="RTX-PRO-4500", product=_PRO % 4500, accelerator="nvidia-rtx-pro-4500", memory_gib=32),
        Gpu(name="RTX-PRO-6000", product=_PRO % 6000, accelerator="nvidia-rtx-pro-6000", memory_gib=96),
    )
}

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


# Compute Engine


@dataclass(frozen=True, kw_only=True)
class GceMachineType:
    """A machine type of Compute Engine; `gpu` is None for those that have none, or only what is attached to them."""

    name: str
    gpu: Gpu | None
    gpus: int
    vcpus: int
    memory_gib: float

    @property
    def takes_attached_gpus(self) -> bool:
        """Whether GPUs are attached to it, rather than part of it: N1 alone."""
        return self.name.startswith("n1-")


# Machine type with GPUs of its own: (GPU, GPUs, vCPUs, memory GiB)
_GCE: dict[str, tuple[str, int, int, float]] = {
    "g2-standard-4": ("L4", 1, 4, 16),
    "g2-standard-8": ("L4", 1, 8, 32),
    "g2-standard-12": ("L4", 1, 12, 48),
    "g2-standard-16": ("L4", 1, 16, 64),
    "g2-standard-24": ("L4", 2, 24, 96),
    "g2-standard-32": ("L4", 1, 32, 128),
    "g2-standard-48": ("L4", 4, 48, 192),
    "g2-standard-96": ("L4", 8, 96, 384),
    "g4-standard-48": ("RTX-PRO-6000", 1, 48, 180),
    "g4-standard-96": ("RTX-PRO-6000", 2, 96, 360),
    "g4-standard-192": ("RTX-PRO-6000", 4, 192, 720),
    "g4-standard-384": ("RTX-PRO-6000", 8, 384, 1440),
    "a2-highgpu-1g": ("A100", 1, 12, 85),
    "a2-highgpu-2g": ("A100", 2, 24, 170),
    "a2-highgpu-4g": ("A100", 4, 48, 340),
    "a2-highgpu-8g": ("A100", 8, 96, 680),
    "a2-megagpu-16g": ("A100", 16, 96, 1360),
    "a2-ultragpu-1g": ("A100-80GB", 1, 12, 170),
    "a2-ultragpu-2g": ("A100-80GB", 2, 24, 340),
    "a2-ultragpu-4g": ("A100-80GB", 4, 48, 680),
    "a2-ultragpu-8g": ("A100-80GB", 8, 96, 1360),
    "a3-highgpu-1g": ("H100", 1, 26, 234),
    "a3-highgpu-2g": ("H100", 2, 52, 468),
    "a3-highgpu-4g": ("H100", 4, 104, 936),
    "a3-highgpu-8g": ("H100", 8, 208, 1872),
    "a3-edgegpu-8g": ("H100", 8, 208, 1872),
    "a3-megagpu-8g": ("H100-MEGA", 8, 208, 1872),
    "a3-ultragpu-8g": ("H200", 8, 224, 2952),
    "a4-highgpu-8g": ("B200", 8, 224, 3968),
}

# Series and class: (GiB of memory for each vCPU, numbers of vCPUs)
_GCE_WITHOUT_GPUS: dict[str, tuple[float, tuple[int, ...]]] = {
    "n1-standard": (3.75, (1, 2, 4, 8, 16, 32, 64, 96)),
    "n1-highmem": (6.5, (2, 4, 8, 16, 32, 64, 96)),
    "n1-highcpu": (0.9, (2, 4, 8, 16, 32, 64, 96)),
    "e2-standard": (4, (2, 4, 8, 16, 32)),
    "e2-highmem": (8, (2, 4, 8, 16)),
    "n2-standard": (4, (2, 4, 8, 16, 32, 48, 64, 80, 96, 128)),
}

# What can be attached to an N1 machine: accelerator -> number of GPUs -> the most vCPUs that the machine may have
_ATTACHABLE: dict[str, dict[int, int]] = {
    "nvidia-tesla-k80": {1: 8, 2: 16, 4: 32, 8: 64},
    "nvidia-tesla-p4": {1: 24, 2: 48, 4: 96},
    "nvidia-tesla-p100": {1: 16, 2: 32, 4: 96},
    "nvidia-tesla-v100": {1: 12, 2: 24, 4: 48, 8: 96},
    "nvidia-tesla-t4": {1: 48, 2: 48, 4: 96},
}


@cache
def gce_machine_type(name: str) -> GceMachineType | None:
    """Return what Compute Engine's machine type `name` is, or None where the catalogue does not know it."""
    if row := _GCE.get(name):
        gpu, gpus, vcpus, memory = row
        return GceMachineType(name=name, gpu=GPUS[gpu], gpus=gpus, vcpus=vcpus, memory_gib=memory)
    series, _, size = name.rpartition("-")
    memory_each, sizes = _GCE_WITHOUT_GPUS.get(series, (0.0, ()))
    if size.isdecimal() and int(size) in sizes:
        return GceMachineType(name=name, gpu=None, gpus=0, vcpus=int(size), memory_gib=memory_each * int(size))
    return None


def gce_machine_types() -> tuple[str, ...]:
    """Return the names of Compute Engine's machine types in the catalogue."""
    without = (f"{series}-{size}" for series, (_, sizes) in _GCE_WITHOUT_GPUS.items() for size in sizes)
    return (*_GCE, *without)


@dataclass(frozen=True, kw_only=True)
class GpusOfMachine:
    """The GPUs of a machine type: `gpus` of model `gpu`."""

    gpu: Gpu
    gpus: int


def gpu_of_machine(name: str) -> GpusOfMachine | None:
    """Return what GPUs a machine type of either cloud has of its own, or None where the catalogue knows of none."""
    machine = instance_type(name) or gce_machine_type(name)
    return None if machine is None or machine.gpu is None else GpusOfMachine(gpu=machine.gpu, gpus=machine.gpus)


# -- what machines have besides TCP for GPUs that train together --------------------------------------------------


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

_GPUDIRECT = {
    "a3-highgpu-8g": "GPUDirect-TCPX",
    "a3-megagpu-8g": "GPUDirect-TCPXO",
    "a3-ultragpu-8g": "GPUDirect RDMA",
    "a4-highgpu-8g": "GPUDirect RDMA",
}
"""What NCCL can use on Google's machines, each with a plugin of its own: GKE's pages "Maximize GPU network bandwidth in
Standard mode clusters" and "AI-optimized GKE cluster"."""


def fast_network(machine_type: str) -> str:
    """Return what NCCL can use besides TCP on machines of a type of either cloud, in words; empty: nothing."""
    if interfaces := EFA_INTERFACES.get(machine_type):
        return f"up to {interfaces} EFA interface{'s' * (interfaces > 1)}"
    return _GPUDIRECT.get(machine_type, "")


# Machine types rarely available on demand, and how to obtain them ("GPU machine types", "Consumption options").
_LARGE = ("reservation", "spot", "flex-start")
_NOT_ON_DEMAND: dict[str, tuple[str, ...]] = {
    "a3-highgpu-1g": ("spot", "flex-start"),
    "a3-highgpu-2g": ("spot", "flex-start"),
    "a3-highgpu-4g": ("spot", "flex-start"),
    "a3-megagpu-8g": _LARGE,
    "a3-ultragpu-8g": _LARGE,
    "a4-highgpu-8g": _LARGE,
}


def gce_obtained_by(name: str) -> tuple[str, ...]:
    """Return how to obtain machines of a type that is rarely available on demand: by reservation, spot, flex-start."""
    return _NOT_ON_DEMAND.get(name, ())


@cache
def gpu_of_accelerator(accelerator: str) -> Gpu | None:
    """Return the GPU that Google Cloud calls `accelerator` (`nvidia-l4`), or None where it is unknown."""
    return next((gpu for gpu in GPUS.values() if gpu.accelerator == accelerator), None)


def attachable_gpus(machine_type: str, accelerator: str) -> tuple[int, ...]:
    """Return how many GPUs of that kind can be attached to the N1 machine type; empty where none can."""
    machine = gce_machine_type(machine_type)
    if machine is None or not machine.takes_attached_gpus:
        return ()
    return tuple(count for count, vcpus in _ATTACHABLE.get(accelerator, {}).items() if machine.vcpus <= vcpus)


def gce_accelerators() -> tuple[str, ...]:
    """Return the accelerator types that Compute Engine's machine types in the catalogue have or take."""
    built_in = {GPUS[row[0]].accelerator for row in _GCE.values()}
    return tuple(sorted(built_in | _ATTACHABLE.keys()))


# Partitions (MIG) by the GPU's name: profile -> how many of it one GPU gives, where all are of that profile.

_OF_80_GB = {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1}
_PARTITIONS: Mapping[str, Mapping[str, int]] = {
    "A100": {"1g.5gb": 7, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1, "7g.40gb": 1},
    "A100-80GB": _OF_80_GB,
    "H100": _OF_80_GB,
    "H100-MEGA": _OF_80_GB,
    "H200": {"1g.18gb": 7, "1g.35gb": 4, "2g.35gb": 3, "3g.71gb": 2, "4g.71gb": 1, "7g.141gb": 1},
    "B200": {"1g.23gb": 7, "1g.45gb": 4, "2g.45gb": 3, "3g.90gb": 2, "4g.90gb": 1, "7g.180gb": 1},
    "GB200": {"1g.23gb": 7, "1g.47gb": 4, "2g.47gb": 3, "3g.93gb": 2, "4g.93gb": 1, "7g.186gb": 1},
    "RTX-PRO-6000": {"1g.24gb": 4, "2g.48gb": 2, "4g.96gb": 1},
}


def partitions_of(gpu: Gpu) -> Mapping[str, int]:
    """Return how many partitions of each profile (`1g.10gb`) the GPU gives; empty where it has none."""
    return _PARTITIONS.get(gpu.name, {})


# What GKE makes of newer GPUs only (GoogleCloudPlatform/container-engine-accelerators, partition_gpu/partition_gpu.go).
_NOT_ON_GKE = {"A100": "1g.10gb", "A100-80GB": "1g.20gb"}


def gke_partitions_of(gpu: Gpu) -> Mapping[str, int]:
    """Return how many partitions of each profile GKE makes of the GPU; empty where it has none."""
    left_out = _NOT_ON_GKE.get(gpu.name)
    return {profile: count for profile, count in partitions_of(gpu).items() if profile != left_out}


# What a node reserves for itself. The shares of CPU, core by core, are the same on both clouds.

_CPUS_KEPT = ((1, 0.06), (1, 0.01), (2, 0.005), (float("inf"), 0.0025))
_GKE_MEMORY_KEPT = ((4, 0.25), (4, 0.2), (8, 0.1), (112, 0.06), (float("inf"), 0.02))
_EVICTED_BELOW = 100 * 2**20
_EKS_MEMORY_KEPT = 255 * 2**20  # and 11 MiB for each pod that the node may have: how many is the group's own setting


@cache
def eks_node_size(name: str) -> NodeSize | None:
    """Return the most that pods can use of an EKS node of EC2 type `name`; None where the catalogue does not know it.

    A node has somewhat less: firmware and kernel take memory too.
    """
    machine = instance_type(name)
    if machine is None:
        return None
    memory = machine.memory_gib * 2**30 - _EKS_MEMORY_KEPT - _EVICTED_BELOW
    return NodeSize(cpus=machine.vcpus - _kept(machine.vcpus, _CPUS_KEPT), memory=memory, gpus=machine.gpus)


@cache
def gke_node_size(name: str, gpus: int | None) -> NodeSize | None:
    """Return the most that pods can use of a GKE node of that machine type that offers `gpus`; None: not known."""
    machine = gce_machine_type(name)
    if machine is None:
        return None
    memory = (machine.memory_gib - _kept(machine.memory_gib, _GKE_MEMORY_KEPT)) * 2**30 - _EVICTED_BELOW
    return NodeSize(cpus=machine.vcpus - _kept(machine.vcpus, _CPUS_KEPT), memory=memory, gpus=gpus)


def _kept(amount: float, steps: tuple[tuple[float, float], ...]) -> float:
    """Return how much of an amount is reserved: the sum of the shares of its first part, of the next, and so on."""
    kept = 0.0
    for width, share in steps:
        part = min(amount, width)
        kept += part * share
        amount -= part
    return kept

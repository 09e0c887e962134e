"""Compute Engine's machine types and their GPUs, and what pods can use of a GKE node. Data and look-ups, no I/O.

Sources: Google's pages "GPU machine types" and "N1 machine series" for machine types and what can be attached to them,
"Plan GKE Standard node sizes" for what nodes keep from pods.
A machine type that is not listed here still works: what depends on the catalogue is left to GKE to check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from airflow_gpu_provider.accelerators import (
    CPUS_RESERVED,
    EVICTED_BELOW,
    GPUS,
    Gpu,
    GpusOfMachine,
    NodeSize,
    partitions_of,
    reserved,
)


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


def gpus_of_type(name: str) -> GpusOfMachine | None:
    """Return the GPUs that a machine type has of its own, or None where the catalogue knows of none."""
    machine = gce_machine_type(name)
    return None if machine is None or machine.gpu is None else GpusOfMachine(gpu=machine.gpu, gpus=machine.gpus)


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


# What GKE makes of newer GPUs only (GoogleCloudPlatform/container-engine-accelerators, partition_gpu/partition_gpu.go).
_NOT_ON_GKE = {"A100": "1g.10gb", "A100-80GB": "1g.20gb"}


def gke_partitions_of(gpu: Gpu) -> Mapping[str, int]:
    """Return how many partitions of each profile GKE makes of the GPU; empty where it has none."""
    left_out = _NOT_ON_GKE.get(gpu.name)
    return {profile: count for profile, count in partitions_of(gpu).items() if profile != left_out}


_MEMORY_RESERVED = ((4, 0.25), (4, 0.2), (8, 0.1), (112, 0.06), (float("inf"), 0.02))


@cache
def gke_node_size(name: str, gpus: int | None) -> NodeSize | None:
    """Return the most that pods can use of a GKE node of that machine type that offers `gpus`; None: not known."""
    machine = gce_machine_type(name)
    if machine is None:
        return None
    memory = (machine.memory_gib - reserved(machine.memory_gib, _MEMORY_RESERVED)) * 2**30 - EVICTED_BELOW
    return NodeSize(cpus=machine.vcpus - reserved(machine.vcpus, CPUS_RESERVED), memory=memory, gpus=gpus)


_GPUDIRECT = {
    "a3-highgpu-8g": "GPUDirect-TCPX",
    "a3-megagpu-8g": "GPUDirect-TCPXO",
    "a3-ultragpu-8g": "GPUDirect RDMA",
    "a4-highgpu-8g": "GPUDirect RDMA",
}
"""What NCCL can use on Google's machines, each with a plugin of its own: GKE's pages "Maximize GPU network bandwidth in
Standard mode clusters" and "AI-optimized GKE cluster"."""


def fast_network(machine_type: str) -> str:
    """Return what NCCL can use besides TCP on machines of a type, in words; empty: nothing."""
    return _GPUDIRECT.get(machine_type, "")

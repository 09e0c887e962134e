"""Compute Engine's machine types and accelerators, copied from what Google publishes; nobody else's table is read here.

Each table names its source. There are three:

- the page "GPU machine types", cloud.google.com/compute/docs/gpus, as last updated on 2026-04-14;
- GKE's own autoscaler, github.com/GoogleCloudPlatform/cluster-autoscaler at 7d250507 of 2026-08-21, in
  pkg/cloudprovider/gke/machinetypes: deprecated_machine_types_config.go, deprecated_machine_types_gpu_config.go;
- what partitions GPUs on GKE's nodes, github.com/GoogleCloudPlatform/container-engine-accelerators at 09e2ab1a,
  partition_gpu/partition_gpu.go.

Left out: machine types with a part of a GPU (G4), those without local SSDs (-nolssd) and those with arm64 processors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """A GPU model as Compute Engine offers it.

    product: the name that nvidia-smi shows, with dashes for blanks.
    memory_gib: of one GPU.
    partitions: how many of each size GKE makes of one GPU.
    attachable: by how many are attached to an N1 machine, the most vCPUs that it may have.
    """

    name: str
    product: str
    memory_gib: int
    partitions: Mapping[str, int] = field(default_factory=dict)
    attachable: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MachineType:
    """A machine type; `accelerator` is None where it has no GPUs of its own."""

    name: str
    vcpus: int
    memory_gib: float
    accelerator: Accelerator | None = None
    gpus: int = 0


# Memory: the page's "General comparison chart"; K80, which it has no more: NVIDIA's "Tesla K80" board specification.
# What can be attached: the page's "N1 machine series", P100 as outside us-east1-c, europe-west1-b and europe-west1-d;
# K80: the autoscaler's maxCpuCount. Partitions: partition_gpu.go. Products: its constants, and the appendix "Supported
# NVIDIA GPU Products" in the README of NVIDIA's driver.
_OF_80_GB = {"1g.10gb": 7, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1}
_OF_H100 = {**_OF_80_GB, "1g.20gb": 4}
ACCELERATORS: Mapping[str, Accelerator] = {
    each.name: each
    for each in (
        Accelerator(
            name="nvidia-tesla-k80",
            product="Tesla-K80",
            memory_gib=12,
            attachable={1: 8, 2: 16, 4: 32, 8: 64},
        ),
        Accelerator(
            name="nvidia-tesla-p4",
            product="Tesla-P4",
            memory_gib=8,
            attachable={1: 24, 2: 48, 4: 96},
        ),
        Accelerator(
            name="nvidia-tesla-p100",
            product="Tesla-P100-PCIE-16GB",
            memory_gib=16,
            attachable={1: 16, 2: 32, 4: 96},
        ),
        Accelerator(
            name="nvidia-tesla-v100",
            product="Tesla-V100-SXM2-16GB",
            memory_gib=16,
            attachable={1: 12, 2: 24, 4: 48, 8: 96},
        ),
        Accelerator(
            name="nvidia-tesla-t4",
            product="Tesla-T4",
            memory_gib=16,
            attachable={1: 48, 2: 48, 4: 96},
        ),
        Accelerator(name="nvidia-l4", product="NVIDIA-L4", memory_gib=24),
        Accelerator(
            name="nvidia-tesla-a100",
            product="NVIDIA-A100-SXM4-40GB",
            memory_gib=40,
            partitions={"1g.5gb": 7, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1, "7g.40gb": 1},
        ),
        Accelerator(name="nvidia-a100-80gb", product="NVIDIA-A100-SXM4-80GB", memory_gib=80, partitions=_OF_80_GB),
        Accelerator(name="nvidia-h100-80gb", product="NVIDIA-H100-80GB-HBM3", memory_gib=80, partitions=_OF_H100),
        Accelerator(name="nvidia-h100-mega-80gb", product="NVIDIA-H100-80GB-HBM3", memory_gib=80, partitions=_OF_H100),
        Accelerator(
            name="nvidia-h200-141gb",
            product="NVIDIA-H200",
            memory_gib=141,
            partitions={"1g.18gb": 7, "1g.35gb": 4, "2g.35gb": 3, "3g.71gb": 2, "4g.71gb": 1, "7g.141gb": 1},
        ),
        Accelerator(
            name="nvidia-b200",
            product="NVIDIA-B200",
            memory_gib=180,
            partitions={"1g.23gb": 7, "1g.45gb": 4, "2g.45gb": 3, "3g.90gb": 2, "4g.90gb": 1, "7g.180gb": 1},
        ),
        Accelerator(
            name="nvidia-rtx-pro-6000",
            product="NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
            memory_gib=96,
            partitions={"1g.24gb": 4, "2g.48gb": 2, "4g.96gb": 1},
        ),
    )
}

# The page's tables, series by series: (machine type, vCPUs, memory, GPUs); G2 with its default memory.
_WITH_GPUS: Mapping[str, tuple[tuple[str, int, int, int], ...]] = {
    "nvidia-b200": (("a4-highgpu-8g", 224, 3968, 8),),
    "nvidia-h200-141gb": (("a3-ultragpu-8g", 224, 2952, 8),),
    "nvidia-h100-mega-80gb": (("a3-megagpu-8g", 208, 1872, 8),),
    "nvidia-h100-80gb": (
        ("a3-highgpu-1g", 26, 234, 1),
        ("a3-highgpu-2g", 52, 468, 2),
        ("a3-highgpu-4g", 104, 936, 4),
        ("a3-highgpu-8g", 208, 1872, 8),
        ("a3-edgegpu-8g", 208, 1872, 8),
    ),
    "nvidia-a100-80gb": (
        ("a2-ultragpu-1g", 12, 170, 1),
        ("a2-ultragpu-2g", 24, 340, 2),
        ("a2-ultragpu-4g", 48, 680, 4),
        ("a2-ultragpu-8g", 96, 1360, 8),
    ),
    "nvidia-tesla-a100": (
        ("a2-highgpu-1g", 12, 85, 1),
        ("a2-highgpu-2g", 24, 170, 2),
        ("a2-highgpu-4g", 48, 340, 4),
        ("a2-highgpu-8g", 96, 680, 8),
        ("a2-megagpu-16g", 96, 1360, 16),
    ),
    "nvidia-rtx-pro-6000": (
        ("g4-standard-48", 48, 180, 1),
        ("g4-standard-96", 96, 360, 2),
        ("g4-standard-192", 192, 720, 4),
        ("g4-standard-384", 384, 1440, 8),
    ),
    "nvidia-l4": (
        ("g2-standard-4", 4, 16, 1),
        ("g2-standard-8", 8, 32, 1),
        ("g2-standard-12", 12, 48, 1),
        ("g2-standard-16", 16, 64, 1),
        ("g2-standard-24", 24, 96, 2),
        ("g2-standard-32", 32, 128, 1),
        ("g2-standard-48", 48, 192, 4),
        ("g2-standard-96", 96, 384, 8),
    ),
}

# The autoscaler's families N1, N2 and E2: (class, memory of one vCPU, numbers of vCPUs).
_WITHOUT_GPUS: tuple[tuple[str, float, tuple[int, ...]], ...] = (
    ("n1-standard", 3.75, (1, 2, 4, 8, 16, 32, 64, 96)),
    ("n1-highmem", 6.5, (2, 4, 8, 16, 32, 64, 96)),
    ("n1-highcpu", 0.9, (2, 4, 8, 16, 32, 64, 96)),
    ("n2-standard", 4, (2, 4, 8, 16, 32, 48, 64, 80, 96, 128)),
    ("e2-standard", 4, (2, 4, 8, 16, 32)),
    ("e2-highmem", 8, (2, 4, 8, 16)),
)

NEVER_ON_DEMAND = frozenset(
    {"a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g", "a3-megagpu-8g", "a3-ultragpu-8g", "a4-highgpu-8g"}
)
"""Types that are given to no ordinary request. The page's notes have all of them but A3 Mega, for which it recommends
to deploy clusters; that there are none on demand is the sandbox's choice."""


def _all() -> Iterator[MachineType]:
    for accelerator, rows in _WITH_GPUS.items():
        for name, vcpus, memory, gpus in rows:
            yield MachineType(
                name=name, vcpus=vcpus, memory_gib=memory, accelerator=ACCELERATORS[accelerator], gpus=gpus
            )
    for series, memory_each, sizes in _WITHOUT_GPUS:
        for vcpus in sizes:
            yield MachineType(name=f"{series}-{vcpus}", vcpus=vcpus, memory_gib=memory_each * vcpus)


MACHINE_TYPES: Mapping[str, MachineType] = {each.name: each for each in _all()}


def attachable_gpus(machine_type: str, accelerator: str) -> tuple[int, ...]:
    """How many GPUs of that kind can be attached to the machine type; empty where none can, as to all but N1."""
    machine = MACHINE_TYPES.get(machine_type)
    if machine is None or not machine_type.startswith("n1-"):
        return ()
    return tuple(count for count, most in ACCELERATORS[accelerator].attachable.items() if machine.vcpus <= most)

"""GPUs as NVIDIA and Kubernetes have them: models, partitions, and the form of a node's size. Data, no I/O.

Sources: Google's page "GPU platforms" for the values of the label cloud.google.com/gke-accelerator; NVIDIA's
"Multi-Instance GPU User Guide" and NVIDIA/mig-parted's default configuration for how many partitions a GPU gives.
Which machine types have which GPUs, each cloud's folder has: `machine_types`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
class GpusOfMachine:
    """The GPUs of a machine type: `gpus` of model `gpu`."""

    gpu: Gpu
    gpus: int


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


CPUS_RESERVED = ((1, 0.06), (1, 0.01), (2, 0.005), (float("inf"), 0.0025))
"""The shares of its CPUs that a node reserves for itself, core by core: the same on EKS (awslabs/amazon-eks-ami) and on
GKE ("Plan GKE Standard node sizes")."""

EVICTED_BELOW = 100 * 2**20
"""Bytes of memory that the kubelet keeps free: the default of its `evictionHard`, memory.available."""


def reserved(amount: float, steps: tuple[tuple[float, float], ...]) -> float:
    """Return how much of an amount is reserved: the sum of the shares of its first part, of the next, and so on."""
    kept = 0.0
    for width, share in steps:
        part = min(amount, width)
        kept += part * share
        amount -= part
    return kept

"""EFA, EC2's network for machines that train together: which types have it, and which pools can. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_gpu_provider.pools.eks import EksGpuPool
    from airflow_gpu_provider.pools.gpu_pool import GpuPool

EFA_RESOURCE = "vpc.amazonaws.com/efa"
"""What EFA's device plugin calls an interface, of which a pod asks for some."""


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


def problems(pool: EksGpuPool) -> Iterator[tuple[str, str]]:
    """Yield why a rendered pool cannot have network="efa", each with its fix."""
    if without := [name for name in pool.instance_types if name not in EFA_INTERFACES]:
        yield (
            f'network="efa": {", ".join(without)} has no EFA interface, as far as is known',
            "Leave it out; of a family, the large types have them, like g6.8xlarge (docs/multi-node.md).",
        )
    if not pool.ami_type.startswith(("AL2023_", "BOTTLEROCKET_")):
        yield f'network="efa": images of ami_type {pool.ami_type} bring no EFA driver', "Use the default ami_type."
    if pool.is_autoscaled:
        yield (
            'network="efa": cluster-autoscaler does not know that an empty group\'s nodes would have EFA interfaces',
            'Leave scaling="autoscaler" out.',
        )


def interfaces_of_a_pod(pool: GpuPool, gpus: int) -> int:
    """Return how many interfaces a rank of a gang asks for: its GPUs' share of what each of the pool's types has.

    Without EFA, 0.
    """
    if pool.kind != "eks" or getattr(pool, "network", None) != "efa":
        return 0
    of = {name: (EFA_INTERFACES[name], size.gpus if size else None) for name, size in pool.node_sizes.items()}
    return min(max(1, has * min(gpus, there or gpus) // (there or gpus)) for has, there in of.values())

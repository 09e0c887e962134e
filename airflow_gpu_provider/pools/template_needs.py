"""What an EksGpuPool asks of its nodes that EKS takes in a launch template alone, and what of it cannot work. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_gpu_provider.pools.efa import problems as efa_problems
from airflow_gpu_provider.pools.node_user_data import problems as user_data_problems

if TYPE_CHECKING:
    from airflow_gpu_provider.pools.eks import EksGpuPool

IN_TEMPLATES = ("disk_throughput", "disk_iops", "user_data", "network", "fast_start")
"""The arguments for which a pool's node groups have launch templates of this package's."""

DEFAULT_DISK_GIB = 100
# gp3, by botocore's LaunchTemplateEbsBlockDeviceRequest, and "General Purpose SSD volumes" of the EBS user guide.
_SIZE, _IOPS, _THROUGHPUT = (1, 65_536), (3000, 80_000), (125, 2000)
_MIB_PER_IOPS, _IOPS_PER_GIB = 0.25, 500


def needs(pool: EksGpuPool) -> tuple[str, ...]:
    """Return the arguments for which this pool's groups have launch templates of this package's; none: they have none.

    Bottlerocket's volume for images is one: EKS's own diskSize is that of the other volume.
    """
    volume = ("disk_size",) if pool.has_image_volume and pool.disk_size is not None else ()
    found = (*volume, *_given(pool, *IN_TEMPLATES))
    return found if pool.manage == "full" else ()


def _given(pool: EksGpuPool, *names: str) -> list[str]:
    return [name for name in names if getattr(pool, name) not in (None, False)]


def problems(pool: EksGpuPool) -> Iterator[tuple[str, str]]:
    """Yield what cannot work of a rendered pool, each with its fix."""
    given = _given(pool, "disk_size", *IN_TEMPLATES)
    if pool.launch_template and given:
        what = f"{', '.join(given)} and launch_template exclude each other: the template says it"
        yield what, "Give one or the other."
    yield from _volume_problems(pool)
    if pool.user_data is not None:
        yield from user_data_problems(pool.user_data, pool.ami_type)
    if pool.network is not None:
        yield from efa_problems(pool)


def _volume_problems(pool: EksGpuPool) -> Iterator[tuple[str, str]]:
    iops, throughput, size = pool.disk_iops, pool.disk_throughput, pool.disk_size or DEFAULT_DISK_GIB
    if pool.disk_size is not None and not _SIZE[0] <= pool.disk_size <= _SIZE[1]:
        yield f"disk_size={pool.disk_size} must be between {_SIZE[0]} and {_SIZE[1]} GiB, as gp3 has it", "Correct it."
    if iops is not None and not _IOPS[0] <= iops <= _IOPS[1]:
        yield f"disk_iops={iops} must be between {_IOPS[0]} and {_IOPS[1]}, as gp3 has it", "Correct it."
    if throughput is not None and not _THROUGHPUT[0] <= throughput <= _THROUGHPUT[1]:
        limits = f"between {_THROUGHPUT[0]} and {_THROUGHPUT[1]} MiB/s"
        yield f"disk_throughput={throughput} must be {limits}, as gp3 has it", "Correct it."
    least = -(-(throughput or 0) // _MIB_PER_IOPS)
    if least > (iops or _IOPS[0]):
        yield (
            f"disk_throughput={throughput} is more than gp3 gives with {iops or _IOPS[0]} IOPS, a MiB/s for four",
            f"Set disk_iops={least:.0f} at least.",
        )
    if iops is not None and iops > size * _IOPS_PER_GIB:
        yield (
            f"disk_iops={iops} is more than gp3 gives on {size} GiB, {_IOPS_PER_GIB} for each",
            f"Set disk_size={-(-iops // _IOPS_PER_GIB)} at least.",
        )

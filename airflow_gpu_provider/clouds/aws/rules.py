"""What an EksGpuPool asks of its nodes beside their type, and what of that cannot work. Pure.

What EKS takes in a launch template alone, EFA, EC2's network for machines that train together, and reservations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_gpu_provider.clouds.aws.machine_types import EFA_INTERFACES, instance_type
from airflow_gpu_provider.clouds.aws.user_data import problems as user_data_problems
from airflow_gpu_provider.pools.on_nodes import PodFabric

if TYPE_CHECKING:
    from airflow_gpu_provider.clouds.aws.pool import EksGpuPool

IN_TEMPLATES = ("disk_throughput", "disk_iops", "user_data", "network", "fast_start")
"""The arguments for which a pool's node groups have launch templates of this package's."""

DEFAULT_DISK_GIB = 100
# gp3, by botocore's LaunchTemplateEbsBlockDeviceRequest, and "General Purpose SSD volumes" of the EBS user guide.
_LIMITS = {"disk_size": (1, 65_536, " GiB"), "disk_iops": (3000, 80_000, ""), "disk_throughput": (125, 2000, " MiB/s")}
_LEAST_IOPS, _MIB_PER_IOPS, _IOPS_PER_GIB = 3000, 0.25, 500


def needs(pool: EksGpuPool) -> tuple[str, ...]:
    """Return the arguments for which this pool's groups have launch templates of this package's; none: they have none.

    Bottlerocket's volume for images is one: EKS's own diskSize is that of the other volume.
    """
    volume = ("disk_size",) if pool.has_image_volume and pool.disk_size is not None else ()
    found = (*volume, *_given(pool, *IN_TEMPLATES))
    return found if pool.manage == "full" else ()


def _given(pool: EksGpuPool, *names: str) -> list[str]:
    return [name for name in names if getattr(pool, name) not in (None, False)]


def template_problems(pool: EksGpuPool) -> Iterator[tuple[str, str]]:
    """Yield what cannot work of a rendered pool, each with its fix."""
    given = _given(pool, "disk_size", *IN_TEMPLATES)
    if pool.launch_template and given:
        what = f"{', '.join(given)} and launch_template exclude each other: the template says it"
        yield what, "Give one or the other."
    yield from _volume_problems(pool)
    if pool.user_data is not None:
        yield from user_data_problems(pool.user_data, pool.ami_type)
    if pool.network is not None:
        yield from _efa_problems(pool)


def _volume_problems(pool: EksGpuPool) -> Iterator[tuple[str, str]]:
    iops, throughput, size = pool.disk_iops, pool.disk_throughput, pool.disk_size or DEFAULT_DISK_GIB
    for name, (least, most, unit) in _LIMITS.items():
        value = getattr(pool, name)
        if value is not None and not least <= value <= most:
            yield f"{name}={value} must be between {least} and {most}{unit}, as gp3 has it", "Correct it."
    needed = -(-(throughput or 0) // _MIB_PER_IOPS)
    if needed > (iops or _LEAST_IOPS):
        yield (
            f"disk_throughput={throughput} is more than gp3 gives with {iops or _LEAST_IOPS} IOPS, a MiB/s for four",
            f"Set disk_iops={needed:.0f} at least.",
        )
    if iops is not None and iops > size * _IOPS_PER_GIB:
        yield (
            f"disk_iops={iops} is more than gp3 gives on {size} GiB, {_IOPS_PER_GIB} for each",
            f"Set disk_size={-(-iops // _IOPS_PER_GIB)} at least.",
        )


_RELEASES = {  # EKS user guide, "Retrieve Amazon Linux AMI version information"; the Bottlerocket image's version
    "AL": (re.compile(r"\d+\.\d+\.\d+-\d{8}"), "1.36.3-20260827"),
    "BOTTLEROCKET": (re.compile(r"\d+\.\d+\.\d+-[0-9a-f]{8}"), "1.64.0-7c4f0d2b"),
}


def release_problems(pool: EksGpuPool) -> Iterator[tuple[str, str]]:
    """Yield what cannot work of a rendered pool's ami_release, each with its fix."""
    if pool.ami_type == "CUSTOM":
        yield "ami_release and ami_type CUSTOM exclude each other: the launch template names the image", "Leave it out."
        return
    form, example = _RELEASES["BOTTLEROCKET" if pool.has_image_volume else "AL"]
    if not form.fullmatch(pool.ami_release or ""):
        yield (
            f"ami_release={pool.ami_release!r} is no release of an image of ami_type {pool.ami_type}",
            f"It is a node group's releaseVersion, like {example} (aws eks describe-nodegroup).",
        )


# -- EFA: which types have it, and which pools can -----------------------------------------------------------

EFA_RESOURCE = "vpc.amazonaws.com/efa"
"""What EFA's device plugin calls an interface, of which a pod asks for some."""


def _efa_problems(pool: EksGpuPool) -> Iterator[tuple[str, str]]:
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


def efa_of_a_pod(pool: EksGpuPool, gpus: int) -> PodFabric:
    """Return what a rank of a gang with EFA asks for; FI_PROVIDER makes libfabric, and so NCCL's plugin, take EFA."""
    resources = {EFA_RESOURCE: str(interfaces_of_a_pod(pool, gpus)), "hugepages-2Mi": huge_pages_of_a_pod(pool)}
    return PodFabric(resources=resources, env={"FI_PROVIDER": "efa"})


def interfaces_of_a_pod(pool: EksGpuPool, gpus: int) -> int:
    """Return how many interfaces a rank of a gang asks for: its GPUs' share of what each of the pool's types has."""
    of: dict[str, tuple[int, int | None]] = {
        name: (EFA_INTERFACES[name], size.gpus if size else None) for name, size in pool.node_sizes.items()
    }
    return min(max(1, has * min(gpus, there or gpus) // (there or gpus)) for has, there in of.values())


def huge_pages_of_a_pod(pool: EksGpuPool) -> str:
    """Return how much memory in pages of 2 MiB a rank of a gang with EFA asks for, as a quantity.

    EFA's driver on Amazon Linux sets 5128 pages aside ("Run machine learning training with EFA" in EKS's user guide),
    Bottlerocket 110 a vCPU (bottlerocket-core-kit, corndog), which is less on a type of 16 alone.
    """
    cpus = [machine.vcpus for name in pool.node_sizes if (machine := instance_type(name))]
    of_type = 2 * _BOTTLEROCKET_PAGES * min(cpus, default=_USUAL_HUGE_PAGES)
    mib = min(_USUAL_HUGE_PAGES, of_type) if pool.has_image_volume else _USUAL_HUGE_PAGES
    return f"{mib}Mi"


_USUAL_HUGE_PAGES = 5120  # MiB
_BOTTLEROCKET_PAGES = 110


# -- where images are unpacked -------------------------------------------------------------------------------

_WITHOUT_DISKS = ("p2", "p3", "g5g")
"""The families of the catalogue without disks of their own (DescribeInstanceTypes, InstanceStorageInfo)."""


def has_local_disk(name: str) -> bool:
    """Return True if machines of EC2 type `name` have local NVMe; False for a type that the catalogue does not know."""
    return instance_type(name) is not None and name.partition(".")[0] not in _WITHOUT_DISKS


def faster_starts(pool: EksGpuPool) -> str:
    """Return what makes the pool's images be there sooner; empty where it has that, or nothing does."""
    if pool.fast_start:
        return ""
    disks = [name for name in pool.instance_types if has_local_disk(name)]
    have = f"{', '.join(disks)} {'have' if len(disks) > 1 else 'has'} a local NVMe" if disks else ""
    by = "fast_start=True makes images go to a faster disk" if pool.manage == "full" else ""
    return ", ".join(filter(None, (by, have)))


# -- capacity reservations ----------------------------------------------------------------------------------

_ID = re.compile(r"cr-[0-9a-f]{8,17}")


def reservation_problems(pool: EksGpuPool) -> Iterator[tuple[str, str]]:
    """Yield what cannot work of a rendered pool, each with its fix."""
    named, is_market = pool.reservations, "RESERVED" in pool.capacity_types
    if wrong := [name for name in named if not _ID.fullmatch(name)]:
        yield (
            f"reservations: {', '.join(wrong)} is no Capacity Reservation's id",
            "Ids begin with cr-; a Capacity Block has one too (aws ec2 describe-capacity-reservations).",
        )
    if len(set(named)) < len(named):
        yield f"reservations names one twice: {', '.join(named)}", "Name each once."
    if is_market and not named:
        yield 'capacity_types has "RESERVED", and reservations names none', 'Name them, like "cr-0a1b2c3d4e5f67890".'
    if named and not is_market:
        yield 'reservations needs "RESERVED" in capacity_types', 'Put it where it is preferred: before "ON_DEMAND".'
    if named and pool.launch_template:
        what = "reservations and launch_template exclude each other: each reservation's group has a template of its own"
        yield what, "Give one or the other."
    if named and pool.is_autoscaled:
        yield (
            'reservations needs scaling="direct": cluster-autoscaler knows no begin and no end of them',
            "Leave it out.",
        )

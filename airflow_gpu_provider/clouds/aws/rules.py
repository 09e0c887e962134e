"""What an EksGpuPool asks of its nodes beside their type, and what of that cannot work. Pure.

What EKS takes in a launch template alone, EFA, EC2's network for machines that train together, and reservations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from airflow_gpu_provider.clouds.aws.machine_types import EFA_INTERFACES, instance_type
from airflow_gpu_provider.pools.on_nodes import PodFabric

if TYPE_CHECKING:
    from airflow_gpu_provider.accelerators import NodeSize

IN_TEMPLATES = ("user_data", "network", "fast_start")
"""The arguments for which a pool's node groups have launch templates of this package's, beside some of its disk."""

DEFAULT_DISK_GIB = 100


class EksDisk(TypedDict, total=False):
    """The gp3 volume of images and pods; EksGpuPool describes each key."""

    size: int
    throughput: int
    iops: int


# gp3, by botocore's LaunchTemplateEbsBlockDeviceRequest, and "General Purpose SSD volumes" of the EBS user guide.
_LIMITS = {"size": (1, 65_536, " GiB"), "iops": (3000, 80_000, ""), "throughput": (125, 2000, " MiB/s")}
_LEAST_IOPS, _MIB_PER_IOPS, _IOPS_PER_GIB = 3000, 0.25, 500


def volume_problems(disk: EksDisk) -> Iterator[tuple[str, str]]:
    """Yield what gp3 has not of a volume, each with its fix."""
    size, iops, throughput = disk.get("size", DEFAULT_DISK_GIB), disk.get("iops"), disk.get("throughput", 0)
    given: Mapping[str, object] = disk
    for name, (least, most, unit) in _LIMITS.items():
        value = given.get(name)
        if isinstance(value, int) and not least <= value <= most:
            yield f"disk[{name!r}]={value} must be between {least} and {most}{unit}, as gp3 has it", "Correct it."
    needed = -(-throughput // _MIB_PER_IOPS)
    if needed > (iops or _LEAST_IOPS):
        yield (
            f"disk['throughput']={throughput} is more than gp3 gives with {iops or _LEAST_IOPS} IOPS, a MiB/s for four",
            f"Set disk['iops'] to {needed:.0f} at least.",
        )
    if iops is not None and iops > size * _IOPS_PER_GIB:
        yield (
            f"disk['iops']={iops} is more than gp3 gives on {size} GiB, {_IOPS_PER_GIB} for each",
            f"Set disk['size'] to {-(-iops // _IOPS_PER_GIB)} at least.",
        )


_RELEASES = {  # EKS user guide, "Retrieve Amazon Linux AMI version information"; the Bottlerocket image's version
    "AL": (re.compile(r"\d+\.\d+\.\d+-\d{8}"), "1.36.3-20260827"),
    "BOTTLEROCKET": (re.compile(r"\d+\.\d+\.\d+-[0-9a-f]{8}"), "1.64.0-7c4f0d2b"),
}


def release_problems(release: str, ami_type: str) -> Iterator[tuple[str, str]]:
    """Yield what cannot work of an ami_release, each with its fix."""
    if ami_type == "CUSTOM":
        yield "ami_release and ami_type CUSTOM exclude each other: the launch template names the image", "Leave it out."
        return
    form, example = _RELEASES["BOTTLEROCKET" if ami_type.startswith("BOTTLEROCKET_") else "AL"]
    if not form.fullmatch(release):
        yield (
            f"ami_release={release!r} is no release of an image of ami_type {ami_type}",
            f"It is a node group's releaseVersion, like {example} (aws eks describe-nodegroup).",
        )


# -- EFA: which types have it, and which pools can -----------------------------------------------------------

EFA_RESOURCE = "vpc.amazonaws.com/efa"
"""What EFA's device plugin calls an interface, of which a pod asks for some."""


def efa_problems(types: Iterable[str], ami_type: str, *, is_autoscaled: bool) -> Iterator[tuple[str, str]]:
    """Yield why a pool cannot have network="efa", each with its fix."""
    if without := [name for name in types if name not in EFA_INTERFACES]:
        yield (
            f'network="efa": {", ".join(without)} has no EFA interface, as far as is known',
            "Leave it out; of a family, the large types have them, like g6.8xlarge (docs/multi-node.md).",
        )
    if not ami_type.startswith(("AL2023_", "BOTTLEROCKET_")):
        yield f'network="efa": images of ami_type {ami_type} bring no EFA driver', "Use the default ami_type."
    if is_autoscaled:
        yield (
            'network="efa": cluster-autoscaler does not know that an empty group\'s nodes would have EFA interfaces',
            'Leave scaling="autoscaler" out.',
        )


def efa_of_a_pod(sizes: Mapping[str, NodeSize | None], gpus: int, *, is_bottlerocket: bool) -> PodFabric:
    """Return what a rank of a gang with EFA asks for; FI_PROVIDER makes libfabric, and so NCCL's plugin, take EFA.

    Args:
        sizes: The pool's instance types, each with its node's size.
        gpus: GPUs of each rank.
        is_bottlerocket: The nodes' image is Bottlerocket.
    """
    pages = huge_pages_of_a_pod(sizes, is_bottlerocket=is_bottlerocket)
    resources = {EFA_RESOURCE: str(interfaces_of_a_pod(sizes, gpus)), "hugepages-2Mi": pages}
    return PodFabric(resources=resources, env={"FI_PROVIDER": "efa"})


def interfaces_of_a_pod(sizes: Mapping[str, NodeSize | None], gpus: int) -> int:
    """Return how many interfaces a rank of a gang asks for: its GPUs' share of what each of the pool's types has."""
    of: dict[str, tuple[int, int | None]] = {
        name: (EFA_INTERFACES[name], size.gpus if size else None) for name, size in sizes.items()
    }
    return min(max(1, has * min(gpus, there or gpus) // (there or gpus)) for has, there in of.values())


def huge_pages_of_a_pod(types: Iterable[str], *, is_bottlerocket: bool) -> str:
    """Return how much memory in pages of 2 MiB a rank of a gang with EFA asks for, as a quantity.

    EFA's driver on Amazon Linux sets 5128 pages aside ("Run machine learning training with EFA" in EKS's user guide),
    Bottlerocket 110 a vCPU (bottlerocket-core-kit, corndog), which is less on a type of 16 alone.
    """
    cpus = [machine.vcpus for name in types if (machine := instance_type(name))]
    of_type = 2 * _BOTTLEROCKET_PAGES * min(cpus, default=_USUAL_HUGE_PAGES)
    mib = min(_USUAL_HUGE_PAGES, of_type) if is_bottlerocket else _USUAL_HUGE_PAGES
    return f"{mib}Mi"


_USUAL_HUGE_PAGES = 5120  # MiB
_BOTTLEROCKET_PAGES = 110


# -- where images are unpacked -------------------------------------------------------------------------------

_WITHOUT_DISKS = ("p2", "p3", "g5g")
"""The families of the catalogue without disks of their own (DescribeInstanceTypes, InstanceStorageInfo)."""


def has_local_disk(name: str) -> bool:
    """Return True if machines of EC2 type `name` have local NVMe; False for a type that the catalogue does not know."""
    return instance_type(name) is not None and name.partition(".")[0] not in _WITHOUT_DISKS


def faster_starts(types: Iterable[str], *, is_owned: bool) -> str:
    """Return what makes images be there sooner on nodes of these types without fast_start; empty where nothing does."""
    disks = [name for name in types if has_local_disk(name)]
    have = f"{', '.join(disks)} {'have' if len(disks) > 1 else 'has'} a local NVMe" if disks else ""
    by = "fast_start=True makes images go to a faster disk" if is_owned else ""
    return ", ".join(filter(None, (by, have)))


# -- capacity reservations ----------------------------------------------------------------------------------

_ID = re.compile(r"cr-[0-9a-f]{8,17}")


def reservation_problems(
    named: Sequence[str], *, is_market: bool, launch_template: str | None, is_autoscaled: bool
) -> Iterator[tuple[str, str]]:
    """Yield what cannot work of the reservations that a pool names, each with its fix.

    Args:
        is_market: Its capacity_types have "RESERVED".
    """
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
    if named and launch_template:
        what = "reservations and launch_template exclude each other: each reservation's group has a template of its own"
        yield what, "Give one or the other."
    if named and is_autoscaled:
        yield (
            'reservations needs scaling="direct": cluster-autoscaler knows no begin and no end of them',
            "Leave it out.",
        )

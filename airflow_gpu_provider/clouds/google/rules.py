"""Which machine types, GPUs and shares of GPUs a GKE pool can have, and how and how long it has machines. No I/O.

The rules are those of GKE's API (container v1: NodeConfig) and of the pages that they name. The last part is about
pools whose nodes come only by ProvisioningRequests, for all pods of a gang at once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypedDict

from airflow_gpu_provider.accelerators import GPUS, Gpu
from airflow_gpu_provider.clouds.google import machine_types
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.values import Taint, closest, is_template

if TYPE_CHECKING:
    from airflow_gpu_provider.pools.gpu_pool import GpuPool


class Accelerator(TypedDict, total=False):
    """GPUs to attach to a machine; these and the others are parts of GkeGpuPool, which describes each key."""

    type: str
    count: int


class GpuSharing(TypedDict, total=False):
    """How several pods share a GPU (container v1, GPUSharingConfig)."""

    strategy: str
    max_shared_clients: int


class GkeDisk(TypedDict, total=False):
    """A node's boot disk."""

    size: int
    type: str


class Images(TypedDict, total=False):
    """How container images get to the nodes."""

    streaming: bool
    secondary_boot_disks: Sequence[str]


class ReservationAffinity(TypedDict, total=False):
    """Which reservations machines are of (container v1, ReservationAffinity)."""

    consume_reservation_type: str
    key: str
    values: Sequence[str]


class ShieldedInstanceConfig(TypedDict, total=False):
    """What a machine checks when it boots (container v1, ShieldedInstanceConfig)."""

    enable_secure_boot: bool
    enable_integrity_monitoring: bool


Problems = Iterator[tuple[str, str]]
"""What cannot work, each with its fix."""

_GPU_FAMILY = re.compile(r"([ag]\d+x?-)[a-z0-9-]+")
_MACHINE_HINT = "Choose one with GPUs, like g2-standard-4, or N1 with an accelerator, like n1-standard-4."
_SHARING = ("TIME_SHARING", "MPS")


def machine_problems(types: Sequence[str], accelerator: Accelerator) -> Problems:
    """Yield what cannot work of machine_types and the GPUs that are attached to them."""
    attached, count = accelerator.get("type"), accelerator.get("count")
    if len(set(types)) < len(types):
        yield f"machine_types names one twice: {', '.join(types)}", "Name each once."
    if attached is not None and None not in map(machine_types.gce_machine_type, types):
        yield from _accelerator_problems(attached)
    if count is not None and count < 1:
        yield f"accelerator['count']={count} must be at least 1", "Correct the pool's spec."
    attaches = any(name.startswith("n1-") for name in types)
    for name in types:
        machine = machine_types.gce_machine_type(name)
        if machine is None:
            yield from _unknown_problems(name, is_described=bool(attached and count))
        elif machine.gpu:
            # Next to N1 machines, the accelerator describes theirs.
            yield from () if attaches else _built_in_problems(machine, machine.gpu, attached, count)
        elif machine.takes_attached_gpus:
            yield from _attached_problems(name, attached, count or 1)
        else:
            yield f"{name} has no GPUs, and none can be attached to it", _MACHINE_HINT


def sharing_problems(sharing: GpuSharing) -> Problems:
    if not sharing:
        return
    clients = sharing.get("max_shared_clients")
    if set(sharing) != {"strategy", "max_shared_clients"} or sharing["strategy"] not in _SHARING:
        example = '{"strategy": "TIME_SHARING" or "MPS", "max_shared_clients": 2 to 48}'
        yield f"gpu_sharing={sharing!r} must have a strategy and max_shared_clients", f"Write {example}."
    elif isinstance(clients, bool) or not isinstance(clients, int) or not 2 <= clients <= 48:
        yield f"gpu_sharing: max_shared_clients={clients!r} must be 2 to 48", "Correct the pool's spec."


def partition_problems(size: str | None, accelerator_of: Mapping[str, str]) -> Problems:
    """Yield which machine types have no such partitions; `accelerator_of` has the accelerator type of each."""
    for name, accelerator in accelerator_of.items() if size else ():
        gpu = machine_types.gpu_of_accelerator(accelerator)
        if gpu and size not in machine_types.gke_partitions_of(gpu):
            parts = ", ".join(machine_types.gke_partitions_of(gpu))
            hint = f"Choose one of {parts}." if parts else "Leave gpu_partition_size out, or use gpu_sharing."
            yield f"gpu_partition_size={size!r}: the {gpu.name} of {name} has no such partition", hint


def _accelerator_problems(name: str) -> Problems:
    known = machine_types.gce_accelerators()
    if name in known or machine_types.gpu_of_accelerator(name):
        return
    by_name = {gpu.name: gpu.accelerator for gpu in GPUS.values() if gpu.accelerator in known}
    close = by_name.get(name.upper()) or closest(name.lower(), known)
    hint = f"Did you mean {close}?" if close else f"Known are {', '.join(known)}."
    yield f"accelerator['type']={name!r} is not a GPU of Google Cloud", hint


def _unknown_problems(name: str, *, is_described: bool) -> Problems:
    family = _GPU_FAMILY.fullmatch(name)
    if family and is_described:
        return  # newer than the catalogue: GKE will check it
    known = machine_types.gce_machine_types()
    if not family or any(one.startswith(family[1]) for one in known):
        close = closest(name, known)
        hint = f"Did you mean {close}?" if close else _MACHINE_HINT
        yield f"{name!r} is not a machine type of Compute Engine with GPUs", hint
    else:
        yield f"{name} is not in the catalogue", "Give type and count of its GPUs in accelerator."


def _built_in_problems(
    machine: machine_types.GceMachineType, gpu: Gpu, attached: str | None, count: int | None
) -> Problems:
    if attached and attached != gpu.accelerator:
        yield f"{machine.name} has {gpu.accelerator}, not {attached}", "Leave accelerator out."
    if count and count != machine.gpus:
        yield f"{machine.name} has {machine.gpus} GPUs, not {count}", "Leave accelerator out."


def _attached_problems(name: str, attached: str | None, count: int) -> Problems:
    if not attached:
        yield f"{name} has no GPUs of its own", 'Give it some: accelerator={"type": "nvidia-tesla-t4"}.'
        return
    counts = machine_types.attachable_gpus(name, attached)
    if not counts:
        fit = [each for each in machine_types.gce_accelerators() if machine_types.attachable_gpus(name, each)]
        yield f"{attached} cannot be attached to {name}", f"Give it one of {', '.join(fit)}." if fit else _MACHINE_HINT
    elif count not in counts:
        allowed = " or ".join(map(str, counts))
        yield f"{count} x {attached} cannot be attached to {name}", f"Set accelerator['count'] to {allowed}."


# -- where the machines of a pool are, by node pool ----------------------------------------------------------

_MAX_NAME = 40  # of a node pool


def node_pool_name(pool: str, region: str, zone: str, machine_type: str, market: str) -> str:
    """Return a candidate's node pool; beyond GKE's 40 characters, a hash replaces the rest of the pool's name."""
    market_suffix = "-spot" if market == "SPOT" else ""
    suffix = f"{zone.removeprefix(region).strip('-')}-{machine_type}{market_suffix}"
    name = f"{pool}-{suffix}"
    if len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(pool.encode()).hexdigest()[:4]
    room = _MAX_NAME - len(suffix) - len(digest) - 2
    return f"{pool[:room].rstrip('-')}-{digest}-{suffix}"


# -- how machines are obtained besides on demand: from a reservation, or by flex-start -----------------------

# "Consume reserved zonal resources" and "About flex-start provisioning".

LONGEST_RUN = timedelta(days=120)
LONGEST_FLEX_START = timedelta(days=7)
RESERVED_ONLY = ("SPECIFIC_RESERVATION", "ANY_RESERVATION_THEN_FAIL")
"""The values of ReservationAffinity.Type with which machines come only from a reservation."""

_TYPES = ("NO_RESERVATION", "ANY_RESERVATION", *RESERVED_ONLY)


# "Node images", and NodeConfig: an image for GPUs is one of these, and a disk has 10 GB at least.
_IMAGES = ("COS_CONTAINERD", "UBUNTU_CONTAINERD")
_SMALLEST_DISK = 10
_NETWORK_TAG = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")  # Compute Engine, "Add network tags"


def image_problems(image: str) -> Problems:
    if image.upper() not in _IMAGES:
        yield f"image_type={image!r} is no node image for GPUs", f"Give one of {', '.join(_IMAGES)}."


def disk_size_problems(size: int | None) -> Problems:
    if size is not None and size < _SMALLEST_DISK:
        yield f"disk['size']={size} GB is less than GKE allows", f"Give {_SMALLEST_DISK} or more."


def tag_problems(tags: Iterable[str]) -> Problems:
    for tag in tags:
        if not _NETWORK_TAG.fullmatch(tag):
            yield f"tags: {tag!r} is no network tag", "Use lower-case letters, digits and '-', a letter first."


_RESERVED_LABELS = ("cloud.google.com/gke-", "kubernetes.io/", "k8s.io/")
_DISK_IMAGE = re.compile(
    r"(https://www\.googleapis\.com/compute/v1/)?projects/[a-z0-9.:-]+/global/images/[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
)


def label_problems(labels: Iterable[str]) -> Problems:
    """Yield which labels GKE keeps for itself: it would refuse the node pool at night."""
    for key in labels:
        if key.startswith(_RESERVED_LABELS):
            yield f"node_labels: GKE rejects {key}, which is its own", "Use a domain of your own."


def start_problems(images: Images, image: str) -> Problems:
    """Yield what is wrong with what makes images be there sooner.

    GKE's pages "Use Image streaming to pull container images" and "Use secondary boot disks to preload data or
    container images": both are for COS, and the disks are read by what streams images.
    """
    streams, disks = images.get("streaming", False), images.get("secondary_boot_disks", ())
    if disks and not streams:
        yield "images: secondary_boot_disks need streaming, which reads them", 'Add "streaming": True.'
    if (streams or disks) and not is_template(image) and not image.upper().startswith("COS"):
        yield f"image_type={image!r} streams no images", 'Leave image_type out, or use "COS_CONTAINERD".'
    for disk in disks:
        if not _DISK_IMAGE.fullmatch(disk):
            yield (
                f"images: secondary_boot_disks: {disk!r} is no disk image",
                'Write "projects/PROJECT/global/images/NAME".',
            )


def driver_problems(driver: str, image: str, partition: str | None) -> Problems:
    if driver == "latest" and image.upper().startswith("UBUNTU"):
        yield (
            f'driver="latest" does not work with image_type={image!r}: GKE installs it on COS alone',
            'Leave driver out, or use image_type="COS_CONTAINERD".',
        )
    if driver == "daemonset" and partition:
        yield 'gpu_partition_size does not work with driver="daemonset"', "Let GKE install the driver."


def reservation_problems(affinity: ReservationAffinity, capacity_types: Iterable[str]) -> Problems:
    if not affinity:
        return
    kind = affinity.get("consume_reservation_type")
    named = bool(affinity.get("key")) and bool(affinity.get("values"))
    if kind not in _TYPES:
        yield (
            f"reservation_affinity={affinity!r} has no known type",
            f"Give consume_reservation_type, one of {', '.join(_TYPES)}.",
        )
    elif kind == "SPECIFIC_RESERVATION" and not named:
        example = '"key": "compute.googleapis.com/reservation-name", "values": ["my-reservation"]'
        yield "reservation_affinity names no reservation", f"Add {example}."
    elif kind != "SPECIFIC_RESERVATION" and len(affinity) > 1:
        yield f"reservation_affinity: {kind} takes neither key nor values", "Leave them out."
    elif kind in RESERVED_ONLY and set(capacity_types) != {"ON_DEMAND"}:
        yield "spot machines cannot use a reservation", 'Set capacity_types=["ON_DEMAND"].'


def lifetime_problems(limit: timedelta | None, max_runtime: timedelta) -> Problems:
    """Yield how a max_run_duration and a max_runtime contradict Google's limits, or each other."""
    if limit is not None and limit > LONGEST_RUN:
        yield f"max_run_duration is more than {LONGEST_RUN.days} days", "Correct the pool's spec."
    if limit is not None and limit < max_runtime:
        yield (
            f"max_run_duration={limit} is less than max_runtime={max_runtime}",
            "Raise it, or lower max_runtime: machines would be deleted while a run may still want them.",
        )


def flex_start_problems(
    *,
    scaling: str,
    location_policy: str,
    affinity: ReservationAffinity,
    capacity_types: Iterable[str],
    lifetime: timedelta | None,
    min_nodes: int,
) -> Problems:
    """Yield what does not work with flex_start."""
    if set(capacity_types) != {"ON_DEMAND"}:
        yield "flex-start machines are not spot", 'Set capacity_types=["ON_DEMAND"].'
    if scaling != "autoscaler":
        yield "only GKE's autoscaler requests flex-start machines", 'Set scaling="autoscaler".'
    if location_policy != "any":
        yield 'flex_start needs location_policy="any"', "Leave location_policy out."
    if affinity.get("consume_reservation_type", "NO_RESERVATION") != "NO_RESERVATION":
        yield (
            "flex-start machines cannot use a reservation",
            "Leave one of flex_start and reservation_affinity out.",
        )
    if not min_nodes and (lifetime is None or lifetime > LONGEST_FLEX_START):
        yield (
            f"flex-start machines live for at most {LONGEST_FLEX_START.days} days; without max_run_duration they"
            " live for max_runtime and 15 minutes",
            "Lower max_run_duration or max_runtime.",
        )
    if min_nodes:
        yield "node pools with flex-start begin at 0 nodes", "Leave min_nodes out."


def queued_problems(*, flex_start: object, sharing: GpuSharing, placement: str | None) -> Problems:
    """Yield what does not work with queued_provisioning; the rest is flex-start's.

    GKE, "Run a large-scale workload with flex-start with queued provisioning"; that there is no compact placement:
    GoogleCloudPlatform/cluster-toolkit, modules/compute/gke-node-pool/main.tf.
    """
    if not flex_start:
        yield "queued_provisioning is a kind of flex-start", "Set flex_start=True."
    if sharing:
        yield "with queued_provisioning each rank of a gang takes a whole node", "Leave gpu_sharing out."
    if placement:
        yield "GKE takes no compact placement with queued_provisioning", "Leave placement out."


# -- nodes that come only by ProvisioningRequests: GKE, "... with flex-start with queued provisioning" ------------

QUEUED_CLASS = "queued-provisioning.gke.io"
QUEUED_TAINT = Taint(key="cloud.google.com/gke-queued", value="true", effect="NoSchedule")
"""GKE adds it to node pools with queued provisioning."""


_DURATION = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"
"""By it an object's request gets another duration than its config has (Kueue, provReqSyncedWithConfig)."""


def check_nodes_come(
    pool: GpuPool, *, nodes: int, gpus: int, queue: str | None, annotations: Collection[str] = ()
) -> None:
    """Check that a task's pods get nodes where these come only by ProvisioningRequests, which Kueue makes.

    GKE's autoscaler estimates a request's nodes without the pods' anti-affinity ("About flex-start with queued
    provisioning", limitations), so each rank has to fill its node.

    The arguments are those of `GpuPool.check_nodes_come`.

    Raises:
        PoolSpecError: No request is made for them, one that is made again for ever, or one that would bring fewer nodes
            than there are ranks.
    """
    if not pool.provisioning_class:
        return
    if not queue:
        raise PoolSpecError(
            f"The task has no queue_name, and the nodes of pool {pool.name} come only by ProvisioningRequests"
            " (queued_provisioning), which Kueue makes.",
            "Give queue_name=, a LocalQueue whose ClusterQueue has the admission check of docs/gke.md, or use a pool"
            " with flex_start alone.",
            pool=pool.name,
        )
    if _DURATION in annotations:
        raise PoolSpecError(
            f"The task has the annotation {_DURATION}. Where its value is not that of the ProvisioningRequestConfig,"
            " Kueue deletes the request and makes it again, for ever.",
            "Leave it out, and give maxRunDurationSeconds in the parameters of the config (docs/gke.md).",
            pool=pool.name,
        )
    offered = {size.gpus for size in pool.node_sizes.values() if size is not None and size.gpus}
    if nodes > 1 and (others := sorted(offered - {gpus})):
        raise PoolSpecError(
            f"gpus={gpus}, but nodes of pool {pool.name} have {others[-1]}: with"
            " queued_provisioning each rank takes a whole one.",
            f"Give gpus={others[-1]}, and the pool machine types with as many each.",
            pool=pool.name,
        )

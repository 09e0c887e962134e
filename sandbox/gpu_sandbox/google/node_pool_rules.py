"""What GKE refuses in a node pool's settings. Each error is INVALID_ARGUMENT and says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable

from google.cloud.container_v1.types import (
    AcceleratorConfig,
    GPUDriverInstallationConfig,
    NodeConfig,
    NodePool,
    NodePoolAutoscaling,
    NodeTaint,
    ReservationAffinity,
    SecondaryBootDisk,
)

from gpu_sandbox.google.catalogue import Catalogue
from gpu_sandbox.google.errors import invalid
from gpu_sandbox.google.machine_types import ACCELERATORS, MACHINE_TYPES, attachable_gpus
from gpu_sandbox.google.templates import run_seconds

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_DISK_IMAGE = re.compile(r"(https://www\.googleapis\.com/compute/v1/)?projects/[^/]+/global/images/[^/]+")
_RESERVED = ("kubernetes.io/", "k8s.io/", "cloud.google.com/")
_LARGEST_POOL = 1000
_SHORTEST_RUN = 30
_LONGEST_RUN = 120 * 86400
_LONGEST_FLEX_START = 7 * 86400
_MOST_CLIENTS = 48
_HYPERDISK_ONLY = ("a3-ultragpu-", "a4-", "a4x-", "g4-")
_QUEUED = "cloud.google.com/gke-queued"


def complete(pool: NodePool, *, locations: Iterable[str]) -> None:
    """Fill in what GKE fills in where nothing is said."""
    config = pool.config
    config.machine_type = config.machine_type or "e2-standard-2"
    config.image_type = config.image_type or "COS_CONTAINERD"
    config.disk_size_gb = config.disk_size_gb or 100
    config.disk_type = config.disk_type or _boot_disks(config.machine_type)[0]
    if not pool.locations:
        pool.locations = list(locations)
    machine = MACHINE_TYPES.get(config.machine_type)
    if machine and machine.accelerator and not config.accelerators:
        config.accelerators = [
            AcceleratorConfig(accelerator_type=machine.accelerator.name, accelerator_count=machine.gpus)
        ]


def _boot_disks(machine_type: str) -> tuple[str, ...]:
    """What a machine boots from, its default first (GoogleCloudPlatform/cluster-autoscaler, machinetypes)."""
    if machine_type.startswith(_HYPERDISK_ONLY):
        return ("hyperdisk-balanced",)
    if machine_type.startswith("a3-"):
        return ("pd-balanced", "pd-ssd", "hyperdisk-balanced")
    return ("pd-balanced", "pd-ssd") if machine_type.startswith("g2-") else ("pd-balanced", "pd-ssd", "pd-standard")


def taint_gpus(pool: NodePool) -> None:
    """Add the taint that GKE gives a new node pool with GPUs; an update that leaves it out takes it away for good.

    (UpdateNodePoolRequest.taints; hashicorp/terraform#19133 has it among the node pool's own.) A cluster whose node
    pools all have GPUs gets none (terraform-google-modules/terraform-google-kubernetes-engine#703).
    """
    taints = pool.config.taints
    if pool.config.accelerators and not any(taint.key == "nvidia.com/gpu" for taint in taints):
        taints.append(NodeTaint(key="nvidia.com/gpu", value="present", effect=NodeTaint.Effect.NO_SCHEDULE))


def taint_queued(pool: NodePool) -> None:
    """Add the taint that GKE gives a new node pool with queued provisioning."""
    if pool.queued_provisioning.enabled and not any(taint.key == _QUEUED for taint in pool.config.taints):
        pool.config.taints.append(NodeTaint(key=_QUEUED, value="true", effect=NodeTaint.Effect.NO_SCHEDULE))


def check(pool: NodePool, catalogue: Catalogue) -> None:
    """Everything that is known before any instance is asked for."""
    if not _NAME.fullmatch(pool.name):
        raise invalid(
            f'Invalid value for field "node_pool.name": "{pool.name}". Must be a match of regex '
            "(?:[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?)."
        )
    check_locations(pool.locations, catalogue)
    for zone in pool.locations:
        _check_hardware(pool.config, zone, catalogue)
    _check_config(pool.config)
    _check_start(pool.config)
    _check_capacity(pool)
    _check_queued(pool)
    _check_placement(pool)
    check_autoscaling(pool.autoscaling)
    check_size(pool.initial_node_count, pool.autoscaling)


def check_management(pool: NodePool, release_channel: str) -> None:
    """In a release channel nodes are upgraded and repaired, and nothing switches that off; said nothing, it is on.

    ("Release channels"; terraform-google-modules/terraform-google-kubernetes-engine#682 has the refusal.) Flex-start
    node pools are never repaired, and have to say so (GoogleCloudPlatform/cluster-toolkit#4027).
    """
    management, is_said = pool.management, "management" in pool
    if pool.config.flex_start and (not is_said or management.auto_repair):
        raise invalid("Auto_repair must be false for a node pool with flex_start.")
    if not release_channel:
        return
    if is_said and not (management.auto_upgrade and (management.auto_repair or pool.config.flex_start)):
        raise invalid(f"Auto_upgrade and auto_repair cannot be false when release_channel {release_channel} is set.")
    pool.management.auto_upgrade = True
    pool.management.auto_repair = not pool.config.flex_start


def check_locations(locations: Iterable[str], catalogue: Catalogue) -> None:
    for zone in locations:
        if zone not in catalogue.zones:
            raise invalid(f'Location "{zone}" does not exist or is not in the cluster\'s region "{catalogue.region}".')


def check_size(size: int, autoscaling: NodePoolAutoscaling) -> None:
    if not 0 <= size <= _LARGEST_POOL:
        raise invalid(f"Node pool size must be between 0 and {_LARGEST_POOL} per zone; got {size}.")
    if autoscaling.enabled and autoscaling.max_node_count and size > autoscaling.max_node_count:
        raise invalid(
            f"Node count {size} is greater than the node pool's autoscaling maximum ({autoscaling.max_node_count})."
        )


def check_autoscaling(autoscaling: NodePoolAutoscaling) -> None:
    if not autoscaling.enabled:
        return
    if not autoscaling.max_node_count and not autoscaling.total_max_node_count:
        raise invalid("Cluster autoscaling requires max_node_count or total_max_node_count.")
    if autoscaling.max_node_count and autoscaling.total_max_node_count:
        raise invalid("max_node_count and total_max_node_count cannot both be specified.")
    pairs = (
        (autoscaling.min_node_count, autoscaling.max_node_count),
        (autoscaling.total_min_node_count, autoscaling.total_max_node_count),
    )
    for least, most in pairs:
        if most and least > most:
            raise invalid(f"Autoscaling minimum ({least}) is greater than the maximum ({most}).")


def _check_hardware(config: NodeConfig, zone: str, catalogue: Catalogue) -> None:
    machine = MACHINE_TYPES.get(config.machine_type)
    if machine is None or not catalogue.has_machine_type(config.machine_type, zone):
        raise invalid(f"Machine type with name '{config.machine_type}' does not exist in zone '{zone}'.")
    if len(config.accelerators) > 1:
        raise invalid("Only one accelerator type may be specified per node pool.")
    for accelerator in config.accelerators:
        _check_accelerator(config.machine_type, accelerator, zone, catalogue)


def _check_accelerator(machine_type: str, wanted: AcceleratorConfig, zone: str, catalogue: Catalogue) -> None:
    kind, count = wanted.accelerator_type, int(wanted.accelerator_count)
    if kind not in ACCELERATORS or not catalogue.has_accelerator(kind, zone):
        raise invalid(f'Accelerator type "{kind}" does not exist in zone {zone}.')
    machine = MACHINE_TYPES.get(machine_type)
    if machine and machine.accelerator:
        if (machine.accelerator.name, machine.gpus) != (kind, count):
            raise invalid(
                f"Machine type {machine_type} has {machine.gpus} {machine.accelerator.name}; "
                f"the requested accelerator, {count} {kind}, is not compatible with it."
            )
    elif count not in attachable_gpus(machine_type, kind):
        raise invalid(
            f'[{count}] accelerators of type "{kind}" cannot be attached to machine type {machine_type}; '
            f"allowed: {list(attachable_gpus(machine_type, kind)) or 'none'}."
        )
    if wanted.gpu_partition_size and wanted.gpu_partition_size not in ACCELERATORS[kind].partitions:
        raise invalid(f'Unknown GPU partition size "{wanted.gpu_partition_size}".')
    if wanted.gpu_sharing_config.max_shared_clients_per_gpu > _MOST_CLIENTS:
        raise invalid(f"max_shared_clients_per_gpu must be between 2 and {_MOST_CLIENTS}.")


def _check_config(config: NodeConfig) -> None:
    if config.disk_type and config.disk_type not in _boot_disks(config.machine_type):
        raise invalid(f"Disk type {config.disk_type} is not supported for machine type {config.machine_type}.")
    if config.spot and config.preemptible:
        raise invalid("Node pool cannot be both spot and preemptible.")
    versions = GPUDriverInstallationConfig.GPUDriverVersion
    drivers = {each.gpu_driver_installation_config.gpu_driver_version for each in config.accelerators}
    if versions.LATEST in drivers and config.image_type.upper().startswith("UBUNTU"):
        # GPUDriverVersion: "LATEST" is for COS. Whether GKE refuses it, or installs none, is not known.
        raise invalid("gpu_driver_version LATEST is only supported for Container-Optimized OS.")
    if config.preemptible and "max_run_duration" in config:
        # "Limit the run time of a VM", Restrictions; the words are not known.
        raise invalid("max_run_duration cannot be used with preemptible VMs; use Spot VMs.")
    if "max_run_duration" in config:
        seconds = run_seconds(config)
        # Shorter than Google's 30 s is let through, so that a test need not wait for the end.
        if not 0 < seconds <= _LONGEST_RUN:
            raise invalid(f"max_run_duration must be between {_SHORTEST_RUN} seconds and 120 days; got {seconds:g} s.")
    for key, value in config.labels.items():
        if key.startswith(_RESERVED) or key.partition("/")[0].endswith(".kubernetes.io"):
            raise invalid(f'Label key "{key}" is reserved.')
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise invalid(f'Invalid node label "{key}={value}".')
    check_taints(config.taints)


def _check_start(config: NodeConfig) -> None:
    """Image streaming, and disks that have images ("Use Image streaming ...", "Use secondary boot disks ...").

    Both are for COS, and the disks need streaming; GKE's words are not known.
    """
    streams, is_cos = config.gcfs_config.enabled, config.image_type.upper().startswith("COS")
    if streams and not is_cos:
        raise invalid("Image streaming (gcfs_config) requires the node image Container-Optimized OS with containerd.")
    for disk in config.secondary_boot_disks:
        if disk.mode != SecondaryBootDisk.Mode.CONTAINER_IMAGE_CACHE or not _DISK_IMAGE.fullmatch(disk.disk_image):
            raise invalid(f'Invalid secondary boot disk "{disk.disk_image}".')
        if not streams:
            raise invalid("Secondary boot disks of mode CONTAINER_IMAGE_CACHE require image streaming.")


def _check_placement(pool: NodePool) -> None:
    """Compact placement is of one zone, and not for N1 ("Define compact placement for GKE nodes")."""
    if pool.placement_policy.type_ != NodePool.PlacementPolicy.Type.COMPACT:
        return
    if len(pool.locations) > 1:
        raise invalid("A node pool with compact placement must be in a single zone.")
    if pool.config.machine_type.startswith("n1-"):
        raise invalid(f"Compact placement is not supported for machine type {pool.config.machine_type}.")


def _check_capacity(pool: NodePool) -> None:
    """Reservations and flex-start ("Consume reserved zonal resources", "About flex-start provisioning")."""
    config, kinds = pool.config, ReservationAffinity.Type
    affinity = config.reservation_affinity
    is_named = bool(affinity.key) and bool(affinity.values)
    if (affinity.consume_reservation_type == kinds.SPECIFIC_RESERVATION) != is_named:
        raise invalid("reservation_affinity: key and values are for SPECIFIC_RESERVATION, which needs both.")
    if is_named and (config.spot or config.preemptible):
        raise invalid("Spot and preemptible VMs cannot consume a specific reservation.")
    if not config.flex_start:
        return
    if config.spot or config.preemptible:
        raise invalid("flex_start cannot be combined with spot or preemptible.")
    if affinity.consume_reservation_type != kinds.NO_RESERVATION:
        raise invalid("flex_start requires reservation_affinity NO_RESERVATION.")
    if not pool.autoscaling.enabled or pool.initial_node_count:
        raise invalid("flex_start requires autoscaling, and an initial node count of zero.")
    if not 0 < run_seconds(config) <= _LONGEST_FLEX_START:
        raise invalid("flex_start requires a max_run_duration of at most seven days.")


def _check_queued(pool: NodePool) -> None:
    """Queued provisioning ("Run a large-scale workload with flex-start with queued provisioning").

    Its node pool is autoscaled from 0, with location policy ANY and no reservation, and has GPUs; no compact placement
    (GoogleCloudPlatform/cluster-toolkit, modules/compute/gke-node-pool/main.tf). The words are not known.
    """
    if not pool.queued_provisioning.enabled:
        return
    autoscaling, affinity = pool.autoscaling, pool.config.reservation_affinity
    least = autoscaling.min_node_count or autoscaling.total_min_node_count or pool.initial_node_count
    if not autoscaling.enabled or least:
        raise invalid("queued_provisioning requires autoscaling, with a minimum and an initial node count of zero.")
    if autoscaling.location_policy != NodePoolAutoscaling.LocationPolicy.ANY:
        raise invalid("queued_provisioning requires location policy ANY.")
    if affinity.consume_reservation_type != ReservationAffinity.Type.NO_RESERVATION:
        raise invalid("queued_provisioning requires reservation_affinity NO_RESERVATION.")
    if not pool.config.accelerators:
        raise invalid("queued_provisioning requires accelerators.")
    if pool.placement_policy.type_ == NodePool.PlacementPolicy.Type.COMPACT:
        raise invalid("queued_provisioning cannot be combined with compact placement.")


def check_taints(taints: Iterable[NodeTaint]) -> None:
    for taint in taints:
        if not _LABEL_KEY.fullmatch(taint.key) or not _LABEL_VALUE.fullmatch(taint.value):
            raise invalid(f'Invalid node taint "{taint.key}={taint.value}".')
        if taint.effect == NodeTaint.Effect.EFFECT_UNSPECIFIED:
            raise invalid(f'Node taint "{taint.key}" has no effect.')

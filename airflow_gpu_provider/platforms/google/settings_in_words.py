"""A node pool's settings as text, by which they are compared with the spec's, and told. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_UNPLACED = "TYPE_UNSPECIFIED"
_COMPUTE = "https://www.googleapis.com/compute/v1/"


def accelerator_text(config: Mapping[str, Any]) -> str:
    """Return a node config's GPUs, with their driver, parts and shares."""
    parts = []
    for one in config.get("accelerators") or ():
        driver = (one.get("gpu_driver_installation_config") or {}).get("gpu_driver_version")
        sharing = one.get("gpu_sharing_config") or {}
        shared = (
            f", {sharing['gpu_sharing_strategy']} by {int(sharing['max_shared_clients_per_gpu'])}"
            if int(sharing.get("max_shared_clients_per_gpu") or 0)
            else ""
        )
        partition = f", parts {one['gpu_partition_size']}" if one.get("gpu_partition_size") else ""
        parts.append(f"{int(one['accelerator_count'])} x {one['accelerator_type']}, driver {driver}{partition}{shared}")
    return "; ".join(parts) or "none"


def placement_of(found: Mapping[str, Any]) -> str:
    """Return where a node pool's machines stand: "compact" or "anywhere"."""
    kind = (found.get("placement_policy") or {}).get("type_") or _UNPLACED
    return "anywhere" if kind == _UNPLACED else str(kind).lower()


def boot_disks_of(config: Mapping[str, Any]) -> str:
    """Return the disk images of a node config's secondary boot disks."""
    return listed(str(each.get("disk_image")) for each in config.get("secondary_boot_disks") or ())


def listed(names: Iterable[str]) -> str:
    """Return disk images in one order, without Compute Engine's address."""
    return ", ".join(sorted(name.removeprefix(_COMPUTE) for name in names)) or "none"


def autoscaling_text(autoscaling: Mapping[str, Any]) -> str:
    """Return what GKE's autoscaler may do with a node pool."""
    if not autoscaling.get("enabled"):
        return "off"
    least, most = (int(autoscaling.get(f"{end}_node_count") or 0) for end in ("min", "max"))
    return f"{least} to {most}, {str(autoscaling.get('location_policy') or 'BALANCED').lower()}"


def taint_texts(taints: Any) -> list[str]:
    """Return taints in one order."""
    return sorted(f"{t['key']}={t.get('value', '')}:{t['effect']}" for t in taints)


def seconds_text(seconds: int | None) -> str:
    """Return a limit of a machine's life."""
    return "none" if seconds is None else f"{seconds} s"

"""What a pool's node pools should look like: GKE's NodePool, and how one that exists differs. Pure data.

Node pools are dictionaries in the words of google-cloud-container, enums by name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_gpu_provider.clouds.base import GroupChange
from airflow_gpu_provider.clouds.google.pool import GPU_TAINT, GkeGpuPool
from airflow_gpu_provider.clouds.google.rules import QUEUED_TAINT
from airflow_gpu_provider.clouds.group_checks import (
    Difference,
    changes_of,
    check_claim,
    check_fixed,
    fixed_differences,
    taint_texts,
)
from airflow_gpu_provider.pools import Candidate
from airflow_gpu_provider.pools.candidates import Market

POOL_LABEL = "airflow-gpu-provider-pool"
SPEC_LABEL = "airflow-gpu-provider-spec"
OWNER_LABEL = "airflow-gpu-provider-owner"
ZONE_LABEL = "airflow-gpu-provider-zone"

_DEFAULT_DISK_GB = 100
_DRIVERS = {
    "default": "DEFAULT",
    "latest": "LATEST",
    "disabled": "INSTALLATION_DISABLED",
    "daemonset": "INSTALLATION_DISABLED",
}
_CACHE = "CONTAINER_IMAGE_CACHE"
_GKE_LABELS = ("cloud.google.com/", "iam.gke.io/")


@dataclass(frozen=True, kw_only=True)
class NodePoolSpec:
    """One node pool, as it should be.

    Attributes:
        min_size: Nodes for an autoscaler to keep.
        has_exclusions: Whether GKE can be set to leave the node pool's version alone: it cannot, and need not, where
            the cluster is in no release channel.
        is_in_channel: Whether the cluster is in a release channel.
    """

    pool: GkeGpuPool
    owner: str
    candidate: Candidate
    min_size: int = 0
    has_exclusions: bool = True
    is_in_channel: bool = True

    @property
    def resource_labels(self) -> dict[str, str]:
        """The user's labels and ours."""
        ours = {POOL_LABEL: self.pool.name, SPEC_LABEL: self.pool.spec_hash, ZONE_LABEL: self.candidate.zone}
        return {**self.pool.resource_labels, **ours, **({OWNER_LABEL: owner_label(self.owner)} if self.owner else {})}

    @property
    def taints(self) -> list[dict[str, str]]:
        """The taints in GKE's spelling, with the one that it adds by itself: an update replaces that one too."""
        return [taint.in_the_cloud for taint in self.pool.parsed_taints]

    def node_pool(self) -> dict[str, Any]:
        """Return the NodePool to create, of its minimum size."""
        return {
            "name": self.candidate.group,
            "initial_node_count": self.min_size,
            "locations": [self.candidate.zone],
            "autoscaling": self._autoscaling(),
            "config": self._config(),
            **({"maintenance_policy": self._maintenance_policy()} if self._is_excluded else {}),
            # GKE takes a flex-start node pool only without auto-repair.
            **({"management": {"auto_upgrade": self.is_in_channel}} if self.pool.flex_start else {}),
            **({"queued_provisioning": {"enabled": True}} if self.pool.queued_provisioning else {}),
            **({"placement_policy": {"type_": self.pool.placement.upper()}} if self.pool.placement else {}),
        }

    @property
    def _is_excluded(self) -> bool:
        return self.pool.exclude_upgrades and self.has_exclusions

    def _maintenance_policy(self) -> dict[str, Any]:
        return {"exclusion_until_end_of_support": {"enabled": self._is_excluded}}

    def _autoscaling(self) -> dict[str, Any]:
        """Return what GKE's autoscaler may do: nothing, where this package sets the size."""
        if not self.pool.is_autoscaled:
            return {"enabled": False}
        return {
            "enabled": True,
            "min_node_count": self.min_size,
            "max_node_count": self.pool.max_nodes,
            "location_policy": self.pool.location_policy.upper(),
        }

    def _config(self) -> dict[str, Any]:
        pool = self.pool
        config = {
            "machine_type": self.candidate.instance_type,
            "accelerators": [self._accelerator()],
            "disk_size_gb": pool.disk.get("size", _DEFAULT_DISK_GB),
            "image_type": pool.image_type,
            "oauth_scopes": ["https://www.googleapis.com/auth/cloud-platform"],
            "labels": pool.labels,
            "taints": [each.in_the_cloud for each in pool.parsed_taints if each not in (GPU_TAINT, QUEUED_TAINT)],
            "resource_labels": self.resource_labels,
            "tags": list(pool.tags),
        }
        optional = {
            "spot": self.candidate.market == "SPOT",
            "disk_type": pool.disk.get("type"),
            "service_account": pool.service_account,
            "max_run_duration": self.pool.node_lifetime,
            "flex_start": pool.flex_start,
            "reservation_affinity": self._reservation_affinity(),
            "shielded_instance_config": pool.shielded_instance_config,
            "gcfs_config": {"enabled": True} if pool.images.get("streaming") else None,
            "secondary_boot_disks": [{"disk_image": each, "mode": _CACHE} for each in self._boot_disks],
        }
        return {**config, **{name: value for name, value in optional.items() if value}}

    @property
    def _boot_disks(self) -> Sequence[str]:
        return self.pool.images.get("secondary_boot_disks", ())

    def _reservation_affinity(self) -> dict[str, Any]:
        if self.pool.flex_start:
            return {"consume_reservation_type": "NO_RESERVATION"}
        affinity = self.pool.reservation_affinity
        return {**affinity, **({"values": list(affinity["values"])} if "values" in affinity else {})}

    def _accelerator(self) -> dict[str, Any]:
        pool = self.pool
        kind, count = pool.accelerator_of(self.candidate.instance_type)
        accelerator: dict[str, Any] = {
            "accelerator_type": kind,
            "accelerator_count": count,
            # Always said: what it is when left out depends on the version of GKE.
            "gpu_driver_installation_config": {"gpu_driver_version": _DRIVERS[pool.driver]},
        }
        if pool.gpu_partition_size:
            accelerator["gpu_partition_size"] = pool.gpu_partition_size
        if pool.gpu_sharing:
            accelerator["gpu_sharing_config"] = {
                "gpu_sharing_strategy": pool.gpu_sharing["strategy"],
                "max_shared_clients_per_gpu": int(pool.gpu_sharing["max_shared_clients"]),
            }
        return accelerator

    def differences(self, found: Mapping[str, Any]) -> list[Difference]:
        """Compare a NodePool with the spec; our own labels on its machines are not compared here.

        Each `update` is a field of UpdateNodePool; of autoscaling, of SetNodePoolAutoscaling.
        """
        config = found.get("config") or {}
        return [*self._fixed_differences(found, config), *self._mutable_differences(found, config)]

    def missing_labels(self, found: Mapping[str, Any]) -> dict[str, str]:
        """Return all labels that the pool should have, if one is missing or differs; an owner that it has stays."""
        labels = labels_of(found)
        wanted = self.resource_labels
        if labels.get(OWNER_LABEL):
            wanted[OWNER_LABEL] = labels[OWNER_LABEL]
        return {**labels, **wanted} if wanted.items() - labels.items() else {}

    def _fixed_differences(self, found: Mapping[str, Any], config: Mapping[str, Any]) -> list[Difference]:
        pool = self.pool
        pairs: list[tuple[str, Any, Any]] = [
            ("machine type", config.get("machine_type"), self.candidate.instance_type),
            ("capacity type", market_of(found), self.candidate.market),
            ("zone", ", ".join(found.get("locations") or ()), self.candidate.zone),
            ("accelerator", accelerator_text(config), accelerator_text({"accelerators": [self._accelerator()]})),
            ("disk size", int(config.get("disk_size_gb") or 0), pool.disk.get("size", _DEFAULT_DISK_GB)),
            ("image_type", str(config.get("image_type")).upper(), pool.image_type.upper()),
        ]
        optional = {"disk_type": pool.disk.get("type"), "service_account": pool.service_account}
        pairs += [(name, config.get(name), wanted) for name, wanted in optional.items() if wanted]
        pairs.append(("flex_start", bool(config.get("flex_start")), pool.flex_start))
        is_queued = bool((found.get("queued_provisioning") or {}).get("enabled"))
        pairs.append(("queued_provisioning", is_queued, pool.queued_provisioning))
        if affinity := self._reservation_affinity():
            found_affinity = config.get("reservation_affinity") or {}
            pairs.append(("reservation_affinity", {key: found_affinity.get(key) for key in affinity}, affinity))
        if shielded := pool.shielded_instance_config:
            found_shielded = config.get("shielded_instance_config") or {}
            is_so = {key: bool(found_shielded.get(key)) for key in shielded}
            pairs.append(("shielded_instance_config", is_so, shielded))
        disks = [str(each.get("disk_image")) for each in config.get("secondary_boot_disks") or ()]
        pairs += [
            ("placement", compactness_of(found), pool.placement or "anywhere"),
            ("secondary_boot_disks", listed(disks), listed(self._boot_disks)),
        ]
        if pool.tags:
            pairs.append(("tags", sorted(config.get("tags") or ()), sorted(pool.tags)))
        return fixed_differences(pairs)

    def _mutable_differences(self, found: Mapping[str, Any], config: Mapping[str, Any]) -> list[Difference]:
        labels, lifetime = config.get("labels") or {}, self.pool.node_lifetime
        wanted_seconds = None if lifetime is None else int(lifetime.total_seconds())
        streams = self.pool.images.get("streaming", False)
        upgrades = {True: "excluded until end of support", False: "GKE's to make"}
        rows: dict[str, tuple[Any, Any, dict[str, Any] | None]] = {
            "labels": (
                {key: value for key, value in labels.items() if not key.startswith(_GKE_LABELS)},
                self.pool.labels,
                {"labels": {"labels": self.pool.labels}},
            ),
            "taints": (
                taint_texts(config.get("taints") or ()),
                taint_texts(self.taints),
                {"taints": {"taints": self.taints}},
            ),
            "max_run_duration": (
                seconds_text(run_seconds(config)),
                seconds_text(wanted_seconds),
                {"max_run_duration": lifetime} if wanted_seconds else None,
            ),
            "image streaming": (
                bool((config.get("gcfs_config") or {}).get("enabled")),
                streams,
                {"gcfs_config": {"enabled": streams}},
            ),
            # An autoscaler that is not wanted would remove nodes by its own lights.
            "autoscaling": (
                autoscaling_text(found.get("autoscaling") or {}),
                autoscaling_text(self._autoscaling()),
                {"autoscaling": self._autoscaling()},
            ),
        }
        if self.has_exclusions:
            update = {"maintenance_policy": self._maintenance_policy()}
            rows["upgrades"] = upgrades[is_excluded_from_upgrades(found)], upgrades[self._is_excluded], update
        return [
            Difference(
                field=field,
                found=str(is_so),
                wanted=str(wanted),
                update=update,
                replaces_nodes=field in ("max_run_duration", "image streaming"),
            )
            for field, (is_so, wanted, update) in rows.items()
            if is_so != wanted
        ]


def owner_label(owner: str) -> str:
    """Return a label value that says who an owner is: what of its text fits, and a hash."""
    digest = hashlib.sha256(owner.encode()).hexdigest()[:8]
    text = re.sub(r"[^a-z0-9_-]+", "_", owner.lower())[:54].strip("_-")
    return f"{text}-{digest}"


def labels_of(node_pool: Mapping[str, Any]) -> dict[str, str]:
    """Return the resource labels of a node pool's machines, which say whose it is."""
    return dict((node_pool.get("config") or {}).get("resource_labels") or {})


def market_of(node_pool: Mapping[str, Any]) -> Market:
    config = node_pool.get("config") or {}
    return "SPOT" if config.get("spot") or config.get("preemptible") else "ON_DEMAND"


def is_excluded_from_upgrades(node_pool: Mapping[str, Any]) -> bool:
    """Return True where GKE leaves the version of the node pool alone."""
    policy = node_pool.get("maintenance_policy") or {}
    return bool((policy.get("exclusion_until_end_of_support") or {}).get("enabled"))


def run_seconds(config: Mapping[str, Any]) -> int | None:
    """Return a node config's max_run_duration in seconds, or None where it has none."""
    text = config.get("max_run_duration")
    return int(float(str(text).rstrip("s"))) or None if text else None


# -- settings as texts, by which they are compared and told -----------------------------------------------------


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


def compactness_of(found: Mapping[str, Any]) -> str:
    """Return where a node pool's machines stand: "compact" or "anywhere"."""
    kind = (found.get("placement_policy") or {}).get("type_") or "TYPE_UNSPECIFIED"
    return "anywhere" if kind == "TYPE_UNSPECIFIED" else str(kind).lower()


def listed(names: Iterable[str]) -> str:
    """Return disk images in one order, without Compute Engine's address."""
    return ", ".join(sorted(name.removeprefix("https://www.googleapis.com/compute/v1/") for name in names)) or "none"


def autoscaling_text(autoscaling: Mapping[str, Any]) -> str:
    """Return what GKE's autoscaler may do with a node pool."""
    if not autoscaling.get("enabled"):
        return "off"
    least, most = (int(autoscaling.get(f"{end}_node_count") or 0) for end in ("min", "max"))
    return f"{least} to {most}, {str(autoscaling.get('location_policy') or 'BALANCED').lower()}"


def seconds_text(seconds: int | None) -> str:
    """Return a limit of a machine's life."""
    return "none" if seconds is None else f"{seconds} s"


# -- what would change in a pool's node pools, and when that is refused -------------------------------------------

FAILED = ("ERROR",)
GONE_SOON = ("STOPPING",)


def changes(
    specs: Iterable[NodePoolSpec], found: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int]
) -> tuple[GroupChange, ...]:
    """Compare the specs with the node pools that exist, by name; `sizes` are their machines.

    Raises:
        PoolDrift: A node pool is not ours, is another writer's with another spec, or differs where it cannot be
            changed.
    """
    return changes_of(specs, lambda spec: _change(spec, found.get(spec.candidate.group), sizes))


def issues(node_pool: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what GKE says is wrong with a node pool."""
    conditions = [str(c.get("message") or c.get("code")) for c in node_pool.get("conditions") or ()]
    return tuple(conditions) or tuple(filter(None, [str(node_pool.get("status_message") or "")]))


def possible_now(differences: Iterable[Difference], size: int) -> list[Difference]:
    """Return those that can be corrected now: what replaces nodes waits until there is none."""
    return [each for each in differences if each.update and not (each.replaces_nodes and size)]


def _change(spec: NodePoolSpec, found: Mapping[str, Any] | None, sizes: Mapping[str, int]) -> GroupChange | None:
    name = spec.candidate.group
    if found is None:
        kind, count = spec.pool.accelerator_of(spec.candidate.instance_type)
        detail = f"{spec.candidate}, {count} x {kind}, at most {spec.pool.max_nodes}, created empty"
        return GroupChange(action="create", group=name, detail=detail)
    labels = labels_of(found)
    owner = labels.get(OWNER_LABEL)
    check_claim(
        spec,
        found,
        cluster=spec.pool.cluster_name,
        what="node pool",
        made_for=labels.get(POOL_LABEL),
        owner=owner,
        is_ours=owner == owner_label(spec.owner) or labels.get(SPEC_LABEL) == spec.pool.spec_hash,
        mark=f"the resource label {OWNER_LABEL}",
    )
    if found.get("status") in GONE_SOON:
        return GroupChange(action="create", group=name, detail="is being deleted; recreated once it is gone")
    if found.get("status") in FAILED and not sizes.get(name):
        why = "; ".join(issues(found)) or "no reason given"
        return GroupChange(
            action="update", group=name, detail=f"GKE could not create it ({why}): deleted and recreated"
        )
    return _repair(spec, found, sizes.get(name, 0))


def _repair(spec: NodePoolSpec, found: Mapping[str, Any], size: int) -> GroupChange | None:
    differences = spec.differences(found)
    pool, name = spec.pool, spec.candidate.group
    differs = f"Node pool {name} differs where it cannot be changed in place"
    delete = f"gcloud container node-pools delete {name} --cluster {pool.cluster_name} --location {pool.location}"
    check_fixed(spec, differences, differs=differs, what="node pool", command=delete)
    now = possible_now(differences, size)
    details = [str(difference) for difference in now]
    if len(now) == len(differences) and spec.missing_labels(found):
        details.append("labels of its machines")
    return GroupChange(action="update", group=name, detail="; ".join(details)) if details else None

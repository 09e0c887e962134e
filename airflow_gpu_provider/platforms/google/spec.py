"""What a pool's node pools should look like: GKE's NodePool, and how one that exists differs. Pure data.

Node pools are dictionaries in the words of google-cloud-container, enums by name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_gpu_provider.pools import Candidate, GkeGpuPool
from airflow_gpu_provider.pools.gke import GPU_TAINT
from airflow_gpu_provider.pools.taints import CLOUD_EFFECTS

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
_GKE_LABELS = ("cloud.google.com/", "iam.gke.io/")
_OAUTH_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One field in which a node pool is not as its pool says.

    `update` is the field of UpdateNodePool (autoscaling: of SetNodePoolAutoscaling) that corrects it, None where GKE
    cannot; `replaces_nodes` says that GKE makes
    the nodes anew for it, so that it has to wait until there is none.
    """

    field: str
    found: str
    wanted: str
    update: Mapping[str, Any] | None = None
    replaces_nodes: bool = False

    def __str__(self) -> str:
        return f"{self.field} is {self.found}, wanted {self.wanted}"


@dataclass(frozen=True, kw_only=True)
class NodePoolSpec:
    """One node pool, as it should be.

    Attributes:
        min_size: Nodes for an autoscaler to keep.
        has_exclusions: Whether GKE can be told to leave the node pool's version alone: it cannot, and need not, where
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
        return {**self.pool.resource_labels, **ours, **({OWNER_LABEL: self.owner_label} if self.owner else {})}

    @property
    def owner_label(self) -> str:
        """The owner as a label's value may be: readable, and with a hash of the whole."""
        return owner_label(self.owner)

    @property
    def taints(self) -> list[dict[str, str]]:
        """The taints in GKE's spelling, without the one that it adds by itself."""
        return [
            {"key": t.key, "value": t.value, "effect": CLOUD_EFFECTS[t.effect]}
            for t in self.pool.parsed_taints
            if t != GPU_TAINT
        ]

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
        config: dict[str, Any] = {
            "machine_type": self.candidate.instance_type,
            "accelerators": [self._accelerator()],
            "disk_size_gb": pool.disk_size or _DEFAULT_DISK_GB,
            "image_type": pool.image_type,
            "oauth_scopes": list(_OAUTH_SCOPES),
            "labels": pool.labels,
            "taints": self.taints,
            "resource_labels": self.resource_labels,
            "tags": list(pool.tags),
        }
        if self.candidate.market == "SPOT":
            config["spot"] = True
        if self.candidate.market == "PREEMPTIBLE":
            config["preemptible"] = True
        if pool.disk_type:
            config["disk_type"] = pool.disk_type
        if pool.service_account:
            config["service_account"] = pool.service_account
        if pool.node_lifetime:
            config["max_run_duration"] = pool.node_lifetime
        if pool.flex_start:
            config["flex_start"] = True
        if affinity := self._reservation_affinity():
            config["reservation_affinity"] = affinity
        if pool.shielded_instance_config:
            config["shielded_instance_config"] = pool.shielded_instance_config
        return config

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

    def _run_seconds(self) -> int | None:
        lifetime = self.pool.node_lifetime
        return None if lifetime is None else int(lifetime.total_seconds())

    def differences(self, found: Mapping[str, Any]) -> list[Difference]:
        """Compare a NodePool with the spec; our own labels on its machines are not compared here."""
        config = found.get("config") or {}
        return [
            *self._fixed_differences(found, config),
            *self._mutable_differences(config),
            *self._autoscaling_difference(found),
            *self._upgrades_difference(found),
        ]

    def _upgrades_difference(self, found: Mapping[str, Any]) -> list[Difference]:
        is_so = is_excluded_from_upgrades(found)
        if is_so == self._is_excluded or not self.has_exclusions:
            return []
        update = {"maintenance_policy": self._maintenance_policy()}
        texts = {True: "excluded until end of support", False: "GKE's to make"}
        return [Difference(field="upgrades", found=texts[is_so], wanted=texts[self._is_excluded], update=update)]

    def _autoscaling_difference(self, found: Mapping[str, Any]) -> list[Difference]:
        """Compare what GKE's autoscaler may do; one that is not wanted would remove nodes by its own lights."""
        is_so, wanted = _autoscaling_text(found.get("autoscaling") or {}), _autoscaling_text(self._autoscaling())
        if is_so == wanted:
            return []
        update = {"autoscaling": self._autoscaling()}
        return [Difference(field="autoscaling", found=is_so, wanted=wanted, update=update)]

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
            ("accelerator", _accelerator_text(config), _accelerator_text({"accelerators": [self._accelerator()]})),
            ("disk_size", int(config.get("disk_size_gb") or 0), pool.disk_size or _DEFAULT_DISK_GB),
            ("image_type", str(config.get("image_type")).upper(), pool.image_type.upper()),
        ]
        optional = {"disk_type": pool.disk_type, "service_account": pool.service_account}
        pairs += [(name, config.get(name), wanted) for name, wanted in optional.items() if wanted]
        pairs.append(("flex_start", bool(config.get("flex_start")), pool.flex_start))
        if affinity := self._reservation_affinity():
            found_affinity = config.get("reservation_affinity") or {}
            pairs.append(("reservation_affinity", {key: found_affinity.get(key) for key in affinity}, affinity))
        if shielded := pool.shielded_instance_config:
            found_shielded = config.get("shielded_instance_config") or {}
            is_so = {key: bool(found_shielded.get(key)) for key in shielded}
            pairs.append(("shielded_instance_config", is_so, shielded))
        if pool.tags:
            pairs.append(("tags", sorted(config.get("tags") or ()), sorted(pool.tags)))
        return [
            Difference(field=field, found=str(found), wanted=str(wanted))
            for field, found, wanted in pairs
            if found != wanted
        ]

    def _mutable_differences(self, config: Mapping[str, Any]) -> list[Difference]:
        labels, wanted_labels = _own_labels(config.get("labels") or {}), self.pool.labels
        taints, wanted_taints = _taint_texts(config.get("taints") or ()), _taint_texts(self.taints)
        seconds, wanted_seconds = run_seconds(config), self._run_seconds()
        found = []
        if labels != wanted_labels:
            change: dict[str, Any] = {"labels": {"labels": wanted_labels}}
            found.append(Difference(field="labels", found=str(labels), wanted=str(wanted_labels), update=change))
        if taints != wanted_taints:
            change = {"taints": {"taints": self.taints}}
            found.append(Difference(field="taints", found=str(taints), wanted=str(wanted_taints), update=change))
        if seconds != wanted_seconds:
            found.append(
                Difference(
                    field="max_run_duration",
                    found=_seconds_text(seconds),
                    wanted=_seconds_text(wanted_seconds),
                    update={"max_run_duration": self.pool.node_lifetime} if wanted_seconds else None,
                    replaces_nodes=True,
                )
            )
        return found


def owner_label(owner: str) -> str:
    """Return a label value that says who an owner is: what of its text fits, and a hash."""
    digest = hashlib.sha256(owner.encode()).hexdigest()[:8]
    text = re.sub(r"[^a-z0-9_-]+", "_", owner.lower())[:54].strip("_-")
    return f"{text}-{digest}"


def labels_of(node_pool: Mapping[str, Any]) -> dict[str, str]:
    """Return the resource labels of a node pool's machines, which say whose it is."""
    return dict((node_pool.get("config") or {}).get("resource_labels") or {})


def market_of(node_pool: Mapping[str, Any]) -> str:
    """Return the capacity type of a node pool."""
    config = node_pool.get("config") or {}
    if config.get("spot"):
        return "SPOT"
    return "PREEMPTIBLE" if config.get("preemptible") else "ON_DEMAND"


def is_excluded_from_upgrades(node_pool: Mapping[str, Any]) -> bool:
    """Return True where GKE leaves the version of the node pool alone."""
    policy = node_pool.get("maintenance_policy") or {}
    return bool((policy.get("exclusion_until_end_of_support") or {}).get("enabled"))


def run_seconds(config: Mapping[str, Any]) -> int | None:
    """Return a node config's max_run_duration in seconds, or None where it has none."""
    text = config.get("max_run_duration")
    return int(float(str(text).rstrip("s"))) or None if text else None


def _accelerator_text(config: Mapping[str, Any]) -> str:
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


def _autoscaling_text(autoscaling: Mapping[str, Any]) -> str:
    if not autoscaling.get("enabled"):
        return "off"
    least, most = (int(autoscaling.get(f"{end}_node_count") or 0) for end in ("min", "max"))
    return f"{least} to {most}, {str(autoscaling.get('location_policy') or 'BALANCED').lower()}"


def _own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels without those that GKE adds by itself."""
    return {key: value for key, value in labels.items() if not key.startswith(_GKE_LABELS)}


def _taint_texts(taints: Any) -> list[str]:
    """Return the taints as texts, without those that GKE adds by itself."""
    texts = (f"{t['key']}={t.get('value', '')}:{t['effect']}" for t in taints)
    return sorted(text for text in texts if text != f"{GPU_TAINT.key}={GPU_TAINT.value}:NO_SCHEDULE")


def _seconds_text(seconds: int | None) -> str:
    return "none" if seconds is None else f"{seconds} s"

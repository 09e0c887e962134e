"""ExternalGkePlatform: node pools on GKE that Terraform or people own, and a pool names; only their sizes are set.

Each instance group is a group of its own, so that a node pool over several zones is filled, and left, zone by zone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from airflow_gpu_provider.clouds.backoff import growth_notes
from airflow_gpu_provider.clouds.base import Group, Plan, Report
from airflow_gpu_provider.clouds.google import machine_types
from airflow_gpu_provider.clouds.google.cluster import GkeGroup
from airflow_gpu_provider.clouds.google.instance_groups import zone_of
from airflow_gpu_provider.clouds.google.node_pools import group_paths
from airflow_gpu_provider.clouds.google.platform import GkePlatform
from airflow_gpu_provider.clouds.google.pool import GkeGpuPool
from airflow_gpu_provider.clouds.google.spec import (
    POOL_LABEL,
    is_excluded_from_upgrades,
    issues,
    labels_of,
    market_of,
    run_seconds,
)
from airflow_gpu_provider.clouds.group_checks import NamedGroup, candidates_with_room, check_named
from airflow_gpu_provider.errors import AutoscalingDisabled, GroupNotFound
from airflow_gpu_provider.pools import Candidate
from airflow_gpu_provider.pools.values import taints_from_cloud


class ExternalGkePlatform(GkePlatform):
    """A pool of node pools that it names: `manage="scale"`.

    Args:
        pool: The rendered spec.
        owner: Not used: external node pools carry no spec of ours.
    """

    def __init__(self, pool: GkeGpuPool, owner: str = "") -> None:
        super().__init__(pool)

    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(each.candidate for each in self._read())

    # -- plan and apply --------------------------------------------------------------------------------------

    def _plan(self, nodes: int, left_out: Collection[str] = ()) -> Plan:
        """Say what would grow; the node pools themselves are never changed.

        Raises:
            GroupNotFound: A node pool that the pool names does not exist.
            PoolDrift, PoolSpecError: A node pool cannot serve the pool as it is.
            AutoscalingDisabled: GKE's autoscaler is to add nodes, and it leaves a node pool alone.
        """
        found = self._gke.node_pools.read()
        missing = [name for name in self._pool.node_pools if name not in found]
        if missing:
            raise GroupNotFound(
                f"Pool {self._pool.name}: cluster {self._pool.cluster_name} has no node pool {', '.join(missing)}; it"
                f" has {', '.join(sorted(found)) or 'none'}.",
                "Correct node_pools, or create it where it is defined: this package creates none of them.",
                groups=missing,
            )
        named = self._named(found)
        read = [self._describe(each) for each in named]
        notes = check_named(self._pool, nodes, read, known_types=self._pool.machine_types)
        self._check_autoscaled([found[name] for name in self._pool.node_pools])
        groups = self._observe(named)
        affordable = candidates_with_room([group for group in groups if group.name not in left_out])
        grow = growth_notes(self._pool, nodes, affordable, groups, datetime.now(UTC))
        return Plan(pool=self._pool.name, grow=grow, notes=notes, groups=groups)

    def apply(self, plan: Plan, report: Report, over_quota: Collection[str] = ()) -> None:
        """Do nothing: others own the node pools."""

    def delete(self, report: Report) -> None:
        """Delete nothing: others own the node pools."""
        for name in self._pool.node_pools:
            report(f"{name} is left as it is: this package did not create it")

    def _check_autoscaled(self, node_pools: Sequence[Mapping[str, Any]]) -> None:
        fixed = [str(raw["name"]) for raw in node_pools if not _is_autoscaled(raw)]
        if not self._pool.is_autoscaled or not fixed:
            return
        pool = self._pool
        update = f"gcloud container clusters update {pool.cluster_name} --enable-autoscaling"
        limits = f"--min-nodes=0 --max-nodes={pool.max_nodes} --location={pool.location} --project={pool.project_id}"
        commands = [f"{update} --node-pool={name} {limits}" for name in fixed]
        raise AutoscalingDisabled(
            f"Pool {pool.name}: GKE's autoscaler is to add nodes, and autoscaling is off in node pool"
            f" {', '.join(fixed)}, which this package does not change.",
            f"Turn it on where the node pool is defined, or run: {' && '.join(commands)}",
            groups=fixed,
        )

    def _describe(self, found: GkeGroup) -> NamedGroup:
        raw, candidate = found.node_pool, found.candidate
        config = raw.get("config") or {}
        types = (candidate.instance_type,)
        return NamedGroup(
            name=candidate.group,
            candidate=candidate,
            types=types,
            types_without_gpus=() if _has_gpus(config, candidate.instance_type) else types,
            taints=tuple(taints_from_cloud(config.get("taints") or ())),
            max_size=_max_size(raw, self._pool),
            made_for=labels_of(raw).get(POOL_LABEL, ""),
            warnings=tuple(_warnings(raw, self._pool)),
        )

    # -- what there is ---------------------------------------------------------------------------------------

    def observe(self) -> tuple[Group, ...]:
        return self._observe(self._read())

    def _read(self) -> list[GkeGroup]:
        return self._named(self._gke.node_pools.read())

    def _named(self, found: Mapping[str, Mapping[str, Any]]) -> list[GkeGroup]:
        """Return the groups of the node pools that exist, in the spec's order, zone by zone."""
        return [group for name in self._pool.node_pools if name in found for group in _by_zone(found[name])]

    def _observe(self, named: Sequence[GkeGroup]) -> tuple[Group, ...]:
        return tuple(
            replace(group, max_size=_max_size(each.node_pool, self._pool), owned=False)
            for each, group in zip(named, self._gke.observe(named), strict=True)
        )

    def _paths_of(self, group: str) -> list[str]:
        for each in self._read():
            if each.candidate.group == group:
                return list(each.paths)
        raise GroupNotFound(
            f"Node pool {group} does not exist, or has no instance group yet.",
            "Create it where it is defined: this package creates none of them.",
            group=group,
        )


def _by_zone(node_pool: Mapping[str, Any]) -> list[GkeGroup]:
    """Return a node pool's groups, one for each zone; two instance groups are behind it during a blue-green upgrade.

    A group has the node pool's name, with the zone where it has several. The side that stays comes first.
    """
    paths, name = group_paths(node_pool), str(node_pool["name"])
    zones = sorted(set(map(_zone_name, paths)))
    machine_type = str((node_pool.get("config") or {}).get("machine_type", ""))
    return [
        GkeGroup(
            candidate=Candidate(
                group=name if len(zones) == 1 else f"{name}/{zone}",
                zone=zone,
                instance_type=machine_type,
                market=market_of(node_pool),
            ),
            node_pool=node_pool,
            paths=[path for path in paths if _zone_name(path) == zone],
        )
        for zone in zones
    ]


def _max_size(node_pool: Mapping[str, Any], pool: GkeGpuPool) -> int:
    """Return the node pool's own limit in a zone, where its autoscaler has one, else the pool's."""
    autoscaling = node_pool.get("autoscaling") or {}
    limit = int(autoscaling.get("max_node_count") or autoscaling.get("total_max_node_count") or 0)
    return limit if _is_autoscaled(node_pool) and limit else pool.max_nodes


def _zone_name(path: str) -> str:
    return zone_of(path).rpartition("/")[2]


def _is_autoscaled(node_pool: Mapping[str, Any]) -> bool:
    return bool((node_pool.get("autoscaling") or {}).get("enabled"))


def _has_gpus(config: Mapping[str, Any], machine_type: str) -> bool:
    known = machine_types.gce_machine_type(machine_type)
    return bool(config.get("accelerators") or (known and known.gpu))


def _warnings(node_pool: Mapping[str, Any], pool: GkeGpuPool) -> Iterable[str]:
    if _is_autoscaled(node_pool) and not pool.is_autoscaled:
        yield "GKE's autoscaler also scales it, and removes nodes ten minutes after their last pod"
    if (node_pool.get("queued_provisioning") or {}).get("enabled"):
        yield "its nodes come only by ProvisioningRequests, which Kueue makes: give each task queue_name="
    if run_seconds(node_pool.get("config") or {}) is None:
        yield "its machines have no max_run_duration, so nothing ends them if Airflow is gone for good"
    if (node_pool.get("management") or {}).get("auto_upgrade") and not is_excluded_from_upgrades(node_pool):
        yield (
            "GKE auto-upgrades its nodes, and drains trainings: exclude it until the end of support"
            " (maintenance_policy), or set a maintenance window outside of the nights"
        )
    if node_pool.get("status") not in ("RUNNING", "RECONCILING"):
        why = "; ".join(issues(node_pool))
        yield f"it is {node_pool.get('status')}" + (f" ({why})" if why else "")

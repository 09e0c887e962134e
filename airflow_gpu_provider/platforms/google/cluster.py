"""GkeCluster: a pool's GKE cluster, its clients, and what the instance groups behind its node pools have and do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.cluster.threads import in_parallel
from airflow_gpu_provider.errors import PermissionDenied
from airflow_gpu_provider.platforms.backoff import LONGEST
from airflow_gpu_provider.platforms.base import Group, GroupStatus, Machine
from airflow_gpu_provider.platforms.google import lives as gke_lives
from airflow_gpu_provider.platforms.google.clients import GoogleClients
from airflow_gpu_provider.platforms.google.endpoints import address_of
from airflow_gpu_provider.platforms.google.instance_groups import InstanceGroups, zone_of
from airflow_gpu_provider.platforms.google.instances import InstanceGroup, failures, launch_failure, machines
from airflow_gpu_provider.platforms.google.node_pools import NodePools
from airflow_gpu_provider.platforms.google.operations import Operations
from airflow_gpu_provider.platforms.google.plan import issues
from airflow_gpu_provider.pools import Candidate, GkeGpuPool

_STATUS: dict[str, GroupStatus] = {
    "PROVISIONING": "creating",
    "RUNNING": "active",
    "RUNNING_WITH_ERROR": "degraded",
    "RECONCILING": "updating",
    "STOPPING": "deleting",
    "ERROR": "failed",
}
"""What GKE's word for a node pool's state means for the pool."""

_DELETED_WITHIN = timedelta(minutes=15)
"""How long an instance counts against a quota after its deletion was asked for, at most."""


@dataclass(frozen=True, kw_only=True)
class GkeGroup:
    """One group of a pool: where its machines come from, its NodePool, and the instance groups behind it."""

    candidate: Candidate
    node_pool: Mapping[str, Any]
    paths: Sequence[str]


class GkeCluster:
    """The cluster of one pool. Nothing is cached but clients and what cannot change.

    Args:
        pool: The rendered spec.
    """

    def __init__(self, pool: GkeGpuPool) -> None:
        self.pool = pool
        self.clients = GoogleClients(conn_id=pool.gcp_conn_id, impersonation_chain=pool.impersonation_chain)

    @property
    def access(self) -> ClusterAccess:
        """How to reach the API server, with tokens that are renewed in-process."""
        token = _TokenSource(self.clients)
        server = f"https://{address_of(self.description, self.pool)}"
        if self.pool.use_dns_endpoint:
            return ClusterAccess(server=server, token=token)
        ca_data = self.description["master_auth"]["cluster_ca_certificate"]
        return ClusterAccess(server=server, ca_data=ca_data, token=token)

    @cached_property
    def description(self) -> Mapping[str, Any]:
        """GKE's Cluster."""
        return self.node_pools.cluster()

    @cached_property
    def node_pools(self) -> NodePools:
        """Calls about its node pools."""
        return NodePools(self.clients.gke, self.pool)

    @cached_property
    def operations(self) -> Operations:
        """GKE's operations."""
        return Operations(self.clients.gke, self.node_pools.location)

    @cached_property
    def groups(self) -> InstanceGroups:
        """Calls about managed instance groups."""
        return InstanceGroups(self.clients.compute)

    def observe(self, found: Sequence[GkeGroup]) -> tuple[Group, ...]:
        """Return what Google Cloud says of groups; what is told only where it matters, too."""
        flat = [path for each in found for path in each.paths]
        read = dict(zip(flat, self.groups.read(flat), strict=True))
        behind = {each.candidate.group: [read[path] for path in each.paths] for each in found}
        groups = [self._group(each, behind[each.candidate.group]) for each in found]
        return self._with_updates(self._with_ends(groups, behind))

    def _group(self, found: GkeGroup, behind: Sequence[InstanceGroup]) -> Group:
        now = datetime.now(UTC)
        name = found.candidate.group
        return Group(
            name=name,
            candidate=found.candidate,
            status=_STATUS.get(found.node_pool.get("status", ""), "degraded"),
            desired=sum(each.target for each in behind),
            max_size=self.pool.max_nodes,
            machines=machines(name, behind),
            has_switch=False,
            launch_failure=launch_failure(behind, now),
            failures=failures(behind, now),
            launching=any(each.launching for each in behind),
            issues=issues(found.node_pool),
        )

    def _with_updates(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """Return the groups, those that GKE updates with the operation that does, where the account may list them."""
        if not any(group.status == "updating" and group.machines for group in groups):
            return tuple(groups)
        try:
            under_way = self.operations.under_way(self.pool.cluster_name)
        except PermissionDenied:
            return tuple(groups)

        def told(group: Group) -> Group:
            node_pool = group.name.partition("/")[0]
            return replace(group, update=under_way.get(node_pool, under_way.get("")))

        return tuple(told(group) if group.status == "updating" else group for group in groups)

    def _with_ends(self, groups: Sequence[Group], behind: Mapping[str, Sequence[InstanceGroup]]) -> tuple[Group, ...]:
        """Return the groups with when a machine of each last ended, and what is ending, where a launch met a quota.

        Nothing is read, nor told, where none has; nor where the account may not list operations.

        Args:
            groups: The pool's groups.
            behind: The instance groups of each, by its name.
        """
        now = datetime.now(UTC)
        newest = (group.launch_failure for group in groups if group.launch_failure)
        met = [each.at for each in newest if each.kind == "quota" and now - each.at < LONGEST]
        if not met:
            return tuple(groups)
        zones = sorted({zone_of(one.path) for group in groups for one in behind[group.name]})
        try:
            read = in_parallel(lambda zone: self.groups.operations_since(zone, min(met) - _DELETED_WITHIN), zones)
        except PermissionDenied:
            return tuple(groups)
        operations = dict(zip(zones, read, strict=True))

        def told(group: Group) -> Group:
            pairs = [(one, operations[zone_of(one.path)]) for one in behind[group.name]]
            ends = filter(None, (gke_lives.last_end(*pair) for pair in pairs))
            listed = {machine.id for machine in group.machines}
            ending = (
                Machine(id=name, group=group.name, state="terminating")
                for name in dict.fromkeys(name for pair in pairs for name in gke_lives.ending(*pair))
                if name not in listed
            )
            return replace(group, last_end=max(ends, default=None), machines=(*group.machines, *ending))

        return tuple(map(told, groups))


class _TokenSource:
    """Tokens for one ClusterAccess, which asks when the last one is ten minutes old, or was refused."""

    def __init__(self, clients: GoogleClients) -> None:
        self._clients = clients
        self._last = ""

    def __call__(self) -> str:
        self._last = self._clients.access_token(refused=self._last)
        return self._last

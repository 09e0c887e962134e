"""GkeCluster: a pool's GKE cluster, its clients, and what the instance groups behind its node pools have and do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from airflow_gpu_provider.clouds.backoff import LONGEST
from airflow_gpu_provider.clouds.base import Group, GroupStatus, Machine
from airflow_gpu_provider.clouds.google.clients import GoogleClients
from airflow_gpu_provider.clouds.google.instance_groups import (
    InstanceGroup,
    InstanceGroups,
    ending,
    failures,
    last_end,
    launch_failure,
    machines,
    zone_of,
)
from airflow_gpu_provider.clouds.google.machine_losses import MachineLosses
from airflow_gpu_provider.clouds.google.node_pools import NodePools, Operations
from airflow_gpu_provider.clouds.google.pool import GkeGpuPool
from airflow_gpu_provider.clouds.google.spec import issues
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.threads import in_parallel
from airflow_gpu_provider.errors import ClusterUnreachable, PermissionDenied, PoolSpecError
from airflow_gpu_provider.pools import Candidate

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
    """The cluster of one pool. Nothing is cached but clients and what cannot change."""

    def __init__(self, pool: GkeGpuPool) -> None:
        self.pool = pool
        self.clients = GoogleClients(conn_id=pool.gcp_conn_id, impersonation_chain=pool.impersonation_chain)

    @property
    def access(self) -> ClusterAccess:
        """How to reach the API server, with tokens that are renewed in-process."""

        def again() -> ClusterAccess:
            self.clients.read_connection_again()
            return access

        # Certificates of a DNS endpoint are vouched for by public authorities.
        ca_data = "" if self.pool.endpoint == "dns" else self.description["master_auth"]["cluster_ca_certificate"]
        server = f"https://{address_of(self.description, self.pool)}"
        access = ClusterAccess(server=server, ca_data=ca_data, token=_tokens(self.clients), again=again)
        return access

    @cached_property
    def description(self) -> Mapping[str, Any]:
        """GKE's Cluster."""
        return self.node_pools.cluster()

    @cached_property
    def node_pools(self) -> NodePools:
        return NodePools(self.clients.gke, self.pool)

    @cached_property
    def operations(self) -> Operations:
        return Operations(self.clients.gke, self.node_pools.location, self.pool.cluster_name)

    @cached_property
    def groups(self) -> InstanceGroups:
        return InstanceGroups(self.clients.compute)

    @cached_property
    def _losses(self) -> MachineLosses:
        return MachineLosses(self.groups)

    def observe(self, found: Sequence[GkeGroup]) -> tuple[Group, ...]:
        """Return the state of groups by Google Cloud, with what is read only where it matters."""
        flat = [path for each in found for path in each.paths]
        read = dict(zip(flat, self.groups.read(flat), strict=True))
        behind = {each.candidate.group: [read[path] for path in each.paths] for each in found}
        groups = [self._group(each, behind[each.candidate.group]) for each in found]
        return self._with_updates(self._losses.on(self._with_ends(groups, behind), behind))

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
            under_way = self.operations.under_way()
        except PermissionDenied:
            return tuple(groups)

        def with_update(group: Group) -> Group:
            node_pool = group.name.partition("/")[0]
            return replace(group, update=under_way.get(node_pool, under_way.get("")))

        return tuple(with_update(group) if group.status == "updating" else group for group in groups)

    def _with_ends(self, groups: Sequence[Group], behind: Mapping[str, Sequence[InstanceGroup]]) -> tuple[Group, ...]:
        """Return the groups with when a machine of each last ended, and what is ending, where a launch met a quota.

        Nothing is read where none has; nor where the account may not list operations.
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

        def with_ends(group: Group) -> Group:
            pairs = [(one, operations[zone_of(one.path)]) for one in behind[group.name]]
            ends = filter(None, (last_end(*pair) for pair in pairs))
            listed = {machine.id for machine in group.machines}
            going = (
                Machine(id=name, group=group.name, state="terminating")
                for name in dict.fromkeys(name for pair in pairs for name in ending(*pair))
                if name not in listed
            )
            return replace(group, last_end=max(ends, default=None), machines=(*group.machines, *going))

        return tuple(map(with_ends, groups))


def _tokens(clients: GoogleClients) -> Callable[[], str]:
    """Return tokens for one ClusterAccess, which asks when the last one is ten minutes old, or was refused."""
    last = ""

    def token() -> str:
        nonlocal last
        last = clients.access_token(refused=last)
        return last

    return token


def address_of(cluster: Mapping[str, Any], pool: GkeGpuPool) -> str:
    """Return the host of the API server that the pool's spec asks for, of container_v1's Cluster as a dictionary.

    `ip_endpoints_config` comes before the fields that it replaces, `endpoint` and `private_cluster_config`.

    Raises:
        ClusterUnreachable: The cluster is still being created.
        PoolSpecError: It has no endpoint of that kind, or one that does not allow external traffic.
    """
    config = cluster.get("control_plane_endpoints_config") or {}
    dns, ip = config.get("dns_endpoint_config") or {}, config.get("ip_endpoints_config") or {}
    if pool.endpoint == "dns":
        return _dns_endpoint(dns, cluster, pool)
    if ip.get("enabled") is False:
        raise PoolSpecError(
            f"Pool {pool.name}: the IP endpoints of the GKE cluster {pool.cluster_name} are switched off.",
            'Set endpoint="dns", or switch them on (gcloud container clusters update --enable-ip-access).',
        )
    if pool.endpoint == "internal":
        private = ip.get("private_endpoint") or (cluster.get("private_cluster_config") or {}).get("private_endpoint")
        return str(private) if private else _missing("private endpoint", "Leave endpoint out.", cluster, pool)
    public = ip.get("public_endpoint") if ip.get("enable_public_endpoint") else ""
    # Of a cluster without a public endpoint, `endpoint` is the private one.
    endpoint = public or cluster.get("endpoint") or ip.get("private_endpoint")
    return str(endpoint) if endpoint else _missing("IP endpoint", 'Set endpoint="dns".', cluster, pool)


def _dns_endpoint(dns: Mapping[str, Any], cluster: Mapping[str, Any], pool: GkeGpuPool) -> str:
    enable = "gcloud container clusters update --enable-dns-access"
    if not dns.get("endpoint"):
        return _missing("DNS endpoint", f"Leave endpoint out, or enable one ({enable}).", cluster, pool)
    if not dns.get("allow_external_traffic"):
        raise PoolSpecError(
            f"Pool {pool.name}: the DNS endpoint of GKE cluster {pool.cluster_name} does not allow external traffic.",
            f"Allow it ({enable}), or leave endpoint out.",
        )
    return str(dns["endpoint"])


def _missing(what: str, fix: str, cluster: Mapping[str, Any], pool: GkeGpuPool) -> str:
    if cluster.get("status") == "PROVISIONING":
        raise ClusterUnreachable(
            f"The GKE cluster {pool.cluster_name} has no endpoint: it is PROVISIONING.", "Wait until it is RUNNING."
        )
    raise PoolSpecError(f"Pool {pool.name}: the GKE cluster {pool.cluster_name} has no {what}.", fix)

"""GkeBase: what pools on GKE share, with own or external node pools: the cluster, quotas, sizes, single machines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.cluster.threads import all_in_parallel, in_parallel
from airflow_gpu_provider.errors import CloudError, PermissionDenied
from airflow_gpu_provider.platforms.backoff import LONGEST
from airflow_gpu_provider.platforms.base import Group, GroupStatus, Machine, MachineLife, Platform, Refusals, Say
from airflow_gpu_provider.platforms.google import lives as gke_lives
from airflow_gpu_provider.platforms.google.clients import GoogleClients
from airflow_gpu_provider.platforms.google.endpoints import address_of
from airflow_gpu_provider.platforms.google.instance_groups import InstanceGroups, zone_of
from airflow_gpu_provider.platforms.google.instances import InstanceGroup, name_of
from airflow_gpu_provider.platforms.google.node_pools import NodePools
from airflow_gpu_provider.platforms.google.operations import Operations
from airflow_gpu_provider.platforms.google.quota import judge, read_quotas
from airflow_gpu_provider.platforms.quota import Verdict, find_over_quota
from airflow_gpu_provider.pools import Candidate, GkeGpuPool

if TYPE_CHECKING:
    from airflow_gpu_provider.cluster.access import ClusterAccess

STATUS: dict[str, GroupStatus] = {
    "PROVISIONING": "creating",
    "RUNNING": "active",
    "RUNNING_WITH_ERROR": "degraded",
    "RECONCILING": "updating",
    "STOPPING": "deleting",
    "ERROR": "failed",
}
"""What GKE's word for a node pool's state means for the pool."""

_CHANGES = ("compute.instanceGroupManagers.update", "compute.instances.delete")
"""What a run needs to set sizes and to release machines."""

_DELETED_WITHIN = timedelta(minutes=15)
"""How long an instance counts against a quota after its deletion was asked for, at most."""


class GkeBase(Platform):
    """A pool on Google Kubernetes Engine; which node pools it has is for subclasses to say.

    Args:
        pool: The rendered spec.
    """

    releases_at_once = 500  # an instance group deletes a thousand in one call

    def __init__(self, pool: GkeGpuPool) -> None:
        self._pool = pool
        self._clients = GoogleClients(conn_id=pool.gcp_conn_id, impersonation_chain=pool.impersonation_chain)

    @abstractmethod
    def candidates(self) -> tuple[Candidate, ...]:
        """Return where the pool can have machines, the most wanted first."""

    @abstractmethod
    def _paths_of(self, group: str) -> list[str]:
        """Return the paths of the instance groups behind a group.

        Raises:
            GroupNotFound: It does not exist, or has none.
        """

    # -- the cluster -----------------------------------------------------------------------------------------

    def account(self) -> str:
        pool = self._pool
        where = f"Google Cloud project {pool.project_id}, GKE cluster {pool.cluster_name} in {pool.location}"
        return f"{where}, as {self._clients.identity}"

    def refusals(self) -> Refusals:
        of_groups = _CHANGES if self._pool.manage == "scale" else (*_CHANGES, "container.clusters.update")
        fix = "docs/iam-gke.md has the whole role."
        try:
            refused = self._clients.resource_manager.refused(self._pool.project_id, of_groups)
        except (CloudError, PermissionDenied) as error:
            return Refusals(
                unasked=f"whether it may also change things Google Cloud does not say: {error.what}", fix=fix
            )
        return Refusals(refused=tuple(refused), fix=fix)

    def cluster_access(self) -> ClusterAccess:
        from airflow_gpu_provider.cluster.access import ClusterAccess

        cluster, token = self._cluster, _TokenSource(self._clients)
        server = f"https://{address_of(cluster, self._pool)}"
        if self._pool.use_dns_endpoint:
            return ClusterAccess(server=server, token=token)
        return ClusterAccess(server=server, ca_data=cluster["master_auth"]["cluster_ca_certificate"], token=token)

    @cached_property
    def _cluster(self) -> Mapping[str, Any]:
        return self._node_pools.cluster()

    @cached_property
    def _node_pools(self) -> NodePools:
        return NodePools(self._clients.gke, self._pool)

    @cached_property
    def _operations(self) -> Operations:
        return Operations(self._clients.gke, self._node_pools.location)

    @cached_property
    def _groups(self) -> InstanceGroups:
        return InstanceGroups(self._clients.compute)

    # -- quotas ----------------------------------------------------------------------------------------------

    def groups_over_quota(self, nodes: int, say: Say) -> frozenset[str]:
        def judged(missing: int) -> Verdict:
            return judge(self._pool, missing, self.candidates(), read_quotas(self._clients.compute, self._pool))

        return find_over_quota(self._pool, nodes, self.observe(), say, judged, whose="project")

    # -- what is told of groups only where it matters --------------------------------------------------------

    def _with_updates(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """Return the groups, those that GKE updates with the operation that does, where the account may list them."""
        if not any(group.status == "updating" and group.machines for group in groups):
            return tuple(groups)
        try:
            under_way = self._operations.under_way(self._pool.cluster_name)
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
            read = in_parallel(lambda zone: self._groups.operations_since(zone, min(met) - _DELETED_WITHIN), zones)
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

    # -- sizes -----------------------------------------------------------------------------------------------

    def set_switch(self, groups: Collection[str], at: datetime) -> None:
        """Nothing: each machine has its end from its creation, by `max_run_duration`."""

    def clear_switch(self, groups: Collection[str]) -> None:
        """Nothing, as in `set_switch`."""

    def grow(self, sizes: Mapping[str, int]) -> None:
        in_parallel(lambda item: self._grow(*item), sizes.items())

    def _grow(self, name: str, size: int) -> None:
        paths = self._paths_of(name)
        if len(paths) == 1:
            self._groups.grow(paths[0], size)
            return
        groups = self._groups.read(paths)
        missing = size - sum(group.target for group in groups)
        if missing > 0:
            self._groups.grow(groups[0].path, groups[0].target + missing)

    def release(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        by_group: dict[str, set[str]] = {}
        for machine in machines:
            by_group.setdefault(machine.group, set()).add(machine.id)
        all_in_parallel(lambda item: self._remove(*item), by_group.items())
        return ()  # Compute Engine deletes an instance that is still being created, too

    def _remove(self, name: str, machines: set[str]) -> None:
        for group in self._groups.read(self._paths_of(name)):
            if going := sorted(machines & set(map(name_of, group.members))):
                self._groups.remove(group.path, going)

    def lives(self, groups: Sequence[Group], since: datetime, known: Collection[str] = ()) -> tuple[MachineLife, ...]:
        paths = [(group.name, path) for group in groups for path in self._paths_of(group.name)]
        zones = sorted({zone_of(path) for _, path in paths})
        read = in_parallel(lambda zone: self._groups.operations_since(zone, since), zones)
        operations = dict(zip(zones, read, strict=True))
        base_names = in_parallel(self._groups.base_name, [path for _, path in paths])
        return tuple(
            life
            for (name, path), base_name in zip(paths, base_names, strict=True)
            if base_name
            for life in gke_lives.lives(name, base_name, operations[zone_of(path)], since)
        )

    def shrink_unfilled(self, groups: Collection[str]) -> dict[str, int]:
        sizes = {name: self._groups.shrink_to_existing(self._paths_of(name)) for name in groups}
        return {name: size for name, size in sizes.items() if size is not None}


class _TokenSource:
    """Tokens for one ClusterAccess, which asks when the last one is ten minutes old, or was refused."""

    def __init__(self, clients: GoogleClients) -> None:
        self._clients = clients
        self._last = ""

    def __call__(self) -> str:
        self._last = self._clients.access_token(refused=self._last)
        return self._last

"""GkePlatform: what pools on Google Kubernetes Engine have in common, with owned and external node pools.

GKE's API creates and changes node pools. Sizes are set, and single machines removed, on the managed instance groups
behind them, as cluster-autoscaler does: GKE's own resize picks the machines that go by itself. No group needs a switch:
each machine has its end from its creation, by `max_run_duration`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from airflow_gpu_provider.clouds.answers import Refusals
from airflow_gpu_provider.clouds.base import Group, Machine, MachineLife
from airflow_gpu_provider.clouds.cloud_platform import CloudPlatform
from airflow_gpu_provider.clouds.google import price_catalog
from airflow_gpu_provider.clouds.google.cluster import GkeCluster
from airflow_gpu_provider.clouds.google.instance_groups import lives, name_of, named_after, zone_of
from airflow_gpu_provider.clouds.google.pool import GkeGpuPool
from airflow_gpu_provider.clouds.google.quota import judge, read_quotas
from airflow_gpu_provider.clouds.quota import Verdict
from airflow_gpu_provider.cluster.api.threads import all_in_parallel, in_parallel
from airflow_gpu_provider.errors import CloudError, PermissionDenied
from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.pools import Candidate

if TYPE_CHECKING:
    from airflow_gpu_provider.cluster.api.access import ClusterAccess


class GkePlatform(CloudPlatform[GkeGpuPool]):
    """A pool on Google Kubernetes Engine: `OwnedGkePlatform` or `ExternalGkePlatform`.

    Args:
        pool: The rendered spec.
    """

    changes: ClassVar[tuple[str, ...]] = ("compute.instanceGroupManagers.update", "compute.instances.delete")
    """The permissions by which a run changes something: it sets sizes, and releases machines."""

    quotas_of = "project"
    releases_at_once = 500  # an instance group deletes a thousand in one call

    def __init__(self, pool: GkeGpuPool) -> None:
        super().__init__(pool)
        self._gke = GkeCluster(pool)
        self._clients = self._gke.clients

    # -- the cluster -----------------------------------------------------------------------------------------

    def account(self) -> str:
        pool = self._pool
        where = f"Google Cloud project {pool.project_id}, GKE cluster {pool.cluster_name} in {pool.location}"
        return f"{where}, as {self._clients.identity}"

    def refusals(self) -> Refusals:
        wanted = self.changes
        path, body = f"projects/{self._pool.project_id}:testIamPermissions", {"permissions": list(wanted)}
        fix = "docs/iam-gke.md has the whole role."
        try:
            # Every caller may ask. There is no answer where the API is not enabled in the project, say.
            answer = self._clients.resource_manager.post(
                path, body, permission="resourcemanager.projects.testIamPermissions"
            )
        except (CloudError, PermissionDenied) as error:
            return Refusals(unasked=f"write permissions could not be checked with Google Cloud: {error.what}", fix=fix)
        return Refusals(refused=tuple(each for each in wanted if each not in answer.get("permissions", ())), fix=fix)

    def cluster_access(self) -> ClusterAccess:
        return self._gke.access

    def _read_prices(self, candidates: Sequence[Candidate]) -> ListPrices:
        return price_catalog.read(self._clients, self._pool, candidates)

    def _compare_quotas(self, missing: int, candidates: Sequence[Candidate]) -> Verdict:
        return judge(self._pool, missing, candidates, read_quotas(self._clients.compute, self._pool))

    # -- sizes and single machines ---------------------------------------------------------------------------

    @abstractmethod
    def _paths_of(self, group: str) -> list[str]:
        """Return the paths of the instance groups behind a group.

        Raises:
            GroupNotFound: It does not exist, or has none.
        """

    def grow(self, sizes: Mapping[str, int]) -> None:
        in_parallel(lambda item: self._grow(*item), sizes.items())

    def _grow(self, name: str, size: int) -> None:
        paths = self._paths_of(name)
        if len(paths) == 1:
            self._gke.groups.grow(paths[0], size)
            return
        groups = self._gke.groups.read(paths)
        missing = size - sum(group.target for group in groups)
        if missing > 0:
            self._gke.groups.grow(groups[0].path, groups[0].target + missing)

    def release(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        by_group: dict[str, set[str]] = {}
        for machine in machines:
            by_group.setdefault(machine.group, set()).add(machine.id)
        all_in_parallel(lambda item: self._remove(*item), by_group.items())
        return ()  # Compute Engine deletes an instance that is still being created, too

    def _remove(self, name: str, machines: set[str]) -> None:
        for group in self._gke.groups.read(self._paths_of(name)):
            if going := sorted(machines & set(map(name_of, group.members))):
                self._gke.groups.remove(group.path, going)

    def lives(self, groups: Sequence[Group], since: datetime, known: Collection[str] = ()) -> tuple[MachineLife, ...]:
        paths = [(group.name, path) for group in groups for path in self._paths_of(group.name)]
        named = (f"projects/{self._pool.project_id}/zones/{zone}" for zone in self._pool.node_locations)
        zones = sorted({*(zone_of(path) for _, path in paths), *(named if known else ())})
        read = in_parallel(lambda zone: self._gke.groups.operations_since(zone, since), zones)
        operations = dict(zip(zones, read, strict=True))
        base_names = in_parallel(self._gke.groups.base_name, [path for _, path in paths])
        found = [
            life
            for (name, path), base_name in zip(paths, base_names, strict=True)
            if base_name
            for life in lives(name, named_after(base_name), operations[zone_of(path)], since)
        ]
        others = {*known} - {life.id for life in found}
        return (*found, *lives("", others.__contains__, [each for some in read for each in some], since))

    def shrink_unfilled(self, groups: Collection[str]) -> dict[str, int]:
        sizes = {name: self._gke.groups.shrink_to_existing(self._paths_of(name)) for name in groups}
        return {name: size for name, size in sizes.items() if size is not None}

"""The project's GKE cluster: created and deleted with its node pools. There is one control plane, so one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from google.cloud.container_v1.types import Cluster as ClusterSettings
from google.cloud.container_v1.types import NodePool

from gpu_sandbox.google.catalogue import Catalogue
from gpu_sandbox.google.errors import GoogleApiError, invalid, not_found
from gpu_sandbox.google.instance_groups import Surroundings
from gpu_sandbox.google.node_pools import NodePools
from gpu_sandbox.google.operations import Operation, OperationError, Operations, Progress, timestamp

VERSION = "1.36.3-gke.1000000"
_DEFAULT_POOL = "default-pool"
_DEFAULT_CHANNEL = "REGULAR"


@dataclass(kw_only=True)
class Cluster:
    """What there is to say about a cluster, its node pools aside."""

    project_id: str
    location: str
    name: str
    locations: tuple[str, ...]
    version: str
    created_at: str
    release_channel: str = _DEFAULT_CHANNEL
    """Empty where it is in none."""
    status: Literal["PROVISIONING", "RUNNING", "RECONCILING", "STOPPING"] = "RUNNING"

    @property
    def path(self) -> str:
        return f"projects/{self.project_id}/locations/{self.location}/clusters/{self.name}"


class Clusters:
    """The one cluster that there can be, if it is there. Used under the cloud's lock."""

    def __init__(
        self,
        *,
        project_id: str,
        location: str,
        locations: Sequence[str],
        catalogue: Catalogue,
        operations: Operations,
        around: Surroundings,
    ) -> None:
        self._project_id = project_id
        self._location = location
        self._locations = tuple(locations)
        self._catalogue = catalogue
        self._operations = operations
        self._around = around
        self.current: Cluster | None = None
        self.endpoint = ""
        """Host and port of the control plane, without a scheme, as GKE gives it."""
        self.dns_endpoint = ""
        """That of the DNS endpoint; empty: a name as GKE's, where nothing listens."""
        self.certificate_authority = ""
        self.has_ip_endpoints = True
        self.dns_takes_users = False

    node_pools: NodePools
    """Of the cluster; none are left where it is gone."""

    @property
    def ip_endpoint(self) -> str:
        """What GKE says in `endpoint`: nothing while the cluster is made, and where it has a DNS endpoint only."""
        made = self.current is not None and self.current.status != "PROVISIONING"
        return self.endpoint if made and self.has_ip_endpoints else ""

    def endpoints_config(self) -> dict[str, Any]:
        """GKE's ControlPlaneEndpointsConfig. A new cluster's DNS endpoint is there, and takes no traffic of users."""
        ip: dict[str, Any] = {"enabled": self.has_ip_endpoints, "enablePublicEndpoint": self.has_ip_endpoints}
        if self.ip_endpoint:
            ip |= {"publicEndpoint": self.ip_endpoint, "privateEndpoint": self.ip_endpoint}
        dns: dict[str, Any] = {"allowExternalTraffic": self.dns_takes_users}
        if self.current is not None and self.current.status != "PROVISIONING":
            name = f"gke-{self.current.name}-123456789012.{self._location}.gke.goog"
            dns["endpoint"] = self.dns_endpoint or name
        return {"dnsEndpointConfig": dns, "ipEndpointsConfig": ip}

    def get(self, project_id: str, location: str, name: str) -> Cluster:
        """NOT_FOUND if it is another one, or gone."""
        cluster = self.current
        if cluster is None or (project_id, location, name) != (cluster.project_id, cluster.location, cluster.name):
            raise not_found(f"Not found: projects/{project_id}/locations/{location}/clusters/{name}.")
        return cluster

    def add(self, name: str, now: float, *, version: str = VERSION, release_channel: str = _DEFAULT_CHANNEL) -> Cluster:
        """A cluster that is there at once, without node pools and without an operation."""
        cluster = Cluster(
            project_id=self._project_id,
            location=self._location,
            name=name,
            locations=self._locations,
            version=version,
            created_at=timestamp(now),
            release_channel=release_channel,
        )
        self.current = cluster
        self.node_pools = NodePools(
            cluster=name,
            cluster_path=cluster.path,
            locations=cluster.locations,
            version=version,
            release_channel=release_channel,
            catalogue=self._catalogue,
            operations=self._operations,
            around=self._around,
        )
        return cluster

    def create(self, settings: ClusterSettings, now: float) -> Operation:
        """A cluster with its first node pools. ALREADY_EXISTS; FAILED_PRECONDITION while there is another one."""
        self._check_new(settings.name)
        cluster = self.add(settings.name, now, version=settings.initial_cluster_version or VERSION)
        try:
            for pool in _first_node_pools(settings):
                self.node_pools.add(pool, now)
        except GoogleApiError:
            self._forget()
            raise
        cluster.status = "PROVISIONING"
        done_at = now + self._around.timings.cluster_create

        def begin(now: float) -> None:
            for pool in self.node_pools.pools.values():
                for group in pool.groups.values():
                    group.resize(pool.settings.initial_node_count, now)

        def look(now: float) -> Progress:
            is_time = self._around.clock.reached(done_at)
            return Progress(over=is_time and all(group.stable for group in self.node_pools.groups()))

        def end(error: OperationError | None) -> None:
            cluster.status = "RUNNING"

        return self._operations.start("CREATE_CLUSTER", cluster.path, now, begin=begin, look=look, end=end)

    def delete(self, cluster: Cluster, now: float) -> Operation:
        """The cluster, with all its node pools and their instances; pods are not waited for."""
        done_at = now + self._around.timings.cluster_delete

        def begin(now: float) -> None:
            for group in self.node_pools.groups():
                group.resize(0, now)

        def look(now: float) -> Progress:
            is_time = self._around.clock.reached(done_at)
            return Progress(over=is_time and not any(group.members for group in self.node_pools.groups()))

        def end(error: OperationError | None) -> None:
            self._forget()

        operation = self._operations.start("DELETE_CLUSTER", cluster.path, now, begin=begin, look=look, end=end)
        cluster.status = "STOPPING"
        return operation

    def _check_new(self, name: str) -> None:
        if not name:
            raise invalid("Cluster.name must be specified.")
        other = self.current
        if other is None:
            return
        if other.name == name:
            raise GoogleApiError("ALREADY_EXISTS", f"Already exists: {other.path}.")
        raise GoogleApiError(
            "FAILED_PRECONDITION",
            f"The sandbox has one control plane, and cluster {other.name} has it: delete that one first.",
        )

    def _forget(self) -> None:
        self.current = None
        self.node_pools.pools.clear()


def _first_node_pools(settings: ClusterSettings) -> list[NodePool]:
    """Those named, or the default pool of the older form of the request."""
    pools = list(settings.node_pools)
    if not pools and not settings.initial_node_count:
        raise invalid("Cluster.initial_node_count must be greater than zero.")
    default = NodePool(name=_DEFAULT_POOL, initial_node_count=settings.initial_node_count, config=settings.node_config)
    return pools or [default]

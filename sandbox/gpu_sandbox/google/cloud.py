"""Google Cloud for one sandbox: one project, one region, one GKE cluster, behind one endpoint, with a clock."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy
from typing import Any

from google.cloud.container_v1.types import NodeConfig, NodePool

from gpu_sandbox import google_lookups
from gpu_sandbox.clock import Clock, SystemClock
from gpu_sandbox.cloud_events import CloudEvents, Outbox, deliver
from gpu_sandbox.consistency import Staleness
from gpu_sandbox.faults import Faults
from gpu_sandbox.google.billing_api import BillingApi, Catalog
from gpu_sandbox.google.catalogue import Catalogue
from gpu_sandbox.google.clusters import VERSION, Cluster, Clusters
from gpu_sandbox.google.compute_api import ComputeApi
from gpu_sandbox.google.container_api import ContainerApi
from gpu_sandbox.google.errors import GoogleApiError, outside_perimeter, service_disabled
from gpu_sandbox.google.http_server import TOKEN_PATH, Api, ApiServer
from gpu_sandbox.google.iam_api import IamApi
from gpu_sandbox.google.identities import Identities
from gpu_sandbox.google.instance_groups import InstanceGroup, Surroundings
from gpu_sandbox.google.interface import (
    GoogleTimings,
    Identity,
    Instance,
    KubernetesUser,
    ScalableGroup,
)
from gpu_sandbox.google.node_pools import NodePools
from gpu_sandbox.google.operations import Operation, OperationError, Operations, Progress
from gpu_sandbox.google.permissions import Permissions, PermissionUse
from gpu_sandbox.google.quotas import Quotas
from gpu_sandbox.google.replicas import Replicas
from gpu_sandbox.google.resize_requests import ResizeRequest
from gpu_sandbox.google.resource_manager_api import ResourceManagerApi


class GoogleCloud:
    """One project with one cluster. `create_cluster` comes before `start`; any number may run in a process.

    Args:
        location: Where the cluster is: the region, or one of its zones for a zonal cluster.
        zones: Of the region; a regional cluster's node pools are in all of them unless they say otherwise.
        restart_control_plane: Takes a zonal cluster's API server away for so many seconds; returns at once. By default
            there is none to restart.
    """

    def __init__(
        self,
        *,
        project_id: str = "sandbox-project",
        region: str = "us-central1",
        zones: Sequence[str] = ("us-central1-a", "us-central1-b", "us-central1-c"),
        location: str | None = None,
        faults: Faults,
        timings: GoogleTimings | None = None,
        events: CloudEvents[Instance],
        restart_control_plane: Callable[[float], None] | None = None,
        seed: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self.project_id = project_id
        self.region = region
        self.zones = tuple(zones)
        self.location = location or region
        self.timings = timings or GoogleTimings()
        self.catalogue = Catalogue(region=region, zones=zones)
        self.prices = Catalog(region)
        self.quotas = Quotas(region=region, faults=faults)
        self._faults = faults
        self.clock = clock or SystemClock()
        self._now = self.clock.now
        faults.follow(self.clock)
        self._lock = threading.RLock()
        self._outbox = Outbox(events)
        self._server = ApiServer(self.clock)
        self.endpoint_url = self._server.url
        self._identities = Identities(
            project_id=project_id,
            token_uri=f"{self.endpoint_url}{TOKEN_PATH}",
            token_lifetime=self.timings.token_lifetime,
            faults=faults,
        )
        self._permissions = Permissions()
        self.administrator = self._identities.add("sandbox-admin")
        self._around = Surroundings(
            project_id=project_id,
            timings=self.timings,
            quotas=self.quotas,
            faults=faults,
            outbox=self._outbox,
            clock=self.clock,
        )
        self._operations = Operations(
            project_id=project_id,
            location=self.location,
            pending=self.timings.operation_pending,
            clock=self.clock,
        )
        self._clusters = Clusters(
            project_id=project_id,
            location=self.location,
            locations=self.zones if self.location == region else (self.location,),
            catalogue=self.catalogue,
            operations=self._operations,
            around=self._around,
        )
        self._replicas = Replicas(
            node_pools=lambda: self.node_pools,
            operations=self._around.operations,
            staleness=Staleness(seed=seed, longest=self.timings.stale),
            clock=self.clock,
        )
        self._loop = self.clock.loop(self._step, poll=self.timings.poll, name="google-clock", mark=self._mark)
        self._restart_control_plane = restart_control_plane
        self._autoscaled: tuple[Cluster | None, bool] = (None, False)
        self._running = False

    # Life

    def create_cluster(
        self,
        name: str,
        *,
        endpoint: str,
        certificate_authority: str,
        dns_endpoint: str = "",
        version: str = VERSION,
        release_channel: str = "REGULAR",
    ) -> None:
        """A RUNNING cluster without node pools. `endpoint` is host and port, `certificate_authority` base64 PEM.

        So is `dns_endpoint`, whose certificate is another authority's; by default nothing listens there.

        Clusters that the API makes later have the same endpoint: there is one control plane.
        """
        self._clusters.endpoint, self._clusters.certificate_authority = endpoint, certificate_authority
        self._clusters.dns_endpoint = dns_endpoint
        self._clusters.add(name, self._now(), version=version, release_channel=release_channel)
        self._autoscaled = (self._clusters.current, False)

    @property
    def cluster(self) -> Cluster:
        """The one that there is. ValueError after its deletion, until another one is created."""
        if self._clusters.current is None:
            raise ValueError(f"project {self.project_id} has no cluster now")
        return self._clusters.current

    @property
    def node_pools(self) -> NodePools:
        """Those of the cluster; none after its deletion."""
        return self._clusters.node_pools

    def add_node_pool(self, name: str, *, machine_type: str) -> None:
        """Have a RUNNING node pool of size 0, as a cluster's first one, without an operation."""
        self.node_pools.add(NodePool(name=name, config=NodeConfig(machine_type=machine_type)), self._now())

    def start(self) -> None:
        """Ready when it returns."""
        google_lookups.switch_off()  # for clients in this process, a test's mostly
        container = ContainerApi(
            project_id=self.project_id,
            location=self.location,
            clusters=self._clusters,
            node_pools=self._replicas.node_pools,
            operations=self._operations,
            clock=self._now,
        )
        compute = ComputeApi(
            project_id=self.project_id,
            catalogue=self.catalogue,
            quotas=self.quotas,
            groups=lambda: self._replicas.node_pools().groups(),
            operations=self._around.operations,
            seen_operations=self._replicas.operations,
            timings=self.timings,
            clock=self._now,
        )
        self._api = Api(
            routes=[
                *container.routes(),
                *compute.routes(),
                *ResourceManagerApi(self._permissions).routes(),
                *IamApi(self._identities).routes(),
                *BillingApi(self.prices).routes(),
            ],
            identities=self._identities,
            permissions=self._permissions,
            faults=self._faults,
            lock=self._lock,
            after_call=self._loop.wake,
            clock=self.clock,
            longest_hold=self.timings.operation_wait,
            reading=self._replicas.reading,
        )
        self._server.start(self._api)
        self._loop.start()
        self._running = True

    def stop(self) -> None:
        """Ends the endpoint and the clock; does nothing if it does not run."""
        if self._running:
            self._running = False
            self._server.stop()
            self._loop.stop()

    def _step(self) -> None:
        with self._lock:
            now = self._now()
            self.node_pools.advance(now)
            self._operations.advance(now)
            restarts = self._autoscaling_began_or_ended()
            if restarts:
                self.begin_cluster_operation(self.timings.control_plane_restart, kind="UPDATE_CLUSTER")
            self._replicas.record(now)
            events = self._outbox.take()
        if restarts and self._restart_control_plane:
            self._restart_control_plane(self.timings.control_plane_restart)
        deliver(events)

    def _mark(self) -> Hashable:
        """Differs where anything that shows has changed."""
        status = self._clusters.current.status if self._clusters.current else None
        return status, self._operations.mark(), self._replicas.mark()

    def _autoscaling_began_or_ended(self) -> bool:
        """Whether GKE restarts the control plane now, which a zonal cluster has one of ("Autoscaling a cluster").

        Here it waits until the operations that are under way are over.
        """
        if self._operations.running():
            return False
        cluster = self._clusters.current
        before, self._autoscaled = self._autoscaled, (cluster, cluster is not None and self.node_pools.autoscaled)
        return self.location != self.region and before[0] is cluster and before != self._autoscaled

    # What the autoscaler does

    def scalable_groups(self) -> list[ScalableGroup]:
        """The instance groups of node pools with autoscaling on."""
        with self._lock:
            return self.node_pools.scalable_groups()

    def resize_group(self, name: str, size: int) -> None:
        """Set a group's target size. ValueError if there is no such group."""
        with self._lock:
            self._group(name).resize(size, self._now())
        self._loop.wake()

    def create_resize_request(self, name: str, *, group: str, by: int, run_seconds: float) -> tuple[str, str] | None:
        """Have a group grow all at once; the code and message of the error if Compute Engine refuses.

        ValueError if there is no such group, or it has a request with that name.
        """
        with self._lock:
            refused = self._group(group).requests.create(name, by=by, run_seconds=run_seconds, now=self._now())
        self._loop.wake()
        return refused

    def resize_requests(self) -> dict[str, ResizeRequest]:
        """Those of all groups, as they are now, by name."""
        with self._lock:
            groups = self.node_pools.groups()
            return {name: copy(each) for group in groups for name, each in group.requests.all().items()}

    def withdraw_resize_request(self, name: str) -> None:
        """Cancel it if it waits, and delete it."""
        with self._lock:
            for group in self.node_pools.groups():
                group.requests.withdraw(name, self._now())
        self._loop.wake()

    def give_up_missing(self, name: str) -> int:
        """No longer ask for instances that cannot be had; the target size that is left."""
        with self._lock:
            group = self._group(name)
            group.delete([member.name for member in group.members if member.error], self._now())
            size = group.target_size
        self._loop.wake()
        return size

    def delete_from_group(self, name: str, machine: str) -> None:
        """Delete one instance and lower the target size by it. ValueError if there is no such group."""
        with self._lock:
            self._group(name).delete([machine], self._now())
        self._loop.wake()

    def _group(self, name: str) -> InstanceGroup:
        group = next((group for group in self.node_pools.groups() if group.url_in_events == name), None)
        if group is None:
            raise ValueError(f"no instance group is named {name!r}")
        return group

    # What the sandbox asks

    @property
    def calls(self) -> Counter[str]:
        """API calls so far by operation, `container:CreateNodePool`."""
        with self._lock:
            return self._api.calls.copy()

    @property
    def called_at(self) -> dict[str, float]:
        """When each operation was last called, in seconds since the epoch."""
        with self._lock:
            return dict(self._api.called_at)

    def identify(self, token: str) -> KubernetesUser | None:
        """Whose access token this is; the cluster takes nothing else, as GKE does.

        An account that may do everything in the project may do so in the cluster, too; what others may do there is
        for the cluster to say.
        """
        bearer = self._identities.identify_access_token(token)
        if bearer is None:
            return None
        account = bearer.identity
        return KubernetesUser(
            username=bearer.username, uid=account.unique_id, administers=not self._permissions.is_limited(account)
        )

    def add_identity(self, name: str, *, permissions: Iterable[str] | None = None) -> Identity:
        """A new service account, which may do everything, or just what these IAM permissions allow.

        ValueError if the name is taken, or a permission unknown.
        """
        identity = self._identities.add(name)
        if permissions is not None:
            self._permissions.grant(identity, frozenset(permissions))
        return identity

    def permission_uses(self, identity: Identity) -> frozenset[PermissionUse]:
        """What the account's permissions were needed for so far, and for which calls."""
        return self._permissions.uses(identity)

    def refused(self, identity: Identity) -> frozenset[PermissionUse]:
        """What the account lacked so far, and for which calls."""
        return self._permissions.refused(identity)

    def keyfile(self, identity: Identity | None = None) -> dict[str, str]:
        """The key of the administrator, or of another service account."""
        return self._identities.keyfile(identity or self.administrator)

    def rotate_key(self, identity: Identity | None = None) -> None:
        """Delete that account's key, and make it another; access tokens live on, as Google's do."""
        self._identities.rotate_key(identity or self.administrator)

    def connection(self, identity: Identity | None = None) -> dict[str, Any]:
        """An Airflow connection to this project, as JSON takes it."""
        return {
            "conn_type": "google_cloud_platform",
            "extra": {
                "project": self.project_id,
                "keyfile_dict": json.dumps(self.keyfile(identity)),
                "gke_endpoint": self.endpoint_url,
                "compute_endpoint": self.endpoint_url,
                "resource_manager_endpoint": self.endpoint_url,
                "billing_endpoint": self.endpoint_url,
            },
        }

    def expire_tokens(self) -> None:
        """Take no access token that was issued so far."""
        self._identities.revoke_all()

    def complete_drain(self, instance_id: str) -> None:
        """The instance's pods are gone: end it. Does nothing if it waits for no drain."""
        with self._lock:
            for group in self.node_pools.groups():
                group.drained(instance_id, self._now())
        self._loop.wake()

    def preempt(self, name: str) -> None:
        """Give a spot instance its notice now. ValueError if it is no running spot instance."""
        with self._lock:
            self._group_of(name).preempt(name, self._now())
        self._loop.wake()

    def end_by_host(self, name: str, event: str = "terminateOnHostMaintenance") -> None:
        """Have an instance end by its host's maintenance, or by "hostError". ValueError if it is no running one."""
        with self._lock:
            self._group_of(name).end_by_host(name, event, self._now())
        self._loop.wake()

    def _group_of(self, instance: str) -> InstanceGroup:
        for group in self.node_pools.groups():
            if group.member(instance):
                return group
        raise ValueError(f"no instance is named {instance!r}")

    def upgrade_nodes(self, node_pool: str) -> bool:
        """Upgrade a node pool's nodes, as GKE does by itself; False where it leaves the pool alone.

        ValueError if there is no such node pool; GoogleApiError while it has another operation.
        """
        with self._lock:
            if node_pool not in self.node_pools.pools:
                raise ValueError(f"no node pool is named {node_pool!r}")
            began = self.node_pools.upgrade(node_pool, self._now()) is not None
        self._loop.wake()
        return began

    def set_endpoints(self, *, ip: bool, dns: bool) -> None:
        """Say whether the cluster has IP endpoints, and whether its DNS endpoint takes traffic of users."""
        with self._lock:
            self._clusters.has_ip_endpoints, self._clusters.dns_takes_users = ip, dns

    @property
    def dns_takes_users(self) -> bool:
        """Whether the cluster's DNS endpoint takes traffic of users."""
        with self._lock:
            return self._clusters.dns_takes_users

    def disable_service(self, service: str, *, disabled: bool = True) -> None:
        """Have the project's API `container`, `compute`, `resourcemanager` or `cloudbilling` not enabled."""
        self._refuse(service, service_disabled(service, self.project_id) if disabled else None)

    def restrict_service(self, service: str, *, restricted: bool = True) -> None:
        """Have an API behind a VPC Service Controls perimeter that lets no caller in."""
        self._refuse(service, outside_perimeter(service) if restricted else None)

    def _refuse(self, service: str, error: GoogleApiError | None) -> None:
        with self._lock:
            self._api.refusals.pop(service, None)
            if error is not None:
                self._api.refusals[service] = error

    def set_quota(self, metric: str, limit: float) -> None:
        """Set one of Compute Engine's quotas. ValueError if there is none of that name."""
        with self._lock:
            self.quotas.set(metric, limit)

    def set_offered(self, name: str, zone: str, *, offered: bool) -> None:
        """Say whether a zone has a machine type or accelerator at all. ValueError if it is unknown."""
        with self._lock:
            self.catalogue.set_offered(name, zone, offered=offered)

    def begin_cluster_operation(self, seconds: float, *, kind: str = "UPGRADE_MASTER") -> str:
        """GKE's own doing, as an upgrade of the control plane, which lets no other operation start. Its name."""
        with self._lock:
            cluster, until = self.cluster, self._now() + seconds

            def end(error: OperationError | None) -> None:
                cluster.status = "RUNNING"

            operation: Operation = self._operations.start(
                kind,
                cluster.path,
                self._now(),
                begin=lambda now: None,
                look=lambda now: Progress(over=self.clock.reached(until)),
                end=end,
            )
            cluster.status = "RECONCILING"
            return operation.name

    def describe_groups(self) -> list[dict[str, Any]]:
        """Every instance group with its instances, as plain data for a live view."""
        with self._lock:
            return [_describe_group(group) for group in self.node_pools.groups()]


def _describe_group(group: InstanceGroup) -> dict[str, Any]:
    return {
        "name": group.name,
        "nodegroup": group.template.node_pool,
        "zone": group.zone,
        "desired": group.target_size,
        "max": None,
        "instances": [
            {"instance_id": member.name, "state": member.status or member.action} for member in group.members
        ],
        "issues": sorted({member.error.message for member in group.members if member.error}),
    }

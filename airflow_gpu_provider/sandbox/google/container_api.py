"""GKE's API, `container.googleapis.com/v1`: what its calls take and answer, for one cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.cloud.container_v1.types import (
    NodeManagement,
    NodePool,
    NodePoolAutoscaling,
    SetNodePoolSizeRequest,
    UpdateNodePoolRequest,
)
from google.protobuf import json_format

from airflow_gpu_provider.sandbox.google.errors import invalid, not_found
from airflow_gpu_provider.sandbox.google.http_server import Call, Route, route
from airflow_gpu_provider.sandbox.google.node_pools import NodePools
from airflow_gpu_provider.sandbox.google.operations import Operation, Operations

_LOCATION = "/v1/projects/{project}/locations/{location}"
_CLUSTER = _LOCATION + "/clusters/{cluster}"
_POOL = _CLUSTER + "/nodePools/{pool}"
_ANYWHERE = "-"
# Fields of UpdateNodePoolRequest that replace fields of the node pool, and those of its node config.
_POOL_FIELDS = ("locations", "upgrade_settings", "node_drain_config", "queued_provisioning")
_CONFIG_FIELDS = (
    "machine_type",
    "disk_size_gb",
    "disk_type",
    "image_type",
    "accelerators",
    "max_run_duration",
    "workload_metadata_config",
    "gcfs_config",
    "gvnic",
    "kubelet_config",
    "linux_node_config",
    "logging_config",
)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What there is to say about a cluster, its node pools aside."""

    project_id: str
    location: str
    name: str
    locations: tuple[str, ...]
    endpoint: str
    """Host and port, without a scheme, as GKE gives it."""
    certificate_authority: str
    version: str
    created_at: str

    @property
    def path(self) -> str:
        return f"projects/{self.project_id}/locations/{self.location}/clusters/{self.name}"


class ContainerApi:
    """Answers for one cluster; every other one, project and location is NOT_FOUND."""

    def __init__(
        self, *, cluster: Cluster, node_pools: NodePools, operations: Operations, clock: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._node_pools = node_pools
        self._operations = operations
        self._clock = clock

    def routes(self) -> list[Route]:
        return [
            route("container:ListClusters", "GET", f"{_LOCATION}/clusters", self._list_clusters),
            route("container:GetCluster", "GET", _CLUSTER, self._in_cluster(lambda call: self._describe_cluster())),
            route("container:GetServerConfig", "GET", f"{_LOCATION}/serverConfig", self._server_config),
            route("container:ListOperations", "GET", f"{_LOCATION}/operations", self._list_operations),
            route("container:GetOperation", "GET", f"{_LOCATION}/operations/{{operation}}", self._get_operation),
            route("container:CancelOperation", "POST", f"{_LOCATION}/operations/{{operation}}:cancel", self._cancel),
            route("container:ListNodePools", "GET", f"{_CLUSTER}/nodePools", self._in_cluster(self._list)),
            route("container:CreateNodePool", "POST", f"{_CLUSTER}/nodePools", self._in_cluster(self._create)),
            route("container:GetNodePool", "GET", _POOL, self._in_cluster(self._get)),
            route("container:UpdateNodePool", "PUT", _POOL, self._in_cluster(self._update)),
            route("container:DeleteNodePool", "DELETE", _POOL, self._in_cluster(self._delete)),
            route("container:SetNodePoolSize", "POST", f"{_POOL}:setSize", self._in_cluster(self._set_size)),
            route(
                "container:SetNodePoolAutoscaling",
                "POST",
                f"{_POOL}:setAutoscaling",
                self._in_cluster(self._set_autoscaling),
            ),
            route(
                "container:SetNodePoolManagement",
                "POST",
                f"{_POOL}:setManagement",
                self._in_cluster(self._set_management),
            ),
        ]

    # Clusters

    def _in_cluster(self, answer: Callable[[Call], Any]) -> Callable[[Call], Any]:
        def checked(call: Call) -> Any:
            path = call.path
            if (path["project"], path["location"], path["cluster"]) != (
                self._cluster.project_id,
                self._cluster.location,
                self._cluster.name,
            ):
                raise not_found(
                    f"Not found: projects/{path['project']}/locations/{path['location']}/clusters/{path['cluster']}."
                )
            return answer(call)

        return checked

    def _list_clusters(self, call: Call) -> Any:
        here = self._is_here(call)
        return {"clusters": [self._describe_cluster()] if here else []}

    def _is_here(self, call: Call) -> bool:
        return call.path["project"] == self._cluster.project_id and call.path["location"] in (
            self._cluster.location,
            _ANYWHERE,
        )

    def _describe_cluster(self) -> dict[str, Any]:
        cluster = self._cluster
        groups = self._node_pools.groups()
        return {
            "name": cluster.name,
            "selfLink": f"https://container.googleapis.com/v1/{cluster.path}",
            "location": cluster.location,
            "zone": cluster.location,
            "locations": list(cluster.locations),
            "network": "default",
            "subnetwork": "default",
            "status": "RUNNING",
            "endpoint": cluster.endpoint,
            "masterAuth": {"clusterCaCertificate": cluster.certificate_authority},
            "initialClusterVersion": cluster.version,
            "currentMasterVersion": cluster.version,
            "currentNodeVersion": cluster.version,
            "createTime": cluster.created_at,
            "currentNodeCount": sum(group.running for group in groups),
            "instanceGroupUrls": [group.url for group in groups],
            "nodePools": [_to_json(pool.shown()) for pool in self._node_pools.pools.values()],
            "autopilot": {},
        }

    def _server_config(self, call: Call) -> Any:
        version = self._cluster.version
        return {
            "defaultClusterVersion": version,
            "validNodeVersions": [version],
            "validMasterVersions": [version],
            "defaultImageType": "COS_CONTAINERD",
            "validImageTypes": ["COS_CONTAINERD", "UBUNTU_CONTAINERD"],
        }

    # Operations

    def _list_operations(self, call: Call) -> Any:
        return {"operations": self._operations.list() if self._is_here(call) else []}

    def _get_operation(self, call: Call) -> Any:
        self._check_place(call)
        return self._operations.get(call.path["operation"])

    def _cancel(self, call: Call) -> Any:
        self._check_place(call)
        self._operations.cancel(call.path["operation"], self._clock())
        return {}

    def _check_place(self, call: Call) -> None:
        if not self._is_here(call):
            place = f"projects/{call.path['project']}/locations/{call.path['location']}"
            raise not_found(f"Not found: {place}/operations/{call.path['operation']}.")

    def _started(self, operation: Operation) -> dict[str, Any]:
        return self._operations.describe(operation)

    # Node pools

    def _list(self, call: Call) -> Any:
        return {"nodePools": [_to_json(pool.shown()) for pool in self._node_pools.pools.values()]}

    def _get(self, call: Call) -> Any:
        return _to_json(self._node_pools.get(call.path["pool"]).shown())

    def _create(self, call: Call) -> Any:
        settings: NodePool = _from_json(NodePool, call.body.get("nodePool", {}))
        return self._started(self._node_pools.create(settings, self._clock()))

    def _update(self, call: Call) -> Any:
        request: UpdateNodePoolRequest = _from_json(UpdateNodePoolRequest, call.body)
        pool = self._node_pools.get(call.path["pool"])
        if request.etag and request.etag != pool.settings.etag:
            raise invalid(f'Etag mismatch: the node pool has "{pool.settings.etag}", not "{request.etag}".')
        operation = self._node_pools.update(pool.name, lambda changed: _apply(request, changed), self._clock())
        return self._started(operation)

    def _delete(self, call: Call) -> Any:
        return self._started(self._node_pools.delete(call.path["pool"], self._clock()))

    def _set_size(self, call: Call) -> Any:
        request: SetNodePoolSizeRequest = _from_json(SetNodePoolSizeRequest, call.body)
        return self._started(self._node_pools.set_size(call.path["pool"], request.node_count, self._clock()))

    def _set_autoscaling(self, call: Call) -> Any:
        wanted: NodePoolAutoscaling = _from_json(NodePoolAutoscaling, call.body.get("autoscaling", {}))
        return self._started(self._node_pools.set_autoscaling(call.path["pool"], wanted, self._clock()))

    def _set_management(self, call: Call) -> Any:
        wanted: NodeManagement = _from_json(NodeManagement, call.body.get("management", {}))

        def change(settings: NodePool) -> None:
            settings.management = wanted

        return self._started(self._node_pools.set_management(call.path["pool"], change, self._clock()))


def _apply(request: UpdateNodePoolRequest, changed: NodePool) -> None:
    """Each field that the request has replaces the pool's; those left out stay."""
    for name in _POOL_FIELDS:
        if name in request:
            setattr(changed, name, getattr(request, name))
    for name in _CONFIG_FIELDS:
        if name in request:
            setattr(changed.config, name, getattr(request, name))
    if "labels" in request:
        changed.config.labels = dict(request.labels.labels)
    if "resource_labels" in request:
        changed.config.resource_labels = dict(request.resource_labels.labels)
    if "taints" in request:
        changed.config.taints = list(request.taints.taints)
    if "tags" in request:
        changed.config.tags = list(request.tags.tags)


def _from_json(kind: Any, body: Mapping[str, Any]) -> Any:
    message = kind()
    try:
        json_format.ParseDict(dict(body), kind.pb(message))
    except json_format.ParseError as error:
        raise invalid(f"Invalid JSON payload received. {error}") from error
    return message


def _to_json(message: Any) -> dict[str, Any]:
    described: dict[str, Any] = json_format.MessageToDict(type(message).pb(message))
    return described

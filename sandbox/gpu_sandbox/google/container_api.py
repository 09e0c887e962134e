"""GKE's API, `container.googleapis.com/v1`: what its calls take and answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.cloud.container_v1.types import Cluster as ClusterSettings
from google.cloud.container_v1.types import (
    NodeManagement,
    NodePool,
    NodePoolAutoscaling,
    SetNodePoolSizeRequest,
    UpdateNodePoolRequest,
)
from google.protobuf import json_format

from gpu_sandbox.google.clusters import VERSION, Cluster, Clusters
from gpu_sandbox.google.errors import invalid, not_found
from gpu_sandbox.google.http_server import Call, Route, route
from gpu_sandbox.google.node_pools import NodePools
from gpu_sandbox.google.operations import Operation, Operations

_LOCATION = "/v1/projects/{project}/locations/{location}"
_CLUSTER = _LOCATION + "/clusters/{cluster}"
_POOL = _CLUSTER + "/nodePools/{pool}"
_ANYWHERE = "-"
# Fields of UpdateNodePoolRequest that replace fields of the node pool, and those of its node config.
_POOL_FIELDS = ("locations", "upgrade_settings", "node_drain_config", "queued_provisioning", "maintenance_policy")
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


class ContainerApi:
    """Answers for one project and location; every other one is NOT_FOUND."""

    def __init__(
        self,
        *,
        project_id: str,
        location: str,
        clusters: Clusters,
        node_pools: Callable[[], NodePools],
        operations: Operations,
        clock: Callable[[], float],
    ) -> None:
        self._project_id = project_id
        self._location = location
        self._clusters = clusters
        self._seen_node_pools = node_pools
        self._operations = operations
        self._clock = clock

    @property
    def _node_pools(self) -> NodePools:
        """As the call sees them."""
        return self._seen_node_pools()

    def routes(self) -> list[Route]:
        return [
            route("container:ListClusters", "GET", f"{_LOCATION}/clusters", self._list_clusters),
            route("container:CreateCluster", "POST", f"{_LOCATION}/clusters", self._create_cluster),
            route("container:GetCluster", "GET", _CLUSTER, lambda call: self._describe_cluster(self._cluster(call))),
            route("container:DeleteCluster", "DELETE", _CLUSTER, self._delete_cluster),
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

    def _cluster(self, call: Call) -> Cluster:
        return self._clusters.get(call.path["project"], call.path["location"], call.path["cluster"])

    def _in_cluster(self, answer: Callable[[Call], Any]) -> Callable[[Call], Any]:
        def checked(call: Call) -> Any:
            self._cluster(call)
            return answer(call)

        return checked

    def _list_clusters(self, call: Call) -> Any:
        cluster = self._clusters.current
        return {"clusters": [self._describe_cluster(cluster)] if cluster and self._is_here(call) else []}

    def _create_cluster(self, call: Call) -> Any:
        self._check_place(call, "clusters")
        settings: ClusterSettings = _from_json(ClusterSettings, call.body.get("cluster", {}))
        return self._started(self._clusters.create(settings, self._clock()))

    def _delete_cluster(self, call: Call) -> Any:
        return self._started(self._clusters.delete(self._cluster(call), self._clock()))

    def _is_here(self, call: Call) -> bool:
        return call.path["project"] == self._project_id and call.path["location"] in (self._location, _ANYWHERE)

    def _describe_cluster(self, cluster: Cluster) -> dict[str, Any]:
        groups = self._node_pools.groups()
        return {
            "name": cluster.name,
            "selfLink": f"https://container.googleapis.com/v1/{cluster.path}",
            "location": cluster.location,
            "zone": cluster.location,
            "locations": list(cluster.locations),
            "network": "default",
            "subnetwork": "default",
            "status": cluster.status,
            "releaseChannel": {"channel": cluster.release_channel or "UNSPECIFIED"},
            "endpoint": self._clusters.ip_endpoint,
            "controlPlaneEndpointsConfig": self._clusters.endpoints_config(),
            "masterAuth": {"clusterCaCertificate": self._clusters.certificate_authority},
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
        return {
            "defaultClusterVersion": VERSION,
            "validNodeVersions": [VERSION],
            "validMasterVersions": [VERSION],
            "defaultImageType": "COS_CONTAINERD",
            "validImageTypes": ["COS_CONTAINERD", "UBUNTU_CONTAINERD"],
        }

    # Operations

    def _list_operations(self, call: Call) -> Any:
        return {"operations": self._operations.list() if self._is_here(call) else []}

    def _get_operation(self, call: Call) -> Any:
        self._check_place(call, f"operations/{call.path['operation']}")
        return self._operations.get(call.path["operation"])

    def _cancel(self, call: Call) -> Any:
        self._check_place(call, f"operations/{call.path['operation']}")
        self._operations.cancel(call.path["operation"], self._clock())
        return {}

    def _check_place(self, call: Call, what: str) -> None:
        if not self._is_here(call):
            place = f"projects/{call.path['project']}/locations/{call.path['location']}"
            raise not_found(f"Not found: {place}/{what}.")

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

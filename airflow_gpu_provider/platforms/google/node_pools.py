"""Calls to GKE about node pools: read them, and start to create, update and delete them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_gpu_provider.errors import CloudError, ClusterNotFound, GpuError, PoolSpecError
from airflow_gpu_provider.platforms.google.clients import Gke
from airflow_gpu_provider.platforms.google.errors import has_status, message_of
from airflow_gpu_provider.platforms.google.instance_groups import path_of
from airflow_gpu_provider.platforms.google.spec import POOL_LABEL, NodePoolSpec, labels_of
from airflow_gpu_provider.pools import GkeGpuPool

_READ = "container.clusters.get"
_WRITE = "container.clusters.update"
_BLUE_STAYS = ("UPDATE_STARTED", "CREATING_GREEN_POOL", "ROLLBACK_STARTED")


class NodePools:
    """The node pools of one pool's cluster. Every method makes fresh calls."""

    def __init__(self, gke: Gke, pool: GkeGpuPool) -> None:
        self._gke = gke
        self._pool = pool
        self.location = f"projects/{pool.project_id}/locations/{pool.location}"
        self._cluster_path = f"{self.location}/clusters/{pool.cluster_name}"

    def cluster(self) -> Mapping[str, Any]:
        """Return GKE's Cluster.

        Raises:
            ClusterNotFound: There is no such cluster.
            PoolSpecError: It is an Autopilot cluster, which has no node pools.
        """
        pool = self._pool
        try:
            found = self._gke.call("get_cluster", permission=_READ, name=self._cluster_path)
        except CloudError as error:
            if has_status(error, "NOT_FOUND"):
                raise self._no_cluster(error) from error
            raise
        if (found.get("autopilot") or {}).get("enabled"):
            raise PoolSpecError(
                f"Pool {pool.name}: {pool.cluster_name} is an Autopilot cluster, which has no node pools.",
                'Use KubernetesGpuPool(provisioner="autopilot").',
            )
        return found

    def read(self) -> dict[str, Mapping[str, Any]]:
        """Return all node pools of the cluster by name."""
        try:
            answer = self._gke.call("list_node_pools", permission=_READ, parent=self._cluster_path)
        except CloudError as error:
            if has_status(error, "NOT_FOUND"):
                raise self._no_cluster(error) from error
            raise
        return {each["name"]: each for each in answer.get("node_pools") or ()}

    def owned(self) -> dict[str, Mapping[str, Any]]:
        """Return those of `read` that this package created for the pool, today's spec or an earlier one's."""
        return {name: each for name, each in self.read().items() if is_owned(each, self._pool)}

    def describe(self, name: str) -> Mapping[str, Any] | None:
        """Return a NodePool, or None where there is no such."""
        try:
            return self._gke.call("get_node_pool", permission=_READ, name=self._path(name))
        except CloudError as error:
            if has_status(error, "NOT_FOUND"):
                return None
            raise

    def create(self, spec: NodePoolSpec) -> Mapping[str, Any] | None:
        """Start to create a node pool of size 0; None if somebody else creates it just now."""
        try:
            return self._gke.call(
                "create_node_pool", permission=_WRITE, parent=self._cluster_path, node_pool=spec.node_pool()
            )
        except CloudError as error:
            if has_status(error, "ALREADY_EXISTS"):
                return None
            raise _as_refusal(error, self._pool, f"create {spec.candidate.group}") from error

    def update(self, name: str, change: Mapping[str, Any]) -> Mapping[str, Any]:
        """Start to change one field of a node pool: autoscaling, or another in UpdateNodePool's words."""
        method = "set_node_pool_autoscaling" if "autoscaling" in change else "update_node_pool"
        try:
            return self._gke.call(method, permission=_WRITE, name=self._path(name), **change)
        except CloudError as error:
            raise _as_refusal(error, self._pool, f"update {name}") from error

    def delete(self, name: str) -> Mapping[str, Any] | None:
        """Start to delete a node pool; None if it is gone."""
        try:
            return self._gke.call("delete_node_pool", permission=_WRITE, name=self._path(name))
        except CloudError as error:
            if has_status(error, "NOT_FOUND"):
                return None
            raise

    def _path(self, name: str) -> str:
        return f"{self._cluster_path}/nodePools/{name}"

    def _no_cluster(self, error: GpuError) -> ClusterNotFound:
        pool = self._pool
        return ClusterNotFound(
            f"There is no GKE cluster {pool.cluster_name} in {pool.location} of project {pool.project_id}.",
            "Check cluster_name, location (a zone for a zonal cluster) and project_id.",
            **error.details,
        )


def is_owned(node_pool: Mapping[str, Any], pool: GkeGpuPool) -> bool:
    """Return True if this package created the node pool for this pool."""
    return labels_of(node_pool).get(POOL_LABEL) == pool.name


def knows_exclusions() -> bool:
    """Return True where the installed client library knows node pools' maintenance exclusions: from 2.65 on."""
    from google.cloud.container_v1.types import NodePool

    return "maintenance_policy" in NodePool.meta.fields


def group_paths(node_pool: Mapping[str, Any]) -> list[str]:
    """Return the paths of the instance groups behind a node pool: none while GKE has not made them.

    During a blue-green upgrade there are both sides'; the side that stays comes first, and it is the one to grow.
    """
    paths = [path_of(url) for url in node_pool.get("instance_group_urls") or ()]
    leaving = _leaving_paths((node_pool.get("update_info") or {}).get("blue_green_info") or {})
    return sorted(paths, key=leaving.__contains__)


def _leaving_paths(upgrade: Mapping[str, Any]) -> set[str]:
    """Return the groups whose nodes a blue-green upgrade drains, or ends where it is rolled back."""
    side = "green" if upgrade.get("phase") in _BLUE_STAYS else "blue"
    return {path_of(url) for url in upgrade.get(f"{side}_instance_group_urls") or ()}


def _as_refusal(error: CloudError, pool: GkeGpuPool, doing: str) -> GpuError:
    if not has_status(error, "INVALID_ARGUMENT"):
        return error
    return PoolSpecError(
        f"Pool {pool.name}: GKE refuses to {doing}: {message_of(error)}.", "Correct the pool's spec.", **error.details
    )

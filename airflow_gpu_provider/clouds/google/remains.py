"""What Google Cloud lists of pools of one GKE cluster: by the names of their node pools, and by GKE's own labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_gpu_provider.clouds.google.clients import GoogleClients
from airflow_gpu_provider.clouds.google.pool import GkeGpuPool
from airflow_gpu_provider.clouds.remains import Listed, listed

_READ = "container.clusters.get"


def remains(*names: str, pool: GkeGpuPool) -> list[Listed]:
    """Return what the project has, in the zones and of the cluster of a pool, of pools with these names."""
    project = _Project(pool, tuple(f"{name}-" for name in names))
    return [
        listed("node pools, by GKE", project.node_pools),
        listed("managed instance groups, by Compute Engine", project.instance_groups),
        listed("instances, by Compute Engine", project.instances),
    ]


class _Project:
    """`prefixes` begin the names of the pools' node pools."""

    def __init__(self, pool: GkeGpuPool, prefixes: tuple[str, ...]) -> None:
        self._pool = pool
        self._prefixes = prefixes
        self._clients = GoogleClients(conn_id=pool.gcp_conn_id, impersonation_chain=pool.impersonation_chain)
        self._cluster = f"projects/{pool.project_id}/locations/{pool.location}/clusters/{pool.cluster_name}"

    def node_pools(self) -> Iterator[str]:
        found = self._clients.gke.call("list_node_pools", permission=_READ, parent=self._cluster)
        for each in found.get("node_pools") or ():
            if each["name"].startswith(self._prefixes):
                yield f"{each['name']}: {each.get('status')}"

    def instance_groups(self) -> Iterator[str]:
        for each in self._in_zones("instanceGroupManagers", "compute.instanceGroupManagers.list"):
            if self._is_of_them(each["name"]):
                yield f"{each['name']}: {each.get('targetSize', 0)} instances"

    def instances(self) -> Iterator[str]:
        for each in self._in_zones("instances", "compute.instances.list"):
            node_pool = (each.get("labels") or {}).get("goog-k8s-node-pool-name", "")
            if self._is_of_them(each["name"]) or node_pool.startswith(self._prefixes):
                yield f"{each['name']}: {each.get('status')}"

    def _in_zones(self, kind: str, permission: str) -> Iterator[dict[str, Any]]:
        gke = self._clients.gke
        zones = self._pool.node_locations or gke.call("get_cluster", permission=_READ, name=self._cluster)["locations"]
        for zone in zones:
            path = f"projects/{self._pool.project_id}/zones/{zone}/{kind}"
            yield from self._clients.compute.items(path, "items", permission=permission)

    def _is_of_them(self, name: str) -> bool:
        # GKE names them gke-<cluster>-<node pool>-<hash>, and cuts long names of both.
        begins = [prefix[:12].rstrip("-") for prefix in self._prefixes]
        return name.startswith("gke-") and any(f"-{begin}" in name for begin in begins)

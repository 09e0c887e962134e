"""What a cluster's API server lists of pools, by the pools' label and by the names of their device plugins."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.clouds.remains import Listed, listed
from airflow_gpu_provider.cluster.leases import LEASES
from airflow_gpu_provider.cluster.rest import ApiClient, list_items
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL


def remains(*names: str, pool: GpuPool) -> list[Listed]:
    """Return what the cluster of a pool, of any kind, has of pools with these names."""

    @cache
    def api() -> ApiClient:
        return platform_for(pool).cluster_access().api_client()

    def labelled(path: str, resource: str) -> Iterator[str]:
        for each in list_items(api(), path, resource=resource, labelSelector=POOL_LABEL):
            if each["metadata"]["labels"][POOL_LABEL] in names:
                yield each["metadata"]["name"]

    def plugins() -> Iterator[str]:
        endings = tuple(f"-{name}" for name in names)
        for each in list_items(api(), "/apis/apps/v1/daemonsets", resource="daemonsets"):
            name = each["metadata"]["name"]
            if name.endswith(endings):
                yield f"{each['metadata'].get('namespace')}/{name}"

    return [
        listed("nodes, by the API server", lambda: labelled("/api/v1/nodes", "nodes")),
        listed("leases (demand, locks, ledgers), by the API server", lambda: labelled(LEASES, "leases")),
        listed("device plugins of these pools, by the API server", plugins, costs=False),
    ]

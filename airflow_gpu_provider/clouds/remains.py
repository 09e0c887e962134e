"""What is left of pools, by their names: what their cloud lists of them (`GpuPool.remains_path`), and their cluster.

None of it is what this package has written down, or what `Platform.observe` reads. Lists are taken whole, and searched
by name and by the cloud's own tags, so that a thing whose tag of ours is missing is found too. In a cluster the pools'
label, and the names of their device plugins, are searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name

from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.cluster.api.rest import ApiClient, list_items
from airflow_gpu_provider.cluster.model.lease import LEASES
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One list, and what of the pools is in it.

    Attributes:
        what: What was listed, and of whom it was asked.
        left: What is left, each with its state.
        unasked: Why there is no answer; empty where there is one.
        costs: It costs money, or keeps another pool of the name from a clean start.
    """

    what: str
    left: tuple[str, ...] = ()
    unasked: str = ""
    costs: bool = True

    def __str__(self) -> str:
        return f"{self.what}: unknown: {self.unasked}" if self.unasked else f"{self.what}: {', '.join(self.left)}"


def remains(*names: str, pool: GpuPool) -> list[Listed]:
    """Return what is listed of pools with these names, in the account and the cluster of a (rendered) pool.

    A list that cannot be read says why (`Listed.unasked`); nothing is raised for it.
    """
    path = pool.remains_path
    in_the_cloud: list[Listed] = resolve_name(path)(*names, pool=pool) if path else []
    return [*in_the_cloud, *_in_the_cluster(names, pool)]


def listed(what: str, look: Callable[[], Iterator[str]], *, costs: bool = True) -> Listed:
    """Read one list."""
    try:
        return Listed(what=what, left=tuple(look()), costs=costs)
    except GpuError as error:
        return Listed(what=what, unasked=f"{type(error).__name__}: {error}", costs=costs)


def _in_the_cluster(names: tuple[str, ...], pool: GpuPool) -> list[Listed]:
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

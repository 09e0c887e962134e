"""Which pools this package has changed in a cluster: each one's lock keeps its spec."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.cluster.leases import list_leases
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pools import GpuPool, deserialize_pool
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.state.lock import SPEC

if TYPE_CHECKING:
    from kubernetes.client import ApiClient


@dataclass(frozen=True, kw_only=True)
class KeptSpec:
    """What a pool's lock keeps of it.

    Attributes:
        lock: The uid of the lock's Lease: the same pool has the same, however its cluster is reached.
        spec: The serialized spec of the last one who took the lock.
    """

    name: str
    lock: str
    spec: Mapping[str, Any]


def list_pool_specs(api: ApiClient) -> list[KeptSpec]:
    """Return the specs of all pools that were ever changed in the cluster and not deleted."""
    found = []
    for raw in list_leases(api, "lock"):
        metadata = raw["metadata"]
        text = (metadata.get("annotations") or {}).get(SPEC)
        if text:
            name = metadata["labels"][POOL_LABEL]
            found.append(KeptSpec(name=name, lock=metadata["uid"], spec=json.loads(text)))
    return found


class OtherPools:
    """The other pools of the same clusters, each reached through the connection that its own spec names.

    An object in a cluster must not choose the credentials that this process uses for a cloud: a pool with a connection
    that none of the named pools has is left out.

    Args:
        named: The pools that the caller named.
    """

    def __init__(self, named: Iterable[GpuPool]) -> None:
        self._looked_at = {(pool.cluster_identity, pool.name) for pool in named}
        self._read: set[str] = set()
        self._seen: dict[str, list[tuple[str, str]]] = {}  # by lock: cluster identities, and its pool's name
        self._left_out: dict[str, str] = {}  # by lock: the line to report about its pool

    def beside(self, pool: GpuPool, api: ApiClient) -> Iterator[GpuPool]:
        """Yield the pools of its cluster that have its connection and that were neither named nor yielded before."""
        here = pool.cluster_identity
        if here in self._read:
            return
        kept = list_pool_specs(api)
        self._read.add(here)
        for each in kept:
            self._seen.setdefault(each.lock, []).append((here, each.name))
            if (here, each.name) in self._looked_at:
                continue
            try:
                other, why = deserialize_pool(each.spec), "its runs use another connection"
            except (GpuError, TypeError) as error:
                other, why = None, f"its spec cannot be read: {error}"
            if other and other.cluster_identity == here:
                self._looked_at.add((here, other.name))
                yield other
                continue
            if other:
                self._seen[each.lock].append((other.cluster_identity, each.name))
            line = f"pool {each.name}, in the cluster of pool {pool.name}, is left out: {why}"
            self._left_out.setdefault(each.lock, line)

    def left_out(self) -> Iterator[str]:
        """Yield a line for each pool that none of the connections reached, once all of them were used."""
        for lock, line in self._left_out.items():
            if self._looked_at.isdisjoint(self._seen[lock]):
                yield line

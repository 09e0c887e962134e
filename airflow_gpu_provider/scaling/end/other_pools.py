"""OtherPools: which pools of the same clusters this package has changed, by what their locks keep of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_gpu_provider.cluster.api.rest import ApiClient
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.state.lock import list_pool_specs
from airflow_gpu_provider.untrusted import NotParsed, one_line

_LONGEST_LINE = 300  # characters


class OtherPools:
    """The other pools of the same clusters, each reached through the connection that its own spec names.

    An object in a cluster must choose neither the credentials that this process uses for a cloud, nor which of others'
    machines these change: a pool with a connection that none of the named pools has is left out, and so is one with
    external groups that none of them names.
    """

    def __init__(self, named: Iterable[GpuPool]) -> None:
        self._looked_at = set[tuple[str, str]]()
        self._may_change: dict[str, frozenset[str]] = {}  # by cluster identity: machines of others
        for pool in named:
            here = pool.cluster_identity
            self._looked_at.add((here, pool.name))
            self._may_change[here] = self._may_change.get(here, frozenset()) | pool.machines_of_others
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
                other = each.pool()
            except NotParsed as error:
                why = f"its spec cannot be read: {error}"
            else:
                why = self._why_not(other, here)
                if not why:
                    self._looked_at.add((here, other.name))
                    yield other
                    continue
                self._seen[each.lock].append((other.cluster_identity, each.name))
            line = f"pool {each.name}, in the cluster of pool {pool.name}, is left out: {why}"
            self._left_out.setdefault(each.lock, line)

    def _why_not(self, other: GpuPool, here: str) -> str:
        """Return why a pool that a Lease describes is not looked at; empty if it is."""
        if other.cluster_identity != here:
            return "its runs use another connection"
        foreign = sorted(other.machines_of_others - self._may_change.get(here, frozenset()))
        if not foreign:
            return ""
        names = one_line(", ".join(foreign), _LONGEST_LINE)
        return f"it scales {names}, which none of the pools that were named here does"

    def left_out(self) -> Iterator[str]:
        """Yield a line for each pool that none of the connections reached, once all of them were used."""
        for lock, line in self._left_out.items():
            if self._looked_at.isdisjoint(self._seen[lock]):
                yield line

"""PoolAccess: what one process uses to change a pool - its cloud, its cluster, their clock, and the ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.clock import Clock, ServerClock
from airflow_gpu_provider.cluster.nodes import Node
from airflow_gpu_provider.cluster.pods import Pod, list_pods_on
from airflow_gpu_provider.cluster.threads import AT_ONCE
from airflow_gpu_provider.cost.ledger import Ledger
from airflow_gpu_provider.platforms.base import Group, Machine, Platform, Report
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.decide.placement import claimed
from airflow_gpu_provider.scaling.state.demand import list_demand

if TYPE_CHECKING:
    from kubernetes.client import ApiClient


class PoolAccess:
    """One pool, as one process reaches it.

    Args:
        pool: The (rendered) spec.
        platform: The pool's cloud.
        api: The client of the pool's cluster.
        holder: The name to show as the lock's holder: dag/run/task/try, host and pid.
        report: Takes one line immediately: that it waits for the lock. All others are in the outcome.
        clock: The time that all processes that change the pool use. Default: the API server's.
        at_once: How many requests it makes concurrently.
    """

    def __init__(
        self,
        pool: GpuPool,
        platform: Platform,
        api: ApiClient,
        *,
        holder: str,
        report: Report,
        clock: Clock | None = None,
        at_once: int = AT_ONCE,
    ) -> None:
        self.pool = pool
        self.platform = platform
        self.api = api
        self.holder = holder
        self._report = report
        self.clock: Clock = clock or ServerClock(api)
        self.at_once = at_once
        self.ledger = Ledger(api, pool, report, taken=self._taken)

    def remove_machines(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        """Remove machines, and return those that cannot be removed yet."""
        return self.platform.release(machines)

    def pods_on(self, nodes: Iterable[Node]) -> list[Pod]:
        return list_pods_on(self.api, nodes, at_once=self.at_once)

    def _taken(self, groups: Iterable[Group], now: datetime) -> Collection[str]:
        return claimed(self.pool, groups, list_demand(self.api), now) if self.pool.manage == "scale" else ()

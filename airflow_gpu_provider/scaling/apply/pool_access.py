"""PoolAccess: what one process uses to change a pool - its cloud, its cluster, their clock, and the ledger.

By these it says how long a run's money lasts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from airflow_gpu_provider.clouds.base import Group, Machine, Platform, Report
from airflow_gpu_provider.cluster.clock import Clock, ServerClock
from airflow_gpu_provider.cluster.demand_key import DemandKey
from airflow_gpu_provider.cluster.nodes import Node, list_nodes
from airflow_gpu_provider.cluster.pods import Pod, list_pods_on
from airflow_gpu_provider.cluster.rest import ApiClient
from airflow_gpu_provider.cluster.threads import AT_ONCE
from airflow_gpu_provider.cost.ledger import Ledger
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.budget import Budget, budget_of
from airflow_gpu_provider.pools.prices import ListPrices
from airflow_gpu_provider.scaling.decide.placement import claimed
from airflow_gpu_provider.scaling.state.demand import DemandLease, list_demand


class PoolAccess:
    """One pool, as one process reaches it.

    Args:
        holder: The name to show as the lock's holder: dag/run/task/try, host and pid.
        report: Takes one line immediately: that it waits for the lock. All others are in the outcome.
        clock: The time that all processes that change the pool use. Default: the API server's.
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
        return self.platform.release(machines)

    def pods_on(self, nodes: Iterable[Node]) -> list[Pod]:
        return list_pods_on(self.api, nodes, at_once=self.at_once)

    def _taken(self, groups: Iterable[Group], now: datetime) -> Collection[str]:
        return claimed(self.pool, groups, list_demand(self.api), now) if self.pool.manage == "scale" else ()

    def budget(self, key: DemandKey, nodes: int, limit: float, listed: ListPrices | None) -> Budget:
        """Return how long a run's money lasts for so many nodes, by what all of its tries have cost.

        Demand that a person has extended beyond its money keeps its budget: that has been decided. So has the limit
        been that a person has raised. `listed` is what `Platform.list_prices` returned.

        Raises:
            PriceUnknown, BudgetExceeded: That is not known, or what is left is too little (`budget_of`).
        """
        leases = list_demand(self.api, self.pool.name)
        own = next((lease for lease in leases if lease.key == key), None)
        given = own.budget if own else None
        if own and given and own.extended and own.live(self.clock.now()):
            return given
        raised = given.raised if given else ""
        if given and raised:
            limit = max(limit, given.limit)
        groups, there = self.platform.observe(), list_nodes(self.api, self.pool.node_selector)
        now = self.clock.now()
        self.ledger.machines(groups, there, now)  # a machine that runs has cost what it did until it was last recorded
        spent = self.ledger.bill(key, self.platform, now).total_cost
        wanted = nodes + sum(lease.nodes for lease in leases if lease.key != key and lease.live(now))
        ready = max(len(there), sum(each.state != "terminating" for group in groups for each in group.machines))
        are_there = ready >= min(wanted, self.pool.max_nodes)
        found = budget_of(self.pool, limit, nodes=nodes, spent=spent, at=now, listed=listed, are_there=are_there)
        return replace(found, raised=raised)

    def within_budget(self, lease: DemandLease) -> DemandLease:
        """Return changed demand with what its budget is by now: until its nodes came nothing was spent, or little."""
        if lease.budget is None or lease.extended or not lease.nodes:
            return lease
        found = self.budget(lease.key, lease.nodes, lease.budget.limit, self.platform.list_prices())
        return replace(lease, budget=found, until=min(lease.until, found.stops_by))

"""How long a run's money lasts: by its ledger, its demand, and what nodes cost."""

from __future__ import annotations

from dataclasses import replace

from airflow_gpu_provider.cluster.demand_key import DemandKey
from airflow_gpu_provider.cluster.nodes import list_nodes
from airflow_gpu_provider.pools.prices import ListPrices
from airflow_gpu_provider.pools.run_budget import Budget, budget_of
from airflow_gpu_provider.scaling.apply.pool_access import PoolAccess
from airflow_gpu_provider.scaling.state.demand import DemandLease, list_demand


def budget(on: PoolAccess, key: DemandKey, nodes: int, limit: float, listed: ListPrices | None) -> Budget:
    """Return how long a run's money lasts for so many nodes, by what all of its tries have cost.

    Demand that a person has extended beyond its money keeps its budget: that has been decided. So has the limit been
    that a person has raised. `listed` is what `Platform.list_prices` returned.

    Raises:
        PriceUnknown, BudgetExceeded: That is not known, or nothing is left.
        GpuError: An error of the cluster or the cloud.
    """
    own = next((lease for lease in list_demand(on.api, on.pool.name) if lease.key == key), None)
    if own is not None and own.budget is not None and own.extended and own.live(on.clock.now()):
        return own.budget
    raised = own.budget.raised if own is not None and own.budget is not None else ""
    if own is not None and own.budget is not None and raised:
        limit = max(limit, own.budget.limit)
    groups, there = on.platform.observe(), list_nodes(on.api, on.pool.node_selector)
    now = on.clock.now()
    on.ledger.machines(groups, there, now)  # a machine that runs has cost what it did until it was last recorded
    spent = on.ledger.bill(key, on.platform, now).total_cost
    return replace(budget_of(on.pool, limit, nodes=nodes, spent=spent, at=now, listed=listed), raised=raised)


def within_budget(on: PoolAccess, lease: DemandLease) -> DemandLease:
    """Return changed demand with what its budget is by now: until its nodes came nothing was spent, or little."""
    if lease.budget is None or lease.extended or not lease.nodes:
        return lease
    found = budget(on, lease.key, lease.nodes, lease.budget.limit, on.platform.list_prices())
    return replace(lease, budget=found, until=min(lease.until, found.stops_by))

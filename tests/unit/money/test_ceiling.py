"""A max_cost is a ceiling: whoever looks, and whoever does not look any more, the nodes of a run cost no more.

Drawn nights, by the bill and the cloud's times: tries with machines of any kind that may come, one after another in
each of the nodes' places. What docs/cost.md names as causes of more does not happen in them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool, GkeGpuPool
from airflow_gpu_provider.errors import BudgetExceeded
from airflow_gpu_provider.money.bill import bill
from airflow_gpu_provider.money.budget import Budget, budget_of
from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.money.run_usage import MachineUse, RunUsage, union
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.decide.decisions import switch_time
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.state.demand import DemandLease

AT = datetime(2026, 3, 1, 2, 0, 7, tzinfo=UTC)
DAY = timedelta(hours=24)
KEY = DemandKey(installation="tests", dag_id="nightly", run_id="run", pool="train")
PRICES = {"spot-a": 0.9, "spot-b": 1.1, "on-demand": 3.0}
EKS = EksGpuPool(
    name="train",
    cluster_name="ml",
    region="us-west-2",
    instance_types=("g6.xlarge",),
    max_nodes=8,
    price_per_hour="list",
)
GKE = GkeGpuPool(
    name="train",
    project_id="ml-project",
    location="us-central1",
    cluster_name="ml",
    machine_types=["g2-standard-8"],
    max_nodes=8,
    price_per_hour="list",
)


@dataclass
class Night:
    """The machines that came, and what the run's record says: as the ledger keeps it."""

    pool: GpuPool
    listed: ListPrices
    machines: list[MachineUse] = field(default_factory=list)
    wanted: list[tuple[datetime, datetime]] = field(default_factory=list)

    def spent(self, now: datetime) -> float:
        """Return what a look at that time finds: a machine that runs has cost what it did until then."""
        run = RunUsage(key=KEY, wanted=union(self.wanted), worked={}, prices=(self.listed,))
        so_far = [replace(one, seen_until=min(one.seen_until, now)) for one in self.machines if one.launched_at < now]
        total = bill(self.pool, KEY, [run], so_far).total_cost
        assert total is not None
        return total

    def runs(self, group: str, since: datetime, until: datetime) -> None:
        if since < until:
            name = f"i-{len(self.machines)}"
            self.machines.append(MachineUse(id=name, group=group, launched_at=since, seen_until=until))


def unwatched_end(pool: GpuPool, until: datetime, launched_at: datetime, late: timedelta) -> datetime:
    """Return when the cloud ends a machine of which nobody looks after, `late` as its documents allow."""
    if isinstance(pool, GkeGpuPool):
        assert pool.node_lifetime is not None
        return launched_at + pool.node_lifetime
    lease = DemandLease(key=KEY, nodes=1, until=until, created_at=AT)
    at = switch_time(PoolSnapshot(now=AT, pool=pool, leases=(lease,), nodes=(), pods=(), groups=()))
    assert at is not None
    return at + late


@given(
    seed=st.integers(0, 2**32),
    pool=st.sampled_from([EKS, replace(EKS, max_runtime=timedelta(hours=1)), GKE, replace(GKE, max_runtime=DAY / 12)]),
    scale=st.sampled_from([0.1, 1.0, 40.0]),
    limit=st.floats(0.5, 300),
    nodes=st.integers(1, 3),
)
def test_a_run_never_costs_more_than_its_limit(
    seed: int, pool: GpuPool, scale: float, limit: float, nodes: int
) -> None:
    """Each try of Ensure reckons anew; after any of them nobody may look any more, and only the cloud ends machines."""
    listed = ListPrices(at=AT, per_hour={name: price * scale for name, price in PRICES.items()})
    night, now, is_watched, draw = Night(pool, listed), AT, True, Random(seed)
    while is_watched and len(night.wanted) < 4:
        try:
            budget = budget_of(pool, limit, nodes=nodes, spent=night.spent(now), at=now, listed=listed)
        except BudgetExceeded:
            break
        until = min(budget.stops_by, now + pool.max_runtime)
        is_watched = draw.random() < 0.5
        end = until if not is_watched or draw.random() < 0.5 else now + draw.random() * (until - now)
        late = timedelta(seconds=draw.randint(0, 7 * 60))  # a switch that stays, an action's delay
        for _ in range(nodes):
            since, is_last = now + timedelta(seconds=draw.randint(0, 600)), False
            while since < end and not is_last:  # spot machines are lost, and others come in their place
                is_last = draw.random() < 0.5
                group = draw.choice(sorted(PRICES))
                lost_at = min(end, since + timedelta(seconds=1 + draw.randint(0, 14400)))
                gone = end if is_watched else unwatched_end(pool, until, since, late)
                night.runs(group, since, gone if is_last else lost_at)
                since = lost_at
        night.wanted.append((now, end))
        now = max([end, *(each.seen_until for each in night.machines)]) + timedelta(seconds=draw.randint(0, 3600))
    assert night.spent(now + 200 * DAY) <= limit + 1e-6


@given(limit=st.floats(0.5, 300), spent=st.floats(0, 200), nodes=st.integers(1, 8), share=st.floats(0, 1))
@example(limit=52.01, spent=0.0, nodes=1, share=0.8)
def test_the_line_of_any_share_is_not_after_the_end(limit: float, spent: float, nodes: int, share: float) -> None:
    spec: Any = replace(EKS, price_per_hour=120.0)
    try:
        budget = budget_of(spec, limit, nodes=nodes, spent=spent, at=AT, listed=None)
    except BudgetExceeded:
        return
    assert budget.used_at(share) <= budget.ends_at
    assert Budget.parse(budget.dump()) == budget

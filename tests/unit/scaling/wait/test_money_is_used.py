"""Ensure waits for nodes, and the money of its run is used before they are there."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.errors import BudgetExceeded, NodesNotReady
from airflow_gpu_provider.money.budget import Budget
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.switch import TIME_TO_STOP
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait

AT = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
KEY = DemandKey(installation="tests", dag_id="nightly", run_id="run", pool="train")
POOL = EksGpuPool(name="train", cluster_name="ml", region="us-west-2", instance_types=("g6.xlarge",), max_nodes=2)
BUDGET = Budget(limit=60, spent=0.0, at=AT, per_hour=120.0, reserve=50.0)
WAIT = NodesWait(key=KEY, wait_for="ready", started=AT, deadline=AT + HOUR, nodes=1)


def seen(now: datetime, lease: DemandLease) -> PoolSnapshot:
    return PoolSnapshot(now=now, pool=POOL, leases=(lease,), nodes=(), pods=(), groups=())


def test_its_error_is_the_money() -> None:
    lease = DemandLease(key=KEY, nodes=1, until=BUDGET.stops_by, created_at=AT, budget=BUDGET)
    assert BUDGET.ends_at == AT + timedelta(minutes=5)
    assert WAIT.step(seen(BUDGET.ends_at - timedelta(seconds=1), lease)).error is None
    for late in (timedelta(0), TIME_TO_STOP, HOUR):
        with pytest.raises(BudgetExceeded, match=r"is used at the latest by now.* with 50.00 USD kept back"):
            WAIT.step(seen(BUDGET.ends_at + late, lease))
        with pytest.raises(BudgetExceeded):  # nodes come with pods, of which none is made
            replace(WAIT, wait_for="groups").step(seen(BUDGET.ends_at + late, lease))


def test_of_one_whose_time_ends_first_it_is_the_time() -> None:
    lease = DemandLease(key=KEY, nodes=1, until=AT, created_at=AT - HOUR, budget=replace(BUDGET, at=AT + HOUR))
    with pytest.raises(NodesNotReady, match="has expired"):
        WAIT.step(seen(AT + 2 * HOUR, lease))

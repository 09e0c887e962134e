"""Demand as tests write it, to the real API server and to the fake one, and what both must do with it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.state.demand_leases import delete_demand, list_demand, write_demand

NOW = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)


def lease(pool: str, run_id: str = "scheduled__2026-03-01T02:00:00+00:00", **fields: Any) -> DemandLease:
    key = DemandKey(installation="airflow-1", dag_id="nightly_training", run_id=run_id, pool=pool)
    return DemandLease(**{"key": key, "nodes": 1, "until": NOW + timedelta(hours=6), "created_at": NOW, **fields})


def unlocked() -> None:
    """Stand for the check of a lock that nobody else wants."""


def check_that_demand_is_kept(api: Any, pool: str) -> None:
    """Demand is written, replaced, listed and given up."""
    first, second = lease(pool), lease(pool, "manual__2", created_at=NOW - timedelta(minutes=1))
    write_demand(api, first, check=unlocked)
    write_demand(api, second, check=unlocked)
    write_demand(api, lease(pool, nodes=3), check=unlocked)

    assert list_demand(api, pool) == (second, lease(pool, nodes=3))
    assert list_demand(api, f"{pool}-other") == ()
    assert delete_demand(api, first.key)
    assert not delete_demand(api, first.key)
    assert list_demand(api, pool) == (second,)
    delete_demand(api, second.key)

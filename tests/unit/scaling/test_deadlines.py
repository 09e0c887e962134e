"""Who ends what, and when: docs/demand.md has it as a table."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.money.budget import Budget
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.switch import TIME_TO_STOP, unwatched_for
from airflow_gpu_provider.scaling import deadlines
from airflow_gpu_provider.scaling.deadlines import TrainingBounds
from tests.unit.money.test_ceiling import AT, EKS, GKE

HOUR, ROUNDED = timedelta(hours=1), timedelta(seconds=1)
NAMED = KubernetesGpuPool(name="rack", nodes=["n1"], max_runtime=6 * HOUR)

hours = st.floats(0.01, 48).map(lambda number: number * HOUR)
budgets = st.none() | hours.map(lambda lasts: Budget(limit=lasts / HOUR, spent=0.0, at=AT, per_hour=1.0))


@given(
    pool=st.sampled_from([EKS, GKE, NAMED]),
    max_runtime=hours,
    budget=budgets,
    dagrun_timeout=st.none() | hours,
    execution_timeout=st.none() | hours,
    later=hours,
)
def test_whoever_ends_last_nothing_is_paid_after_that(
    pool: GpuPool,
    max_runtime: timedelta,
    budget: Budget | None,
    dagrun_timeout: timedelta | None,
    execution_timeout: timedelta | None,
    later: timedelta,
) -> None:
    """The pods end with the demand, before their machines; these within what a budget keeps back."""
    pool = replace(pool, max_runtime=max_runtime)
    run_ends_at = deadlines.run_ends_by(AT, dagrun_timeout) if dagrun_timeout else None
    until = deadlines.within_budget(deadlines.demand_until(pool, AT, run_ends_at=run_ends_at), budget)
    pods_end = deadlines.pods_end_by(until, budget, is_extended=False)
    timeout = AT + execution_timeout if execution_timeout else None
    bounds = TrainingBounds(max_runtime=max_runtime, demand=pods_end, execution_timeout=timeout)
    assert bounds.of_pod(AT) <= bounds.of_pod(AT + later) <= pods_end <= until + ROUNDED <= AT + max_runtime + ROUNDED
    assert replace(bounds, of_try=bounds.of_pod(AT)).of_pod(AT + later) == bounds.of_pod(AT)
    assert until <= pods_end + TIME_TO_STOP
    if pool.is_switched_off:
        latest = deadlines.switch_at(until) + timedelta(minutes=7)  # a switch that may stay, and AWS' delay
        assert pods_end < deadlines.switch_at(until)
        assert latest <= until - TIME_TO_STOP + unwatched_for(pool)
    elif pool.node_lifetime is not None:
        assert pods_end < AT + pool.node_lifetime, "a machine is launched after the demand is written"


@given(
    pool=st.sampled_from([EKS, GKE, NAMED, replace(EKS, min_nodes=1), replace(GKE, min_nodes=1)]),
    max_runtime=hours,
    execution_timeout=st.none() | hours,
    created=st.floats(0, 1),
    waits=st.floats(0, 0.5).map(lambda number: number * HOUR),
    by=st.just(timedelta(0)) | hours,
)
def test_with_airflow_dead_no_pod_outlives_its_demand_for_long(
    pool: GpuPool,
    max_runtime: timedelta,
    execution_timeout: timedelta | None,
    created: float,
    waits: timedelta,
    by: timedelta,
) -> None:
    """By the switch's margin; on GKE for its machine's life; elsewhere for as long as it has waited for its node."""
    pool = replace(pool, max_runtime=max_runtime)
    until = AT + max_runtime
    created_at = AT + created * (max_runtime - timedelta(seconds=10))
    started_at = launched_at = created_at + waits
    bounds = TrainingBounds(
        max_runtime=max_runtime,
        demand=until,
        execution_timeout=AT + execution_timeout if execution_timeout else None,
        is_ended_by_cloud=pool.ends_by_itself,
        machine_lifetime=pool.node_lifetime,
    )
    limit, extended = bounds.kubelet_limit(created_at), until + by
    of_cloud = deadlines.switch_at(extended) if pool.is_switched_off and pool.ends_by_itself else None
    on_node = deadlines.pod_ends_at(
        started_at,
        kubelet_since=started_at,
        active_deadline=limit,
        launched_at=launched_at if pool.ends_by_itself else None,
        machine_lifetime=pool.node_lifetime,
    )
    ends_at = min(filter(None, (of_cloud, on_node)))
    if of_cloud is not None:
        assert ends_at <= extended + timedelta(minutes=16)
    elif pool.ends_by_itself:
        assert pool.node_lifetime is not None
        assert ends_at <= launched_at + pool.node_lifetime
    else:
        assert ends_at <= until + waits
    is_reached = replace(bounds, demand=extended).of_pod(created_at) <= ends_at
    assert is_reached or deadlines.is_cut_short(ends_at, until, extended) or (execution_timeout and by)


@given(max_runtime=hours, budget=budgets.filter(bool), since=hours, lasts=hours)
def test_more_money_never_shortens_demand_nor_exceeds_max_runtime(
    max_runtime: timedelta, budget: Any, since: timedelta, lasts: timedelta
) -> None:
    pool = replace(EKS, max_runtime=max_runtime)
    until = deadlines.with_more_money(pool, AT - since, AT + lasts, budget)
    assert AT + lasts <= until <= max(AT + lasts, deadlines.unextended_last(pool, AT - since))


def test_a_pod_without_demand_of_its_own_counts_again_and_again() -> None:
    pool = replace(NAMED, max_runtime=2 * HOUR)
    assert deadlines.unleased_until(pool, AT, AT, None) == AT + 2 * HOUR
    assert deadlines.unleased_until(pool, AT + 3 * HOUR, AT, None) == AT + 4 * HOUR
    assert deadlines.unleased_until(pool, AT, AT, HOUR) == AT + HOUR

"""extend_demand: keeps a DAG run's demand for a pool beyond the end that its Ensure set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from airflow_gpu_provider.cluster.demand_key import DemandKey
from airflow_gpu_provider.errors import DemandNotExtended
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.state.demand import DemandLease, list_demand

_LONGEST = timedelta(days=365)


@dataclass(frozen=True, kw_only=True)
class Extension:
    """Demand of one block of a run, extended from `before` to `until`; `said` is what was done for it."""

    key: DemandKey
    before: datetime
    until: datetime
    said: tuple[str, ...] = ()


def extend_demand(
    reconciler: Reconciler,
    *,
    dag_id: str,
    run_id: str,
    by: timedelta,
    run_is_over: Callable[[DemandKey], bool],
    reason: str = "",
    block: str | None = None,
) -> list[Extension]:
    """Keep a run's nodes longer: extend its demand, and with it the groups' switches, by `by`.

    Running pods keep the deadline that they were created with: Kubernetes allows a pod's activeDeadlineSeconds to be
    lowered, but not raised.

    Args:
        reconciler: The pool's.
        dag_id, run_id: The run whose demand is extended, of any Airflow installation.
        by: How much longer.
        run_is_over: Asks this Airflow whether a run has ended.
        reason: Why; required to go beyond the pool's max_runtime, counted from the demand's start. It is kept with the
            demand, and `airflow gpu status` shows it.
        block: The `gpu_nodes` block, "" for one without a name. Default: all of the run's blocks on this pool.

    Raises:
        DemandNotExtended: The run is over, or wants no nodes of the pool now, or `by` is not positive, or it would
            exceed max_runtime without a reason. Nothing is changed.
    """
    pool, run = reconciler.pool, f"{dag_id}/{run_id}"
    if by <= timedelta(0):
        hours_more = f"{by.total_seconds() / 3600:g} hours more"
        raise DemandNotExtended(
            f"Pool {pool.name}: {hours_more} for {run}.", "Give more than zero hours.", pool=pool.name
        )
    now = reconciler.clock.now()
    keys = [
        lease.key
        for lease in list_demand(reconciler.api, pool.name)
        if (lease.key.dag_id, lease.key.run_id) == (dag_id, run_id)
        and lease.live(now)
        and block in (None, lease.key.block)
    ]
    if not keys:
        raise _wants_nothing(pool, run)
    if run_is_over(keys[0]):
        raise DemandNotExtended(
            f"Run {run} is over; nothing was extended.", "Name a run that is still running.", run=run
        )
    outcome = reconciler.extend(keys, by, reason=reason.strip(), check=partial(_check_bound, pool, by, reason))
    after = [lease for lease in outcome.snapshot.leases if lease.key in keys]
    if not after:
        raise _wants_nothing(pool, run)
    return [Extension(key=each.key, before=each.until - by, until=each.until, said=outcome.said) for each in after]


def hours(given: float | str) -> timedelta:
    """Read how much longer.

    Raises:
        DemandNotExtended: It is not a valid number of hours, or more than a year.
    """
    try:
        more = timedelta(hours=float(given))
    except (TypeError, ValueError, OverflowError) as error:
        raise DemandNotExtended(f"hours={given!r} is not a number of hours.", "Give one, like 2 or 0.5.") from error
    if more > _LONGEST:
        raise DemandNotExtended(f"hours={given!r} is more than a year.", "Give fewer.")
    return more


def _check_bound(pool: GpuPool, by: timedelta, reason: str, lease: DemandLease) -> None:
    if lease.ends_by_budget and not reason.strip():
        limit = lease.budget.limit if lease.budget else 0.0
        raise DemandNotExtended(
            f"Pool {pool.name}: {lease.key} ends when its max_cost of {limit:g} {pool.currency} is used, at"
            f" {lease.until:%Y-%m-%d %H:%MZ}, and {by} more cost more.",
            "Give a reason, which is kept with the demand.",
            pool=pool.name,
        )
    last = lease.created_at + pool.max_runtime
    if lease.until + by > last and not reason.strip():
        raise DemandNotExtended(
            f"Pool {pool.name}: {by} more for {lease.key} is until {lease.until + by:%Y-%m-%d %H:%MZ}, and its"
            f" max_runtime of {pool.max_runtime} ends at {last:%Y-%m-%d %H:%MZ}.",
            "Give a reason, which is kept with the demand, or fewer hours.",
            pool=pool.name,
        )


def _wants_nothing(pool: GpuPool, run: str) -> DemandNotExtended:
    what = f"Pool {pool.name}: {run} wants no nodes now, so there is nothing to extend."
    return DemandNotExtended(what, "See `airflow gpu status` for the runs that do.", pool=pool.name, run=run)

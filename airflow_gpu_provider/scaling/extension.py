"""extend_demand: what a DAG run wants of a pool lasts longer than its Ensure has said."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_gpu_provider.cluster.demand import DemandKey, DemandLease, list_demand
from airflow_gpu_provider.errors import DemandNotExtended
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.reconcile import Reconciler


@dataclass(frozen=True, kw_only=True)
class Extension:
    """Demand of one block of a run that lasts until `until`, and did until `before`; `said` is what was done for it."""

    key: DemandKey
    before: datetime
    until: datetime
    said: tuple[str, ...] = ()


def extend_demand(
    reconciler: Reconciler, *, dag_id: str, run_id: str, by: timedelta, reason: str = "", block: str | None = None
) -> list[Extension]:
    """Have a run's nodes stay longer: its demand, and with it the groups' switches, last `by` more.

    Pods that run already keep the deadline that they were created with: Kubernetes lets activeDeadlineSeconds of a pod
    be lowered, and not raised.

    Args:
        reconciler: The pool's.
        dag_id, run_id: Whose demand, of whichever installation of Airflow.
        by: How much longer.
        reason: Why; needed to go beyond the pool's max_runtime, counted from the demand's begin. It is kept with the
            demand, and `airflow gpu status` tells it.
        block: The `gpu_nodes` block, "" for one without a name. Default: all of the run's on this pool.

    Raises:
        DemandNotExtended: The run wants no nodes of the pool now, or `by` is not more than nothing, or it would be
            beyond max_runtime and there is no reason.
    """
    pool, run = reconciler.pool, f"{dag_id}/{run_id}"
    if by <= timedelta(0):
        raise DemandNotExtended(f"Pool {pool.name}: {by} more for {run}.", "Give more than zero hours.", pool=pool.name)
    now = reconciler.clock.now()
    leases = [
        lease
        for lease in list_demand(reconciler.api, pool.name)
        if (lease.key.dag_id, lease.key.run_id) == (dag_id, run_id)
        and lease.live(now)
        and block in (None, lease.key.block)
    ]
    if not leases:
        what = f"Pool {pool.name}: {run} wants no nodes now, so there is nothing to extend."
        raise DemandNotExtended(what, "See `airflow gpu status` for the runs that do.", pool=pool.name, run=run)
    for lease in leases:
        _check_bound(pool, lease, by, reason)
    return [_extend(reconciler, lease, by, reason) for lease in leases]


def _check_bound(pool: GpuPool, lease: DemandLease, by: timedelta, reason: str) -> None:
    last = lease.created_at + pool.max_runtime
    if lease.until + by > last and not reason.strip():
        raise DemandNotExtended(
            f"Pool {pool.name}: {by} more for {lease.key} is until {lease.until + by:%Y-%m-%d %H:%MZ}, and its"
            f" max_runtime of {pool.max_runtime} ends at {last:%Y-%m-%d %H:%MZ}.",
            "Give a reason, which is kept with the demand, or fewer hours.",
            pool=pool.name,
        )


def _extend(reconciler: Reconciler, lease: DemandLease, by: timedelta, reason: str) -> Extension:
    outcome = reconciler.extend(lease.key, by, reason=reason.strip())
    after = next((each for each in outcome.snapshot.leases if each.key == lease.key), None)
    if after is None or after.until <= lease.until:
        what = f"Pool {reconciler.pool.name}: {lease.key} has given up its nodes meanwhile."
        raise DemandNotExtended(what, "Nothing is left to extend.", pool=reconciler.pool.name)
    return Extension(key=lease.key, before=lease.until, until=after.until, said=outcome.said)

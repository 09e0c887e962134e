"""extend_demand: keeps a DAG run's demand for a pool beyond the end that its Ensure set, by more time or more money."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial

from airflow_gpu_provider.errors import DemandNotExtended
from airflow_gpu_provider.money.budget import Budget
from airflow_gpu_provider.money.prices import in_words
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.deadlines import unextended_last, with_more_money
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.end.reach import check_reaches, extend_jobs
from airflow_gpu_provider.scaling.state.demand import DemandLease, reason_of
from airflow_gpu_provider.scaling.state.demand_leases import list_demand
from airflow_gpu_provider.untrusted import one_line

NO_REASON = "no reason given"
"""The value of a demand's `extended` if it was extended within max_runtime without a reason."""

Longer = Callable[[DemandLease], DemandLease]


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """Whose runs may have more, and how much: given by who wrote the operator, not by who asks.

    Attributes:
        dag_ids: Globs of the DAGs whose runs may be extended.
        most: How much longer a block's demand may last than without any extension. None: the pool's max_runtime.
    """

    dag_ids: Sequence[str] = ("*",)
    most: timedelta | None = None

    def check_dag(self, pool: GpuPool, dag_id: str) -> None:
        """Raise DemandNotExtended for a run of a DAG that is not among `dag_ids`."""
        if not any(fnmatchcase(dag_id, glob) for glob in self.dag_ids):
            raise DemandNotExtended(
                f"Pool {pool.name}: runs of the DAG {one_line(dag_id)!r} may not be extended here.",
                f"The operator's dag_ids allows {', '.join(self.dag_ids)}.",
                pool=pool.name,
            )

    def check_time(self, pool: GpuPool, lease: DemandLease, more: timedelta) -> None:
        """Raise DemandNotExtended where demand would last longer than allowed, its earlier extensions included."""
        most = pool.max_runtime if self.most is None else self.most
        added = lease.until - lease.unextended_until if lease.unextended_until else timedelta(0)
        if more + added > most:
            before = f", and {_in_hours(added)} were added before" if added else ""
            raise DemandNotExtended(
                f"Pool {pool.name}: {_in_hours(more)} more for {lease.key} are not allowed{before}: all extensions of a"
                f" run together may add {_in_hours(most)}.",
                f"Ask for at most {_in_hours(max(most - added, timedelta(0)))}. The limit is the operator's most_hours;"
                " `airflow gpu extend` gives up to a year.",
                pool=pool.name,
            )


def _in_hours(time: timedelta) -> str:
    return f"{time.total_seconds() / 3600:g} hours"


@dataclass(frozen=True, kw_only=True)
class Extension:
    """Demand of one block of a run, extended from `before` to `until`; `log_lines` is what was done for it.

    `max_cost` is what it may cost; None where there is no limit.
    """

    key: DemandKey
    before: datetime
    until: datetime
    max_cost: float | None = None
    log_lines: tuple[str, ...] = ()


def extend_demand(
    reconciler: Reconciler,
    *,
    dag_id: str,
    run_id: str,
    run_is_over: Callable[[DemandKey], bool],
    allowance: Allowance,
    by: timedelta | None = None,
    max_cost: float | None = None,
    reason: str = "",
    block: str | None = None,
    pods_may_end: bool = False,
) -> list[Extension]:
    """Keep a run's nodes longer, and with them the groups' switches: by `by`, or until `max_cost` is used.

    What runs goes on: its task reads the demand again when it was to end. Only a pod that its kubelet or its machine
    ends by then cannot: Kubernetes lets nobody raise a pod's activeDeadlineSeconds.

    Args:
        dag_id, run_id: The run whose demand is extended, of any Airflow installation.
        allowance: Which runs may be extended, and by how much.
        max_cost: What each of its blocks may cost instead of what its DAG says, over all tries; more than now. It
            does not exceed the pool's max_runtime.
        reason: Why; required for more money, and to go beyond the pool's max_runtime, counted from the demand's start.
            Its first LONGEST_REASON characters are kept with the demand, and `airflow gpu status` shows them.
        block: The `gpu_nodes` block, "" for one without a name. Default: all of the run's blocks on this pool.
        pods_may_end: Extend it although a running pod ends before, for what starts later. Default: do not.

    Raises:
        DemandNotExtended: The run is over, or wants no nodes of the pool now, or what is asked for is no more than it
            has, or not allowed, or lacks a reason, or a running pod ends before. Nothing is changed.
        PriceUnknown, BudgetExceeded: How long `max_cost` lasts is not known, or it is used. Nothing is changed.
    """
    pool, run, reason = reconciler.pool, one_line(f"{dag_id}/{run_id}"), reason_of(reason)
    allowance.check_dag(pool, dag_id)
    if (by is None) == (max_cost is None):
        given = "neither hours nor max_cost is" if by is None else "both hours and max_cost are"
        raise DemandNotExtended(f"Pool {pool.name}: {given} given for {run}.", "Give one of the two.", pool=pool.name)
    now = reconciler.clock.now()
    leases = [
        lease
        for lease in list_demand(reconciler.api, pool.name)
        if (lease.key.dag_id, lease.key.run_id) == (dag_id, run_id)
        and lease.live(now)
        and block in (None, lease.key.block)
    ]
    if not leases:
        raise _wants_nothing(pool, f"{run}/{block}" if block else run)
    if run_is_over(leases[0].key):
        raise DemandNotExtended(
            f"Run {run} is over; nothing was extended.", "Name a run that is still running.", run=run
        )
    if by is not None:
        longer = _by_time(pool, by, reason, allowance)
    else:
        longer = _by_money(reconciler, leases, max_cost or 0.0, reason, allowance)
    before: dict[DemandKey, datetime] = {}

    def extended(lease: DemandLease, seen: PoolSnapshot) -> DemandLease:
        before[lease.key] = lease.until
        after = replace(longer(lease), unextended_until=lease.unextended_until or lease.until)
        if not pods_may_end:
            check_reaches(seen, lease, after)
        return after

    outcome = reconciler.extend([lease.key for lease in leases], extended, partial(extend_jobs, reconciler.api))
    after = [lease for lease in outcome.snapshot.leases if lease.key in before]
    if not after:
        raise _wants_nothing(pool, run)
    return [
        Extension(
            key=each.key,
            before=before[each.key],
            until=each.until,
            max_cost=each.budget.limit if each.budget else None,
            log_lines=outcome.log_lines,
        )
        for each in after
    ]


def hours(given: float | str) -> timedelta:
    """Read how much longer; raises DemandNotExtended where it is no number of hours."""
    try:
        return timedelta(hours=float(given))
    except (TypeError, ValueError, OverflowError) as error:
        raise DemandNotExtended(f"hours={given!r:.40} is not a number of hours.", "Give one, like 2 or 0.5.") from error


def amount(given: float | str) -> float:
    """Read what a run may cost; raises DemandNotExtended where it is no number above 0."""
    try:
        found = float(given)
    except (TypeError, ValueError, OverflowError):
        found = 0.0
    if not 0 < found < float("inf"):
        raise DemandNotExtended(
            f"max_cost={given!r:.40}.", "Give a number above 0, in the currency of the pool's prices."
        )
    return found


def _by_time(pool: GpuPool, by: timedelta, reason: str, allowance: Allowance) -> Longer:
    def longer(lease: DemandLease) -> DemandLease:
        if by <= timedelta(0):
            hours_more = f"{by.total_seconds() / 3600:g} hours more"
            raise DemandNotExtended(
                f"Pool {pool.name}: {hours_more} for {lease.key}.", "Give more than zero hours.", pool=pool.name
            )
        allowance.check_time(pool, lease, by)
        _check_bound(pool, by, reason, lease)
        return replace(lease, until=lease.until + by, extended=reason or lease.extended or NO_REASON)

    return longer


def _check_bound(pool: GpuPool, by: timedelta, reason: str, lease: DemandLease) -> None:
    if lease.ends_by_budget and not reason:
        limit = lease.budget.limit if lease.budget else 0.0
        raise DemandNotExtended(
            f"Pool {pool.name}: {lease.key} ends when its max_cost of {limit:g} {pool.currency} is used, at"
            f" {lease.until:%Y-%m-%d %H:%MZ}, and {by} more cost more.",
            "Give a reason, which is kept with the demand; or give it more money.",
            pool=pool.name,
        )
    last = unextended_last(pool, lease.created_at)
    if lease.until + by > last and not reason:
        raise DemandNotExtended(
            f"Pool {pool.name}: {by} more for {lease.key} is until {lease.until + by:%Y-%m-%d %H:%MZ}, and its"
            f" max_runtime of {pool.max_runtime} ends at {last:%Y-%m-%d %H:%MZ}.",
            "Give a reason, which is kept with the demand, or fewer hours.",
            pool=pool.name,
        )


def _by_money(
    reconciler: Reconciler, leases: list[DemandLease], max_cost: float, reason: str, allowance: Allowance
) -> Longer:
    """Return what gives demand more money: how long it lasts is asked before the pool's lock is taken."""
    pool, listed = reconciler.pool, reconciler.platform.list_prices()
    for lease in leases:
        _check_money(pool, max_cost, reason, lease)
    budgets: dict[DemandKey, Budget] = {
        lease.key: replace(reconciler.budget(lease.key, lease.nodes, max_cost, listed=listed), raised=reason)
        for lease in leases
    }

    def longer(lease: DemandLease) -> DemandLease:
        _check_money(pool, max_cost, reason, lease)
        budget = budgets[lease.key]
        until = with_more_money(pool, lease.created_at, lease.until, budget)
        allowance.check_time(pool, lease, until - lease.until)
        return replace(lease, budget=budget, until=until)

    return longer


def _check_money(pool: GpuPool, max_cost: float, reason: str, lease: DemandLease) -> None:
    whose = f"Pool {pool.name}: {lease.key}"
    if lease.budget is None:
        raise DemandNotExtended(f"{whose} has no max_cost.", "Give hours instead.", pool=pool.name)
    limit = in_words(pool, lease.budget.limit)
    if lease.extended:
        what = f"{whose} may cost more than its max_cost of {limit} until {lease.until:%Y-%m-%d %H:%MZ}"
        raise DemandNotExtended(f"{what} ({lease.extended}).", "Give hours instead.", pool=pool.name)
    if max_cost <= lease.budget.limit:
        raise DemandNotExtended(
            f"{whose} has a max_cost of {limit}; {in_words(pool, max_cost)} is not more.",
            "Give what it may cost in all, over all of its tries.",
            pool=pool.name,
        )
    if not reason:
        raise DemandNotExtended(
            f"{whose} may cost {limit}, and {in_words(pool, max_cost)} is more than its DAG says.",
            "Give a reason, which is kept with the demand.",
            pool=pool.name,
        )


def _wants_nothing(pool: GpuPool, run: str) -> DemandNotExtended:
    what = f"Pool {pool.name}: {run} wants no nodes now, so there is nothing to extend."
    return DemandNotExtended(what, "See `airflow gpu status` for the runs that do.", pool=pool.name, run=run)

"""When a training ends, and who ends it: the rule that docs/demand.md has as a table. Pure.

Demand ends first; its pods end then, or with its money; the cloud's switch follows. All times are the cluster's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_gpu_provider.money.budget import Budget
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.switch import SWITCH_MARGIN

_ROUNDED = timedelta(seconds=1)  # times in a Lease are whole seconds

_TIMED_OUT_WITHIN = timedelta(minutes=1)  # by the scheduler, once dagrun_timeout is over

JOB_AFTER_PODS = timedelta(minutes=2)
"""How long after its pods' deadline a gang's Job has its own, which deletes pods and their logs."""

DEFERRED_AFTER = timedelta(minutes=5)
"""How long after a training's deadline Airflow ends its deferral, where no trigger has."""


# -- demand --------------------------------------------------------------------------------------------------


def run_ends_by(started_at: datetime, dagrun_timeout: timedelta) -> datetime:
    """Return when the scheduler has ended a run and skipped what has not ended, teardowns too; by Airflow's clock."""
    return started_at + dagrun_timeout + _TIMED_OUT_WITHIN


def demand_until(
    pool: GpuPool, now: datetime, *, give_up_after: timedelta | None = None, run_ends_at: datetime | None = None
) -> datetime:
    """Return until when demand that is new lasts, without a budget; `give_up_after` as for `GpuPool.demand_lasts`."""
    return _at_latest(now + pool.demand_lasts(give_up_after), run_ends_at)


def restarted_until(
    pool: GpuPool, now: datetime, budget: Budget | None, *, run_ends_at: datetime | None = None
) -> datetime:
    """Return until when demand lasts whose time begins again, as its nodes come late."""
    return _at_latest(now + longest_runtime(pool, budget), run_ends_at)


def longest_runtime(pool: GpuPool, budget: Budget | None) -> timedelta:
    """Return how long a run may have its nodes: for max_runtime, or as long as its money lasts."""
    return pool.max_runtime if budget is None else min(pool.max_runtime, budget.lasts)


def within_budget(until: datetime, budget: Budget | None) -> datetime:
    """Return when demand ends that would last until then, and whose money may be used before."""
    return until if budget is None else min(until, budget.stops_by)


def unextended_last(pool: GpuPool, demand_since: datetime) -> datetime:
    """Return the last end that demand may have without a person's reason."""
    return demand_since + pool.max_runtime


def with_more_money(pool: GpuPool, demand_since: datetime, until: datetime, budget: Budget) -> datetime:
    """Return until when demand lasts that has a larger budget: never shorter than it did."""
    return max(until, min(budget.stops_by, unextended_last(pool, demand_since)))


def ends_by_budget(until: datetime, budget: Budget | None, *, is_extended: bool) -> bool:
    """Return whether demand ends because its money is used by then, rather than its time."""
    return budget is not None and not is_extended and until >= budget.ends_at - _ROUNDED


def pods_end_by(until: datetime, budget: Budget | None, *, is_extended: bool) -> datetime:
    """Return when the pods of demand have to end: at the end of its time, or of its money, which is before that."""
    if budget is not None and ends_by_budget(until, budget, is_extended=is_extended):
        return budget.ends_at
    return until


def unleased_until(pool: GpuPool, now: datetime, since: datetime, active_deadline: timedelta | None) -> datetime:
    """Return when a pod that belongs to no Lease stops being demand.

    It has what its kubelet gives it, max_runtime at most; and the same again whenever that has passed.

    Args:
        since: Its start, or until then its creation.
        active_deadline: Its activeDeadlineSeconds; None for none.
    """
    longest = pool.max_runtime
    period = max(min(active_deadline or longest, longest), timedelta(seconds=1))
    periods = max(now - since, timedelta(0)) // period + 1
    return since + periods * period


# -- the cloud's own switch ----------------------------------------------------------------------------------


def switch_at(until: datetime) -> datetime:
    """Return when the cloud has to end the machines by itself whose last use ends then."""
    return next_minute(until + SWITCH_MARGIN)


def next_minute(at: datetime) -> datetime:
    """Return that moment, or the next whole minute: clouds have no finer resolution."""
    minute = at.replace(second=0, microsecond=0)
    return at if at == minute else minute + timedelta(minutes=1)


# -- a training ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TrainingBounds:
    """What bounds the pods of one try of a task; the first of it ends them.

    Attributes:
        max_runtime: The pool's; counts from a pod's creation if the run has no demand.
        queue_time: How long a pod may wait in a Kueue queue besides that.
        demand: When the run's demand has its pods end (`pods_end_by`), which an extension moves; None without demand.
        execution_timeout: When the task's is over; None without one.
        of_try: The deadline of the try's first pod, for those that follow it where there is no demand.
        is_ended_by_cloud: Whether machines end by themselves after the demand, and the pods with them.
        machine_lifetime: How long a machine lives at most; None for without a limit.
    """

    max_runtime: timedelta
    queue_time: timedelta = timedelta(0)
    demand: datetime | None = None
    execution_timeout: datetime | None = None
    of_try: datetime | None = None
    is_ended_by_cloud: bool = False
    machine_lifetime: timedelta | None = None

    def of_pod(self, created_at: datetime) -> datetime:
        """Return when a pod created at that time must have ended."""
        if self.demand is not None:
            return _at_latest(self.demand, self.execution_timeout)
        return _at_latest(created_at + self.max_runtime + self.queue_time, self.execution_timeout, self.of_try)

    def queued_until(self, created_at: datetime) -> datetime | None:
        """Return when Kueue must have admitted what was created at that time; None where its time there counts.

        That leaves it its max_runtime, or half of what the run has left.
        """
        if not self.queue_time:
            return None
        until = self.of_pod(created_at)
        return max(until - self.max_runtime, created_at + (until - created_at) / 2)

    def lasts(self, now: datetime) -> timedelta:
        """Return for how long a pod that is created now may run, once its queue has admitted it."""
        left = self.of_pod(now) - now
        return min(left, self.max_runtime) if self.queue_time else left

    def kubelet_limit(self, now: datetime) -> timedelta | None:
        """Return the activeDeadlineSeconds of a pod that is created now; None for none.

        Kubernetes lets nobody raise them. So they are the end of the demand only where nothing else ends the pod once
        Airflow is dead; elsewhere what no extension moves.
        """
        if self.demand is None or not self.is_ended_by_cloud:
            return self.lasts(now)
        timeout = None if self.execution_timeout is None else self.execution_timeout - now
        return min(filter(None, (timeout, self.machine_lifetime)), default=None)


def job_seconds(training: timedelta) -> int:
    """Return the activeDeadlineSeconds of the Job of a gang that may run for so long."""
    return math.ceil((training + JOB_AFTER_PODS).total_seconds())


def extended_deadline(deadline: datetime, demand: datetime, execution_timeout: datetime | None) -> datetime | None:
    """Return until when a training may go on whose deadline has come; None where it may not.

    Args:
        demand: When its demand has pods end by now.
        execution_timeout: When the task's is over, which no extension moves.
    """
    later = _at_latest(demand, execution_timeout)
    return later if later > deadline else None


# -- what an extension reaches -------------------------------------------------------------------------------


def pod_ends_at(
    now: datetime,
    *,
    kubelet_since: datetime | None,
    active_deadline: timedelta | None,
    launched_at: datetime | None,
    machine_lifetime: timedelta | None,
) -> datetime | None:
    """Return when a pod ends on its node, whatever its demand and its task say; None where nothing there ends it.

    Args:
        kubelet_since: Since when its kubelet counts `active_deadline`; None where it has not begun.
        launched_at: When its machine was launched; None where that is not known.
    """
    by_kubelet = None if active_deadline is None else (kubelet_since or now) + active_deadline
    by_cloud = None if launched_at is None or machine_lifetime is None else launched_at + machine_lifetime
    return min(filter(None, (by_kubelet, by_cloud)), default=None)


def is_cut_short(ends_at: datetime | None, before: datetime, after: datetime) -> bool:
    """Return whether a pod that ends then cannot have what an extension gives from `before` to `after`.

    One that ends sooner has an end that its author chose, or a machine that goes: no extension is meant for it.
    """
    return ends_at is not None and before - _ROUNDED <= ends_at < after - _ROUNDED


def deferred_for(deadline: datetime, now: datetime) -> timedelta:
    """Return Airflow's timeout of a deferral that waits for a training until its deadline."""
    return max(deadline - now, timedelta(0)) + DEFERRED_AFTER


def _at_latest(at: datetime, *bounds: datetime | None) -> datetime:
    return min((at, *filter(None, bounds)))

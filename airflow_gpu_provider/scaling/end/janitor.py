"""The janitor: finds what no live run wants of a pool, with what it has cost, and removes it.

Airflow says whether a run is over, and only for runs of this installation; demand of other installations lasts until
its `until`. The janitor removes things as scale-down does: through the Reconciler, under the pool's lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, Literal

from airflow_gpu_provider.clouds.base import Report
from airflow_gpu_provider.cluster.model.code_record import CodeRecord
from airflow_gpu_provider.cluster.model.pool_pod import Pod
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.money.amounts import UNKNOWN, cost_since, price_source, total
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.decide.decision_notes import why_released
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.end.other_pools import OtherPools
from airflow_gpu_provider.scaling.state.demand import DemandLease

Kind = Literal["lease", "pod", "code", "machine", "size"]

RunIsOver = Callable[[DemandKey], bool]
"""Asks Airflow whether a DAG run of this installation has ended, or no longer exists."""

_POLL_SECONDS = 3.0
_RUN_IS_OVER = "the run that it was for is over"


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """One thing that no run wants.

    Attributes:
        kind: "size": machines that a group requests and that have not come. "code": the ConfigMaps of a task's try.
        age_seconds: Since its creation; None if unknown.
        cost: What a machine has cost so far, by the spec's price; None if unknown, or if nothing is paid.
    """

    pool: str
    kind: Kind
    name: str
    why: str
    age_seconds: float | None = None
    cost: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a check of a pool found.

    Attributes:
        leftovers: Everything that no run wants, for the report.
        leases: Demand of ended runs, as it was when Airflow was asked.
        pods: Pods of such runs.
        code: The code of their tasks.
        unreadable: What of Leases cannot be read, and what it is taken for.
    """

    leftovers: tuple[Leftover, ...] = ()
    leases: tuple[DemandLease, ...] = ()
    pods: tuple[Pod, ...] = ()
    code: tuple[CodeRecord, ...] = ()
    unreadable: tuple[str, ...] = ()


def look(
    snapshot: PoolSnapshot, installation: str, run_is_over: RunIsOver, code: Iterable[CodeRecord] = ()
) -> Findings:
    """Return what no run wants in a pool that was read before this call, so that Airflow's answer is newer.

    A run that is cleared after that writes new demand, which `reap` recognizes, and each try has code of its own.

    Args:
        code: What `Reconciler.code` has returned.
    """

    @cache
    def is_over(key: DemandKey) -> bool:
        return bool(installation) and key.installation == installation and run_is_over(key)

    leases = tuple(lease for lease in snapshot.leases if is_over(lease.key))
    gone = {lease.key.hash for lease in leases}
    left = (pod for pod in snapshot.pods if pod.run and not pod.deleting)
    pods = tuple(pod for pod in left if pod.run in gone or (pod.owner is not None and is_over(pod.owner)))
    leaving = {str(pod) for pod in pods}
    left_code = tuple(each for each in code if each.key.hash in gone or is_over(each.key))
    without = replace(
        snapshot,
        leases=tuple(lease for lease in snapshot.leases if lease not in leases),
        pods=tuple(pod for pod in snapshot.pods if str(pod) not in leaving and pod.run not in gone),
    )
    leftovers = (
        *(_lease(snapshot, lease) for lease in leases),
        *(_pod(snapshot, pod) for pod in pods),
        *(_code(snapshot, each) for each in left_code),
        *unwanted(snapshot, without),
    )
    unreadable = tuple(str(each) for lease in snapshot.leases for each in lease.unreadable)
    return Findings(leftovers=leftovers, leases=leases, pods=pods, code=left_code, unreadable=unreadable)


def reap(
    reconciler: Reconciler, installation: str, run_is_over: RunIsOver, *, timeout: timedelta, report: Report
) -> tuple[Findings, tuple[Leftover, ...]]:
    """Remove what no run wants, and wait for it; return what was found at first, and what is left after `timeout`.

    Terminating pods hold their machine for their grace period. What is left after the timeout is for the next check.
    """
    until = time.monotonic() + timeout.total_seconds()
    first: Findings | None = None
    logged: frozenset[str] = frozenset()
    while True:
        snapshot = reconciler.snapshot()
        found = look(snapshot, installation, run_is_over, reconciler.code())
        first = first or found
        is_done = not found.leftovers and not any(_is_ending(pod, snapshot.now) for pod in snapshot.pods)
        lines = [*found.unreadable, *(() if is_done else _remove(reconciler, found))]
        for line in dict.fromkeys(lines):
            if line not in logged:
                report(line)
        logged |= set(lines)
        if is_done:
            return first, ()
        if time.monotonic() > until:
            return first, found.leftovers
        time.sleep(_POLL_SECONDS)


@dataclass(frozen=True, kw_only=True)
class Reaped:
    """The outcome for one pool.

    Attributes:
        currency: That of the pool's prices, and so of all costs.
        price_source: Whose prices these are: `cost.price_source`.
        where: The account, the cluster and the identity used for them.
        named: The caller named it; else it was found in the cluster of a pool that the caller named.
        left: What is still there; all of it in a dry run.
        error: Why the check or the removal stopped.
    """

    pool: str
    currency: str
    price_source: str = ""
    where: str = ""
    named: bool = True
    leftovers: tuple[Leftover, ...] = ()
    left: tuple[Leftover, ...] = ()
    error: GpuError | None = None

    @property
    def cost(self) -> float | None:
        return total(each.cost for each in self.leftovers if each.kind == "machine")

    def to_json(self) -> dict[str, Any]:
        return {
            "pool": self.pool,
            "where": self.where,
            "named": self.named,
            "leftovers": [each.to_json() for each in self.leftovers],
            "left": [each.to_json() for each in self.left],
            "cost": UNKNOWN if self.cost is None else self.cost,
            "currency": self.currency,
            "price_source": self.price_source or None,
            "error": str(self.error or ""),
        }


def reap_pools(
    pools: Sequence[GpuPool],
    connect: Callable[[GpuPool], Reconciler],
    *,
    installation: str,
    run_is_over: RunIsOver,
    dry_run: bool,
    others: bool,
    timeout: timedelta,
    report: Report,
) -> tuple[Reaped, ...]:
    """Check each pool and, unless it is a dry run, remove what no run wants; an error on one does not stop the rest.

    Args:
        connect: Connects to one, as `open_pool` does.
        installation: This Airflow's id; empty: it never wanted nodes, and no run is its own.
        others: Also check pools not in the list that this package has used in the same clusters.
        timeout: How long the removal of each pool's machines and pods may take.
        report: Takes lines; the account and the cluster are named before anything is removed.
    """
    todo = [(pool, True) for pool in dict.fromkeys(pools)]
    found_too = OtherPools(pools)
    done: list[Reaped] = []
    where = ""
    for pool, named in todo:  # grows while it is iterated
        result = Reaped(pool=pool.name, currency=pool.currency, price_source=price_source(pool), named=named)
        try:
            reconciler = connect(pool)
            result = replace(result, where=reconciler.platform.account())
            if result.where != where:
                report(f"looking for leftovers in {(where := result.where)}")
            if others:
                todo += [(other, False) for other in found_too.beside(pool, reconciler.api)]
            if dry_run:
                found = look(reconciler.snapshot(), installation, run_is_over, reconciler.code())
                left = found.leftovers
                for line in found.unreadable:
                    report(f"pool {pool.name}: {line}")
            else:
                report_of = partial(_report_of, pool.name, report)
                found, left = reap(reconciler, installation, run_is_over, timeout=timeout, report=report_of)
            result = replace(result, leftovers=found.leftovers, left=left)
        except GpuError as error:
            report(f"pool {pool.name}: {type(error).__name__}: {error}")
            result = replace(result, error=error)
        done.append(result)
    for line in found_too.left_out():
        report(line)
    return tuple(done)


def _report_of(pool: str, report: Report, line: str) -> None:
    report(f"pool {pool}: {line}")


def _is_ending(pod: Pod, now: datetime) -> bool:
    """Return True if a run's pod was deleted and still holds its node."""
    return pod.run is not None and pod.deleting and pod.holds_node(now)


def _remove(reconciler: Reconciler, found: Findings) -> Iterator[str]:
    """Yield what was done. A run that wants nodes again, with new demand, keeps that and its pods."""
    kept = set()
    for lease in found.leases:
        if reconciler.delete_demand_if_unchanged(lease):
            yield f"released the demand of {lease.key}, which is over"
            yield from (f"deleted leftover gang {name}" for name in reconciler.delete_gangs(lease))
        else:
            kept.add(lease.key.hash)
            yield f"kept the demand of {lease.key}: it has changed meanwhile"
    for name in reconciler.delete_pods(pod for pod in found.pods if pod.run not in kept):
        yield f"deleted leftover pod {name}"
    for name in reconciler.delete_code(each for each in found.code if each.key.hash not in kept):
        yield f"deleted leftover code {name}"
    yield from reconciler.reconcile().log_lines


def _lease(snapshot: PoolSnapshot, lease: DemandLease) -> Leftover:
    nodes = f"{lease.nodes} node{'s' * (lease.nodes != 1)}"
    return Leftover(
        pool=snapshot.pool.name,
        kind="lease",
        name=lease.key.lease_name,
        why=f"{lease.key} is over, and wanted {nodes} until {lease.until:%Y-%m-%d %H:%M}Z",
        age_seconds=_age(snapshot, lease.created_at),
    )


def _pod(snapshot: PoolSnapshot, pod: Pod) -> Leftover:
    age = _age(snapshot, pod.created_at)
    return Leftover(pool=snapshot.pool.name, kind="pod", name=str(pod), why=_RUN_IS_OVER, age_seconds=age)


def _code(snapshot: PoolSnapshot, code: CodeRecord) -> Leftover:
    age = _age(snapshot, code.created_at)
    return Leftover(pool=snapshot.pool.name, kind="code", name=str(code), why=_RUN_IS_OVER, age_seconds=age)


def unwanted(snapshot: PoolSnapshot, without: PoolSnapshot) -> Iterator[Leftover]:
    """Yield what scale-down would remove if the pool were as in `without`: no demand and no pods of runs that are over.

    Times and costs are of `snapshot`, the pool as it is.
    """
    decision = decide(without)
    pool = snapshot.pool.name
    by_id = {each.machine.id: each for each in without.supply}
    for machine in (*decision.release, *decision.later):
        each = by_id[machine.id]
        cost = cost_since(snapshot.price_of(machine.group), each.since, snapshot.now)
        age = _age(snapshot, each.since)
        yield Leftover(pool=pool, kind="machine", name=str(each), why=why_released(each), age_seconds=age, cost=cost)
    for group in snapshot.groups:
        if group.name in decision.shrink:
            why = f"{group.unfilled} machines are requested and have not come"
            yield Leftover(pool=pool, kind="size", name=group.name, why=why)


def _age(snapshot: PoolSnapshot, since: datetime | None) -> float | None:
    return None if since is None else round((snapshot.now - since).total_seconds(), 1)

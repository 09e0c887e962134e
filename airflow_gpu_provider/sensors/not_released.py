"""What a scale-down that failed reports: what still runs, what the run has cost, and when the cloud ends it."""

from __future__ import annotations

from collections.abc import Callable

from airflow_gpu_provider.clouds.base import Group
from airflow_gpu_provider.cluster.api.clock import SystemClock
from airflow_gpu_provider.errors import GpuError, PoolNotReleased
from airflow_gpu_provider.money.amounts import cost_in_words, cost_since, price_source
from airflow_gpu_provider.money.bill import Bill
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.wait.retry import NO_ACCESS


def not_released(
    error: GpuError, key: DemandKey, opened: Callable[[], Reconciler], *, on_bill: Callable[[Bill], object]
) -> PoolNotReleased:
    """Return the error that ends a scale-down, with the state of the pool; it is tried again whatever caused it.

    Where the cluster cannot be read, the state is what the cloud shows; where `opened`, which returns the connected
    pool, fails too, it is said to be unknown. `on_bill` takes the run's bill so far, where it can be read.
    """
    names_pool = isinstance(error, PoolNotReleased)  # its words begin with the pool's name
    what = error.what if names_pool else f"Pool {key.pool} is not released: {error.what}"
    details = {**error.details, "pool": key.pool, "cause": type(error).__name__}
    try:
        reconciler = opened()
        snapshot, source = _read(reconciler)
    except GpuError as unread:
        why = "" if unread.what == error.what else f" ({unread.what})"
        unknown = f"The remaining machines could not be read{why}; if a switch is set, it terminates them."
        return PoolNotReleased(f"{what} {unknown}", _fix(error), **details)
    machines = {group.name: [machine.id for machine in group.machines] for group in snapshot.groups if group.machines}
    sentences = [*source, _machines(snapshot), _cost(reconciler, key, snapshot, on_bill), *_switches(snapshot)]
    return PoolNotReleased(f"{what} {' '.join(sentences)}", _fix(error), **{**details, "machines": machines})


def _fix(error: GpuError) -> str:
    """Return what to do; a task that is not tried again is to be cleared after it."""
    return f"{error.fix} Then clear this task.".strip() if isinstance(error, NO_ACCESS) else error.fix


def _read(reconciler: Reconciler) -> tuple[PoolSnapshot, list[str]]:
    """Return the pool, or only its groups where the cluster cannot be read, and what is to be said of that."""
    try:
        return reconciler.snapshot(), []
    except GpuError as unread:
        groups = reconciler.platform.observe()
        now = SystemClock().now()  # the cluster does not tell its own
        seen = PoolSnapshot(now=now, pool=reconciler.pool, leases=(), nodes=(), pods=(), groups=groups)
        because = unread.what.rstrip(".")
        return seen, [f"This is what the cloud shows; who wants the machines could not be read ({because})."]


def _machines(snapshot: PoolSnapshot) -> str:
    there = [_of(snapshot, group) for group in snapshot.groups if group.machines or group.desired]
    return f"Still there: {'; '.join(there)}." if there else "No machines are left."


def _of(snapshot: PoolSnapshot, group: Group) -> str:
    names = ", ".join(machine.id for machine in group.machines) or "no machine yet"
    price = snapshot.price_of(group.name)
    by = price_source(snapshot.pool)
    each = "" if price is None else f", {cost_in_words(price, snapshot.pool.currency, by=by)} an hour each"
    return f"{names} ({group.candidate}{each}) in group {group.name} of size {group.desired}"


def _cost(reconciler: Reconciler, key: DemandKey, snapshot: PoolSnapshot, on_bill: Callable[[Bill], object]) -> str:
    """Return what the run has cost; where the cluster does not tell, what those machines have that are still there."""
    try:
        bill = reconciler.ledger.bill(key, reconciler.platform, reconciler.clock.now())
    except GpuError:
        return _cost_since_launch(snapshot)
    on_bill(bill)
    so_far = cost_in_words(bill.total_cost, bill.currency, at_least=bool(bill.at_least), by=bill.price_source)
    cost = f"Cost of the run's nodes so far: {so_far}"
    return f"{cost}; the true cost may be higher: {bill.at_least.rstrip('.')}." if bill.at_least else f"{cost}."


def _cost_since_launch(snapshot: PoolSnapshot) -> str:
    machines = [machine for group in snapshot.groups for machine in group.machines]
    if not machines:
        return "What the run has cost is kept in the cluster."
    costs = [cost_since(snapshot.price_of(machine.group), machine.launched_at, snapshot.now) for machine in machines]
    known = [cost for cost in costs if cost is not None]
    cost = sum(known) if known else None
    pool = snapshot.pool
    since_launch = cost_in_words(cost, pool.currency, at_least=len(known) < len(costs), by=price_source(pool))
    return f"Cost of these machines since their launch: {since_launch}."


def _switches(snapshot: PoolSnapshot) -> list[str]:
    sentences = []
    for group in snapshot.groups:
        if not group.machines or not group.has_switch:
            continue
        if group.switch_at is None:
            sentences.append(
                f"No switch is set for {group.name}: end its machines in the cloud's console if this repeats."
            )
        else:
            sentences.append(f"The switch of {group.name} ends them at {group.switch_at:%Y-%m-%d %H:%MZ}.")
    return sentences

"""What a scale-down that failed tells: what still runs, what the run has cost so far, and when the cloud ends it."""

from __future__ import annotations

from collections.abc import Callable

from airflow_gpu_provider.cluster.demand import DemandKey
from airflow_gpu_provider.errors import GpuError, PoolNotReleased
from airflow_gpu_provider.platforms.base import Group
from airflow_gpu_provider.scaling.cost import in_words
from airflow_gpu_provider.scaling.reconcile import Reconciler
from airflow_gpu_provider.scaling.snapshot import PoolSnapshot


def not_released(error: GpuError, key: DemandKey, opened: Callable[[], Reconciler]) -> PoolNotReleased:
    """Return the error that ends a scale-down, with the state of the pool; it is tried again whatever caused it.

    Args:
        error: What the last call met, or what did not go in time.
        key: The run's demand.
        opened: Returns the pool, connected. What it, or the pool, does not tell is said to be unknown.
    """
    is_told = isinstance(error, PoolNotReleased)  # its words begin with the pool's name
    what = error.what if is_told else f"Pool {key.pool} is not released: {error.what}"
    details = {**error.details, "pool": key.pool, "cause": type(error).__name__}
    try:
        reconciler = opened()
        snapshot = reconciler.snapshot()
    except GpuError as unread:
        unknown = f"What still runs could not be read ({unread.what}); where a switch is set, it ends it."
        return PoolNotReleased(f"{what} {unknown}", error.fix, **details)
    machines = {group.name: [machine.id for machine in group.machines] for group in snapshot.groups if group.machines}
    said = [_machines(snapshot), _cost(reconciler, key), *_switches(snapshot)]
    return PoolNotReleased(f"{what} {' '.join(said)}", error.fix, **{**details, "machines": machines})


def _machines(snapshot: PoolSnapshot) -> str:
    """Return what is still there, with what it costs."""
    there = [f"{_of(snapshot, group)} in group {group.name}" for group in snapshot.groups if group.machines]
    return f"Still there: {'; '.join(there)}." if there else "No machine is there any more."


def _of(snapshot: PoolSnapshot, group: Group) -> str:
    names = ", ".join(machine.id for machine in group.machines)
    price = snapshot.pool.price(group.candidate.market)
    each = "" if price is None else f", {in_words(price)} an hour each"
    return f"{names} ({group.candidate}{each})"


def _cost(reconciler: Reconciler, key: DemandKey) -> str:
    try:
        cost = reconciler.ledger.bill(key, reconciler.platform, reconciler.clock.now()).total_cost
    except GpuError:
        cost = None
    return f"Cost of the run's nodes so far: {in_words(cost)}."


def _switches(snapshot: PoolSnapshot) -> list[str]:
    """Return when the cloud itself ends what is there."""
    said = []
    for group in snapshot.groups:
        if not group.machines or not group.has_switch:
            continue
        if group.switch_at is None:
            said.append(f"No switch is set for {group.name}: end its machines in the cloud's console if this repeats.")
        else:
            said.append(f"The switch of {group.name} ends them at {group.switch_at:%Y-%m-%d %H:%MZ}.")
    return said

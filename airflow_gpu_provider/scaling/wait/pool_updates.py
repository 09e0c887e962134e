"""What a pool's loop reports to pods that wait for a node, once for all of them.

A machine that Ensure got may be lost before its pod is placed, and a stock-out may happen after Ensure is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_gpu_provider.errors import DemandLockBusy, GpuError, NoCapacity
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.apply.admission import GangUpdate
from airflow_gpu_provider.scaling.apply.writes import Outcome
from airflow_gpu_provider.scaling.decide.shortage import (
    how_to_have_more,
    missing_for_pods,
    reported_by_autoscaler,
)
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.wait import pool_loop
from airflow_gpu_provider.scaling.wait.pool_loop import Subscription, subscribe, subscriptions

_log = logging.getLogger(__name__)

EVERY = 15.0
EVERY_FOR_GANGS = 7.5
FIRST = 5.0
"""Seconds to the first check: a pod that only waits for the scheduler has its node by then."""

EMPTY_FOR = timedelta(minutes=1)
"""By then the scheduler has tried a node that became empty; it backs off for at most 10 s (podMaxBackoffSeconds)."""


@dataclass(frozen=True, kw_only=True)
class PoolUpdates:
    """What a reconcile reports to the tasks that wait for a node.

    Attributes:
        no_capacity: Why no machine is available now, if that is a stock-out or a quota.
        to_widen: What to do for more machines, by what keeps them from coming; empty while nothing is known.
        empty_nodes: The usable nodes that for `EMPTY_FOR` have run nothing but DaemonSet and static pods.
        gangs: Why each suspended gang of the pool waits, as text, by its Job's "namespace/name"; empty while nothing
            waits for gangs.
        gang_errors: What the cluster refused about gangs; see `gang_error`.
    """

    log_lines: tuple[str, ...] = ()
    no_capacity: NoCapacity | None = None
    to_widen: str = ""
    empty_nodes: frozenset[str] = frozenset()
    gangs: Mapping[str, str] = field(default_factory=dict)
    gang_errors: Mapping[str, GpuError] = field(default_factory=dict)

    def gang_error(self, job: str) -> GpuError | None:
        """Return why a gang, by its Job's "namespace/name", cannot be admitted, such as a missing permission."""
        return self.gang_errors.get(job) or self.gang_errors.get("")


Listener = Callable[[PoolUpdates], None]


def keep(pool: GpuPool, owner: str, listener: Listener, *, admits: bool = False) -> None:
    """Have the pool reconciled until `leave`; `listener` gets the update of each reconcile, in the event loop.

    Call it in an event loop.

    Args:
        admits: It waits for a gang: each reconcile admits the pool's gangs whose nodes are free, the first reconcile at
            once.
    """
    pods = _pods(pool, owner)
    if pods is None:
        pods = _Pods()
        subscribe(pods, pool, owner)
    pods.listeners.append(listener)
    if admits:
        pods.admitting.append(listener)
        pods.admits = True
        pods.hurry()


async def leave(pool: GpuPool, owner: str, listener: Listener) -> None:
    """Undo `keep`; no error if it was not called. A reconcile in progress finishes, and its update is dropped."""
    pods = _pods(pool, owner)
    if pods is None or listener not in pods.listeners:
        return
    pods.listeners.remove(listener)
    pods.admitting = [each for each in pods.admitting if each != listener]
    pods.admits = bool(pods.admitting)
    if not pods.listeners:
        await pool_loop.leave(pods, pool, owner)


def _pods(pool: GpuPool, owner: str) -> _Pods | None:
    return next((each for each in subscriptions(pool, owner) if isinstance(each, _Pods)), None)


class _Pods(Subscription):
    """The one subscription of all pods that wait for a pool."""

    def __init__(self) -> None:
        super().__init__(self._pause, first=min(FIRST, EVERY), is_eager=False, every=EVERY)
        self._started: datetime | None = None
        self._empty_since: dict[str, datetime] = {}
        self._gangs = GangUpdate()
        self.listeners: list[Listener] = []
        self.admitting: list[Listener] = []

    def _pause(self) -> float:
        return min(EVERY, EVERY_FOR_GANGS) if self.admits else EVERY

    def notify(self, outcome: Outcome | Exception, log_lines: Iterable[str] = ()) -> None:
        super().notify(outcome)
        if isinstance(outcome, DemandLockBusy):
            return  # another process is reconciling the pool
        try:
            update = self._update_of(outcome)
        except GpuError as error:
            update = PoolUpdates(log_lines=(f"{type(error).__name__}: {error}",))
        except Exception as error:  # noqa: BLE001 - the pods' waits go on, and log why
            update = PoolUpdates(log_lines=(f"the pool could not be reconciled: {error!r}",))
        for listener in tuple(self.listeners):
            try:
                listener(update)
            except Exception:  # noqa: BLE001 - else it would end the pool's loop, and with it the updates of all others
                _log.exception("A pod that waits for a node could not take the news of its pool")

    def _update_of(self, outcome: Outcome | Exception) -> PoolUpdates:
        if isinstance(outcome, Exception):
            raise outcome
        if self._started is None:
            self._started = outcome.snapshot.now - timedelta(seconds=min(FIRST, EVERY))
        if outcome.gangs is not None:
            self._gangs = outcome.gangs
        return PoolUpdates(
            gangs=self._gangs.why,
            gang_errors=self._gangs.errors,
            log_lines=(*outcome.log_lines, *reported_by_autoscaler(outcome.snapshot, self._started)),
            no_capacity=missing_for_pods(outcome.snapshot, self._started),
            to_widen=how_to_have_more(outcome.snapshot, self._started),
            empty_nodes=self._empty_nodes(outcome.snapshot),
        )

    def _empty_nodes(self, snapshot: PoolSnapshot) -> frozenset[str]:
        in_use = {pod.node for pod in snapshot.pods if not pod.daemon and not pod.finished}
        empty = {node.name for node in snapshot.nodes if node.usable and node.name not in in_use}
        self._empty_since = {name: self._empty_since.get(name, snapshot.now) for name in empty}
        return frozenset(name for name, since in self._empty_since.items() if snapshot.now - since >= EMPTY_FOR)

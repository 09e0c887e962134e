"""What a pool's keeper reports to pods that wait for a node, once for all of them.

A machine that Ensure got may be lost before its pod is placed, and a stock-out may happen after Ensure is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_gpu_provider.errors import DemandLockBusy, GpuError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling import keeper
from airflow_gpu_provider.scaling.keeper import Subscription, subscribe, subscriptions
from airflow_gpu_provider.scaling.shortage import NoCapacity, missing_for_pods, said_of_autoscaler
from airflow_gpu_provider.scaling.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.writes import Outcome

EVERY = 15.0
FIRST = 5.0
"""Seconds to the first look: a pod that only waits for the scheduler has its node by then."""

EMPTY_FOR = timedelta(minutes=1)
"""By then the scheduler has tried a node that has become empty; it waits 10 s at most (podMaxBackoffSeconds)."""


@dataclass(frozen=True, kw_only=True)
class PoolNews:
    """What a reconcile reports to the tasks that wait for a node.

    Attributes:
        said: Lines for their logs.
        no_capacity: Why no machine is available now, where that is stock or a quota.
        empty_nodes: The usable nodes that for `EMPTY_FOR` have run nothing but DaemonSet and static pods.
    """

    said: tuple[str, ...] = ()
    no_capacity: NoCapacity | None = None
    empty_nodes: frozenset[str] = frozenset()


Listener = Callable[[PoolNews], None]


def keep(pool: GpuPool, owner: str, listener: Listener) -> None:
    """Have the pool reconciled until `leave`; `listener` gets the news of each reconcile, in the event loop.

    `owner` is who writes the groups' spec, "<installation>/<dag>". Call it in an event loop.
    """
    pods = _pods(pool, owner)
    if pods is None:
        pods = _Pods()
        subscribe(pods, pool, owner)
    pods.listeners.append(listener)


async def leave(pool: GpuPool, owner: str, listener: Listener) -> None:
    """Undo `keep`; no error if it was not called. A reconcile in progress finishes, and its news is dropped."""
    pods = _pods(pool, owner)
    if pods is None or listener not in pods.listeners:
        return
    pods.listeners.remove(listener)
    if not pods.listeners:
        await keeper.leave(pods, pool, owner)


def _pods(pool: GpuPool, owner: str) -> _Pods | None:
    return next((each for each in subscriptions(pool, owner) if isinstance(each, _Pods)), None)


class _Pods(Subscription):
    """The one subscription of all pods that wait for a pool."""

    def __init__(self) -> None:
        super().__init__(lambda: EVERY, first=min(FIRST, EVERY), is_eager=False)
        self._started: datetime | None = None
        self._empty_since: dict[str, datetime] = {}
        self.listeners: list[Listener] = []

    def tell(self, told: Outcome | Exception, said: Iterable[str] = ()) -> None:
        super().tell(told)
        if isinstance(told, DemandLockBusy):
            return  # another process is reconciling the pool
        try:
            news = self._news_of(told)
        except GpuError as error:
            news = PoolNews(said=(f"{type(error).__name__}: {error}",))
        except Exception as error:  # noqa: BLE001 - the pods' waits go on, and log why
            news = PoolNews(said=(f"the pool could not be reconciled: {error!r}",))
        for listener in tuple(self.listeners):
            listener(news)

    def _news_of(self, outcome: Outcome | Exception) -> PoolNews:
        if isinstance(outcome, Exception):
            raise outcome
        if self._started is None:
            self._started = outcome.snapshot.now - timedelta(seconds=min(FIRST, EVERY))
        return PoolNews(
            said=(*outcome.said, *said_of_autoscaler(outcome.snapshot, self._started)),
            no_capacity=missing_for_pods(outcome.snapshot, self._started),
            empty_nodes=self._empty_nodes(outcome.snapshot),
        )

    def _empty_nodes(self, snapshot: PoolSnapshot) -> frozenset[str]:
        in_use = {pod.node for pod in snapshot.pods if not pod.daemon and not pod.finished}
        empty = {node.name for node in snapshot.nodes if node.usable and node.name not in in_use}
        self._empty_since = {name: self._empty_since.get(name, snapshot.now) for name in empty}
        return frozenset(name for name, since in self._empty_since.items() if snapshot.now - since >= EMPTY_FOR)

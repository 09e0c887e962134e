"""What a pool's keeper reports to pods that wait for a node, once for all of them.

A machine that Ensure got may be lost before its pod is placed, and a stock-out may happen after Ensure is done.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from weakref import WeakKeyDictionary

from airflow_gpu_provider.errors import DemandLockBusy, GpuError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.keeper import Subscription, subscribed
from airflow_gpu_provider.scaling.reconcile import Outcome
from airflow_gpu_provider.scaling.shortage import NoCapacity, missing_for_pods, said_of_autoscaler
from airflow_gpu_provider.scaling.snapshot import PoolSnapshot

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

_tellers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[GpuPool, str], _Teller]] = WeakKeyDictionary()


def keep(pool: GpuPool, owner: str, listener: Listener) -> None:
    """Have the pool reconciled until `leave`; `listener` gets the news of each reconcile, in the event loop.

    `owner` is who writes the groups' spec, "<installation>/<dag>". Call it in an event loop.
    """
    tellers = _tellers.setdefault(asyncio.get_running_loop(), {})
    if (pool, owner) not in tellers:
        tellers[pool, owner] = _Teller(pool, owner)
    tellers[pool, owner].listeners.append(listener)


async def leave(pool: GpuPool, owner: str, listener: Listener) -> None:
    """Undo `keep`; no error if it was not called. A reconcile in progress finishes, and its news is dropped."""
    tellers = _tellers.get(asyncio.get_running_loop(), {})
    teller = tellers.get((pool, owner))
    if teller is None or listener not in teller.listeners:
        return
    teller.listeners.remove(listener)
    if not teller.listeners:
        del tellers[pool, owner]
        await teller.stop()


class _Teller:
    """The one subscription of all pods that wait for a pool."""

    def __init__(self, pool: GpuPool, owner: str) -> None:
        self._pool = pool
        self._owner = owner
        self._started: datetime | None = None
        self._empty_since: dict[str, datetime] = {}
        self.listeners: list[Listener] = []
        self._task = asyncio.create_task(
            self._run(), context=contextvars.Context()
        )  # it outlives the trigger that starts it

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        wanted = Subscription(lambda: EVERY, first=min(FIRST, EVERY), is_eager=False)
        async with subscribed(wanted, self._pool, self._owner) as looks:
            while True:
                try:
                    news = self._news(await looks.next())
                except DemandLockBusy:
                    continue  # another process is reconciling the pool
                except GpuError as error:
                    news = PoolNews(said=(f"{type(error).__name__}: {error}",))
                except Exception as error:  # noqa: BLE001 - the pods' waits go on, and log why
                    news = PoolNews(said=(f"the pool could not be reconciled: {error!r}",))
                for listener in tuple(self.listeners):
                    listener(news)

    def _news(self, outcome: Outcome) -> PoolNews:
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

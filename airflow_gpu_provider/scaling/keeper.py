"""Keeping a pool at its size while pods wait for it: one reconcile every 15 s, however many pods wait in this process.

A machine that Ensure got may be lost before its pod is placed, and a stock-out may happen after Ensure is done. The
reconcile is level-triggered, so it is enough to call it again.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from weakref import WeakKeyDictionary

from airflow_gpu_provider.cluster.threads import in_thread
from airflow_gpu_provider.errors import DemandLockBusy, GpuError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.open_pool import open_pool
from airflow_gpu_provider.scaling.reconcile import PATIENCE_IN_A_LOOP, Reconciler
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

_keepers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[GpuPool, str], _Keeper]] = WeakKeyDictionary()


def keep(pool: GpuPool, owner: str, listener: Listener) -> None:
    """Have the pool reconciled until `leave`; `listener` gets the news of each reconcile, in the event loop.

    `owner` is who writes the groups' spec, "<installation>/<dag>". Call it in an event loop.
    """
    keepers = _keepers.setdefault(asyncio.get_running_loop(), {})
    if (pool, owner) not in keepers:
        keepers[pool, owner] = _Keeper(pool, owner)
    keepers[pool, owner].listeners.append(listener)


async def leave(pool: GpuPool, owner: str, listener: Listener) -> None:
    """Undo `keep`; no error if it was not called. A reconcile in progress finishes, and its news is dropped."""
    keepers = _keepers.get(asyncio.get_running_loop(), {})
    keeper = keepers.get((pool, owner))
    if keeper is None or listener not in keeper.listeners:
        return
    keeper.listeners.remove(listener)
    if not keeper.listeners:
        del keepers[pool, owner]
        await keeper.stop()


class _Keeper:
    """The task that reconciles one pool."""

    def __init__(self, pool: GpuPool, owner: str) -> None:
        self._pool = pool
        self._owner = owner
        self._reconciler: Reconciler | None = None
        self._started: datetime | None = None
        self._empty_since: dict[str, datetime] = {}
        self.listeners: list[Listener] = []
        # An empty context: it outlives the trigger that starts it, and must not log into that one's task.
        self._task = asyncio.create_task(self._run(), context=contextvars.Context())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        pause = min(FIRST, EVERY)
        while True:
            await asyncio.sleep(pause)
            pause = EVERY
            try:
                # Shielded: a reconcile that is cut off between two writes would leave its lock behind.
                news = await asyncio.shield(in_thread(self._reconcile))
            except DemandLockBusy:
                continue  # another process is reconciling the pool
            except GpuError as error:
                news = PoolNews(said=(f"{type(error).__name__}: {error}",))
            except Exception as error:  # noqa: BLE001 - the wait continues without the keeper, and logs why
                news = PoolNews(said=(f"the pool could not be reconciled: {error!r}",))
            for listener in tuple(self.listeners):
                listener(news)

    def _reconcile(self) -> PoolNews:
        if self._reconciler is None:
            holder = f"waiting-pods@{socket.gethostname()}:{os.getpid()}"
            self._reconciler = open_pool(self._pool, owner=self._owner, holder=holder, say=lambda line: None)
            self._reconciler.patience = PATIENCE_IN_A_LOOP
        outcome = self._reconciler.reconcile()
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

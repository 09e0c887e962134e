"""One reconcile loop for each pool, owner and event loop, to which all who wait for the pool subscribe.

However many runs wait in a triggerer, cluster and cloud get the requests of one, and one takes the pool's lock. The
reconcile is level-triggered, so each outcome tells all of them what they wait for.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from weakref import WeakKeyDictionary

from airflow_gpu_provider.cluster.threads import in_thread
from airflow_gpu_provider.errors import ClusterUnreachable, DemandLockBusy, GpuError
from airflow_gpu_provider.platforms.base import Say
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.hard_to_get import Ask
from airflow_gpu_provider.scaling.open_pool import open_pool
from airflow_gpu_provider.scaling.pool_changes import report_changes
from airflow_gpu_provider.scaling.reconcile import PATIENCE_IN_A_LOOP, Reconciler
from airflow_gpu_provider.scaling.writes import Outcome

SOONEST = 2.0
"""Seconds between two looks at least, unless the nodes change or somebody asks for something."""

_MEETS_ALL = (ClusterUnreachable, DemandLockBusy)
"""What one of those who wait meets, the others would meet too, each after a request's or the lock's time."""

Write = Callable[[Reconciler], Outcome]


class Subscription:
    """What one of those who wait wants of the pool's keeper, and what it hears.

    Args:
        pause: Returns the seconds after which it wants the next look.
        first: Seconds to its first look; sooner if others want one.
        is_eager: It wants a look whenever a node changes, kubelets' reports every five minutes included.
        over_quota: Groups that had no quota left when it looked (`Reconciler.over_quota`); None if it did not look. A
            group grows where one who waits has seen room: where there is none, the cloud refuses.
        say: Takes lines for its log that do not wait for the outcome; called where it calls `next`.

    Attributes:
        admits: It waits for gangs, so that looks admit those whose nodes are free.
    """

    def __init__(
        self,
        pause: Callable[[], float],
        *,
        first: float = 0.0,
        is_eager: bool = True,
        over_quota: Collection[str] | None = None,
        say: Say = lambda line: None,
    ) -> None:
        self.pause = pause
        self.is_eager = is_eager
        self.over_quota = None if over_quota is None else frozenset(over_quota)
        self.admits = False
        self.asked: Ask | Write | None = None
        self.hurry: Callable[[], None] = lambda: None
        self._say = say
        self._begins = asyncio.get_running_loop().time() + first
        self._is_new = True
        self._said: list[str] = []
        self._told: Outcome | Exception | None = None
        self._news = asyncio.Event()

    def ask(self, what: Ask | Write) -> None:
        """Have something written at once, and again with the next looks until it succeeds; the newest is what counts.

        Until then `next` hears of nothing else. The others hear its outcome, too, but of its
        errors only those that they would meet as well.
        """
        self.asked = what
        self.hurry()

    async def next(self) -> Outcome:
        """Return what the newest look saw and did, once there is a new one.

        Raises:
            GpuError: It failed; the keeper tries again.
        """
        await self._news.wait()
        self._news.clear()
        said, self._said = self._said, []
        for line in said:
            self._say(line)
        if isinstance(self._told, Exception):
            raise self._told
        assert self._told is not None
        return self._told

    def notify(self, told: Outcome | Exception, said: Iterable[str] = ()) -> None:
        self._is_new = False
        self._told = told
        self._said += said
        self._news.set()

    def due(self, last: float) -> float:
        """Return when the next look is due, where the last one was at `last`, in seconds of the event loop."""
        return max(self._begins, last + SOONEST) if self._is_new else last + self.pause()


_keepers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[GpuPool, str], _Keeper]] = WeakKeyDictionary()


def subscribe(subscription: Subscription, pool: GpuPool, owner: str, reconciler: Reconciler | None = None) -> None:
    """Have the pool reconciled until `leave`, and the subscription told of each look that begins from now on.

    Args:
        subscription: What is wanted.
        pool: The rendered spec.
        owner: Who writes the groups' spec, "<installation>/<dag>".
        reconciler: The pool's, where the first to subscribe has it open already.
    """
    keepers = _keepers.setdefault(asyncio.get_running_loop(), {})
    if (pool, owner) not in keepers:
        keepers[pool, owner] = _Keeper(pool, owner, reconciler)
    keepers[pool, owner].add(subscription)


def subscriptions(pool: GpuPool, owner: str) -> tuple[Subscription, ...]:
    keeper = _keepers.get(asyncio.get_running_loop(), {}).get((pool, owner))
    return tuple(keeper.subscriptions) if keeper else ()


async def leave(subscription: Subscription, pool: GpuPool, owner: str) -> None:
    """Undo `subscribe`. The last to leave ends the keeper; a reconcile in progress finishes."""
    keepers = _keepers[asyncio.get_running_loop()]
    keeper = keepers[pool, owner]
    keeper.subscriptions.remove(subscription)
    if not keeper.subscriptions:
        del keepers[pool, owner]
        await keeper.stop()


class _Keeper:
    """The task that reconciles one pool."""

    def __init__(self, pool: GpuPool, owner: str, reconciler: Reconciler | None) -> None:
        self._pool = pool
        self._owner = owner
        self._reconciler = reconciler
        self.subscriptions: list[Subscription] = []
        self._said: list[str] = []
        self._last = float("-inf")
        self._is_due = False
        self._wake = asyncio.Event()
        # An empty context: it outlives the trigger that starts it, and must not log into that one's task.
        self._task = asyncio.create_task(self._run(), context=contextvars.Context())

    def add(self, subscription: Subscription) -> None:
        subscription.hurry = self._hurry
        self.subscriptions.append(subscription)
        self._is_due = self._is_due or subscription.asked is not None
        self._wake.set()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def _hurry(self) -> None:
        self._is_due = True
        self._wake.set()

    def _take_change(self) -> None:
        if any(each.is_eager for each in self.subscriptions):
            self._hurry()

    async def _run(self) -> None:
        changes: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._until_due()
                await self._look()
                if changes is None and self._reconciler is not None:
                    access = self._reconciler.platform.cluster_access
                    changes = tasks.create_task(report_changes(self._pool, access, self._take_change))
                await asyncio.sleep(0)  # those who were told step now: how long to pause is theirs to say

    async def _until_due(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_due:
            due = min((each.due(self._last) for each in self.subscriptions), default=float("inf"))
            if due <= loop.time():
                return
            self._wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), due - loop.time())

    async def _look(self) -> None:
        """Do what is asked for, or else reconcile; whatever is done tells of the pool to all who hear it begin."""
        self._is_due = False
        await self._look_once()
        self._last = asyncio.get_running_loop().time()

    async def _look_once(self) -> None:
        is_seen = False
        for write, asked in self._asked_for():
            told = await self._carry_out(write, asked)
            if isinstance(told, _MEETS_ALL):
                return
            is_seen |= not isinstance(told, Exception)
        if not is_seen and not all(each.asked for each in self.subscriptions):
            admits = any(each.admits for each in self.subscriptions)
            await self._carry_out(lambda reconciler: reconciler.reconcile(admits=admits), {})

    def _asked_for(self) -> Iterator[tuple[Write, Mapping[Subscription, Ask | Write]]]:
        """Yield what is to be written and who has asked for it, one after another: each may change what follows."""
        amending = {each: each.asked for each in self.subscriptions if isinstance(each.asked, Ask)}
        if amending:  # all at once: each takes the lock, and reads the pool
            yield lambda reconciler: reconciler.amend(*amending.values()), amending
        for each in tuple(self.subscriptions):
            write = each.asked
            if write is not None and not isinstance(write, Ask) and each in self.subscriptions:
                yield write, {each: write}

    async def _carry_out(self, write: Write, asked: Mapping[Subscription, Ask | Write]) -> Outcome | Exception:
        """Call `write`, which does what was asked, and tell of it; return what was told."""
        there = tuple(self.subscriptions)
        told: Outcome | Exception
        try:
            told = await in_thread(self._call, write)
        except Exception as error:  # noqa: BLE001 - each who waits judges it
            told = error
        for each in asked:
            if each.asked is asked[each] and not isinstance(told, GpuError):
                each.asked = None
        said, self._said = self._said, []
        is_theirs_alone = bool(asked) and isinstance(told, Exception)
        for each in there:
            if each in asked or isinstance(told, _MEETS_ALL) or not (each.asked or is_theirs_alone):
                each.notify(told, said)
        return told

    def _call(self, write: Write) -> Outcome:
        if self._reconciler is None:
            holder = f"{self._owner}, waiting at {socket.gethostname()}:{os.getpid()}"
            reconciler = open_pool(self._pool, owner=self._owner, holder=holder, say=self._said.append)
            reconciler.patience = PATIENCE_IN_A_LOOP
            self._reconciler = reconciler
        known = [each.over_quota for each in tuple(self.subscriptions) if each.over_quota is not None]
        self._reconciler.over_quota = frozenset[str].intersection(*known) if known else frozenset()
        return write(self._reconciler)

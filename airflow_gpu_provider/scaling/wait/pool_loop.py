"""One reconcile loop for each pool, owner and event loop, to which all waits for the pool subscribe; and these waits.

However many runs wait in a triggerer, cluster and cloud get the requests of one, and only one takes the pool's lock.
The loops of all pools check at the same moments, and share what they read of a cluster.
The reconcile is level-triggered, so each outcome serves all of them. `run_wait` drives a wait's steps for the blocking
operator (`asyncio.run`) and the trigger (in the triggerer's event loop), so that the two cannot drift apart.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Protocol
from weakref import WeakKeyDictionary

from airflow_gpu_provider.clouds.base import Report
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.clock import SystemClock
from airflow_gpu_provider.cluster.api.informer import Change, watching
from airflow_gpu_provider.cluster.api.threads import in_thread
from airflow_gpu_provider.cluster.api.watched import pool_nodes, unlabelled_nodes
from airflow_gpu_provider.errors import ClusterUnreachable, DemandLockBusy, GpuError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.apply.reconcile import PATIENCE_IN_A_LOOP, Reconciler, open_pool
from airflow_gpu_provider.scaling.apply.writes import Outcome
from airflow_gpu_provider.scaling.decide.scarce_capacity import DemandChange
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.wait.records import Narrator, Progress
from airflow_gpu_provider.scaling.wait.retry import Tolerance

SOONEST = 2.0
"""Minimum seconds between two checks, unless the nodes change or a write is requested."""

_AGAIN_AFTER = 15.0  # seconds
_LONGEST_WAIT = 3600.0

_log = logging.getLogger(__name__)

_SHARED_FAILURES = (ClusterUnreachable, DemandLockBusy)
"""Errors that all waits would meet, each after a request's or the lock's timeout."""

Write = Callable[[Reconciler], Outcome]


class Subscription:
    """What one wait wants from the pool's loop, and the outcomes that it gets.

    Args:
        pause: Returns the seconds after which it wants the next check.
        first: Seconds to its first check; sooner if others want one.
        is_eager: It wants a check whenever a node changes, including kubelets' reports every five minutes.
        every: The longest pause; checks that far apart are at its multiples, like those of other pools.
        report: Takes log lines that do not wait for the outcome; called where it calls `next`.

    Attributes:
        admits: It waits for gangs, so checks admit those whose nodes are free.
    """

    def __init__(
        self,
        pause: Callable[[], float],
        *,
        first: float = 0.0,
        is_eager: bool = True,
        every: float = math.inf,
        report: Report = lambda line: None,
    ) -> None:
        self.pause = pause
        self.every = every
        self.is_eager = is_eager
        self.admits = False
        self.asked: DemandChange | Write | None = None
        self.hurry: Callable[[], None] = lambda: None
        self._report = report
        self._begins = asyncio.get_running_loop().time() + first
        self._is_new = True
        self._log_lines: list[str] = []
        self._outcome: Outcome | Exception | None = None
        self._has_outcome = asyncio.Event()

    def ask(self, what: DemandChange | Write) -> None:
        """Have something written at once, and again with the next checks until it succeeds; the newest request counts.

        Until then `next` returns nothing else. The others also get its outcome, but only those errors that they would
        meet as well.
        """
        self.asked = what
        self.hurry()

    async def next(self) -> Outcome:
        """Return what the newest check saw and did, once there is a new one.

        Raises:
            GpuError: It failed; the pool's loop tries again.
        """
        await self._has_outcome.wait()
        self._has_outcome.clear()
        log_lines, self._log_lines = self._log_lines, []
        for line in log_lines:
            self._report(line)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome

    def notify(self, outcome: Outcome | Exception, log_lines: Iterable[str] = ()) -> None:
        self._is_new = False
        self._outcome = outcome
        self._log_lines += log_lines
        self._has_outcome.set()

    def due(self, last: float) -> float:
        """Return when the next check is due after the last one at `last`, in seconds of the event loop."""
        if self._is_new:
            return max(self._begins, last + SOONEST)
        pause = self.pause()
        return last + pause if pause < self.every else round((last + pause) / pause) * pause


_pool_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[GpuPool, str], _PoolLoop]] = WeakKeyDictionary()


def subscribe(subscription: Subscription, pool: GpuPool, owner: str, reconciler: Reconciler | None = None) -> None:
    """Have the pool reconciled until `leave`, and the subscription notified of each check that starts from now on.

    Args:
        owner: Who writes the groups' spec, "<installation>/<dag>".
        reconciler: The pool's, if the first subscriber already has it open.
    """
    loops = _pool_loops.setdefault(asyncio.get_running_loop(), {})
    if (pool, owner) not in loops:
        loops[pool, owner] = _PoolLoop(pool, owner, reconciler)
    loops[pool, owner].add(subscription)


def subscriptions(pool: GpuPool, owner: str) -> tuple[Subscription, ...]:
    loop = _pool_loops.get(asyncio.get_running_loop(), {}).get((pool, owner))
    return tuple(loop.subscriptions) if loop else ()


async def leave(subscription: Subscription, pool: GpuPool, owner: str) -> None:
    """Undo `subscribe`. The last to leave ends the pool's loop; a reconcile in progress finishes."""
    loops = _pool_loops[asyncio.get_running_loop()]
    loop = loops[pool, owner]
    loop.subscriptions.remove(subscription)
    if not loop.subscriptions:
        del loops[pool, owner]
        await loop.stop()


class _PoolLoop:
    """The task that reconciles one pool."""

    def __init__(self, pool: GpuPool, owner: str, reconciler: Reconciler | None) -> None:
        self._pool = pool
        self._owner = owner
        self._reconciler = reconciler
        self.subscriptions: list[Subscription] = []
        self._log_lines: list[str] = []
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
                await asyncio.sleep(0)  # the notified waits step now: each decides how long to pause

    async def _until_due(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_due:
            due = min((each.due(self._last) for each in self.subscriptions), default=float("inf"))
            if due <= loop.time():
                return
            self._wake.clear()
            # With wait_for, the last one's `leave` would hang if a node changed in the same moment: in Python 3.11 it
            # loses a cancellation that comes together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(due - loop.time()):
                    await self._wake.wait()

    async def _look(self) -> None:
        """Do what is requested, otherwise reconcile; the outcome goes to all who were subscribed at its start."""
        self._is_due = False
        await self._look_once()
        self._last = asyncio.get_running_loop().time()

    async def _look_once(self) -> None:
        is_seen = False
        for write, asked in self._asked_for():
            outcome = await self._carry_out(write, asked)
            if isinstance(outcome, _SHARED_FAILURES):
                return
            is_seen |= not isinstance(outcome, Exception)
        if not is_seen and not all(each.asked for each in self.subscriptions):
            admits = any(each.admits for each in self.subscriptions)
            await self._carry_out(lambda reconciler: reconciler.reconcile(admits=admits), {})

    def _asked_for(self) -> Iterator[tuple[Write, Mapping[Subscription, DemandChange | Write]]]:
        """Yield what is to be written and its subscribers, one after another: each write may change what follows."""
        amending = {each: each.asked for each in self.subscriptions if isinstance(each.asked, DemandChange)}
        if amending:  # all at once: each takes the lock, and reads the pool
            yield lambda reconciler: reconciler.amend(*amending.values()), amending
        for each in tuple(self.subscriptions):
            write = each.asked
            if write is not None and not isinstance(write, DemandChange) and each in self.subscriptions:
                yield write, {each: write}

    async def _carry_out(self, write: Write, asked: Mapping[Subscription, DemandChange | Write]) -> Outcome | Exception:
        """Call `write`, which does what was requested, and report it; return what was reported."""
        there = tuple(self.subscriptions)
        outcome: Outcome | Exception
        try:
            outcome = await in_thread(self._call, write)
        except Exception as error:  # noqa: BLE001 - each who waits judges it
            outcome = error
        for each in asked:
            if each.asked is asked[each] and not isinstance(outcome, GpuError):
                each.asked = None
        log_lines, self._log_lines = self._log_lines, []
        is_theirs_alone = bool(asked) and isinstance(outcome, Exception)
        for each in there:
            if each in asked or isinstance(outcome, _SHARED_FAILURES) or not (each.asked or is_theirs_alone):
                each.notify(outcome, log_lines)
        return outcome

    def _call(self, write: Write) -> Outcome:
        if self._reconciler is None:
            holder = f"{self._owner}, waiting at {socket.gethostname()}:{os.getpid()}"
            reconciler = open_pool(self._pool, owner=self._owner, holder=holder, report=self._log_lines.append)
            reconciler.patience, reconciler.shared = PATIENCE_IN_A_LOOP, self._pool.cluster_identity
            self._reconciler = reconciler
        return write(self._reconciler)


async def report_changes(pool: GpuPool, open_access: Callable[[], ClusterAccess], report: Callable[[], None]) -> None:
    """Call `report` whenever a node of the pool has changed, until cancelled.

    If nodes join without labels, also when one joins that is in no pool, since it may be the pool's. While the cluster
    cannot be found, nothing is reported. `open_access` is called in a thread, `report` in the event loop.
    """
    wants = pool_nodes(pool.node_selector)
    if pool.nodes_join_unlabelled:
        wants = {**wants, unlabelled_nodes(): ""}
    known: set[str] = set()

    def is_new(change: Change) -> bool:
        if change.resource != unlabelled_nodes():
            return True
        name = change.raw.get("metadata", {}).get("name")
        if change.kind != "present" or name in known:
            return False
        known.add(name)
        return True

    while True:
        try:
            async with watching(pool.cluster_identity, open_access, wants) as feed:
                while True:
                    if any([is_new(each) for each in await feed.changes(_LONGEST_WAIT)]):
                        report()
        except GpuError as error:
            _log.info("Changes of pool %s are not heard: %s", pool.name, error)
        except Exception:  # noqa: BLE001 - the pool is looked at all the same
            _log.exception("Changes of pool %s are not heard", pool.name)
        await asyncio.sleep(_AGAIN_AFTER)


# -- waits ---------------------------------------------------------------------------------------------------

_PATIENCE = 8.0


class Wait(Protocol):
    @property
    def started(self) -> datetime: ...

    @property
    def deadline(self) -> datetime: ...

    def step(self, snapshot: PoolSnapshot) -> Progress: ...


class _ClusterTime:
    """The cluster's time: from the last snapshot, plus the time that this machine has measured since.

    Before the first snapshot this machine's clock is used; it only limits how long errors are tolerated.
    """

    def __init__(self) -> None:
        self._clock = SystemClock()
        self.is_now(self._clock.now())

    def is_now(self, at: datetime) -> None:
        self._at, self._counted_from = at, self._clock.monotonic()

    def now(self) -> datetime:
        return self._at + timedelta(seconds=self._clock.monotonic() - self._counted_from)


def _patience(wait: Wait, no_access_until: datetime | None = None) -> Tolerance:
    """Return the Tolerance for errors from now on; the same access has worked before the wait began."""
    return Tolerance(wait.deadline, worked=True, no_access_until=no_access_until)


async def run_wait(
    wait: Wait,
    pool: GpuPool,
    owner: str,
    *,
    report: Report,
    every: float,
    is_resumed: bool = False,
    first: Write | None = None,
    reconciler: Reconciler | None = None,
    no_access_until: datetime | None = None,
) -> Progress:
    """Have the pool reconciled, and step after each check, until the wait is done.

    Args:
        every: Seconds after which to check again if no change was reported; at first it is sooner, because a cloud does
            not report that it is starting or terminating a machine.
        is_resumed: Another process has already logged this wait; see Narrator.
        first: What to write before the wait's first step; it is repeated until it succeeds.
        no_access_until: See Tolerance.
    """
    narrator = Narrator(report, started=wait.started, is_resumed=is_resumed)
    clock = _ClusterTime()
    patience = _patience(wait, no_access_until)
    looks = Subscription(lambda: pause_after(clock.now() - wait.started, every), every=every, report=report)
    if first:
        looks.ask(first)
    subscribe(looks, pool, owner, reconciler)
    try:
        while True:
            try:
                outcome = await looks.next()
            except GpuError as error:
                if not patience.allows(error, clock.now()):
                    raise
                if not isinstance(error, DemandLockBusy):  # waiting for the lock logs its holder
                    narrator.log(clock.now(), patience.in_words(error))
                continue
            clock.is_now(outcome.snapshot.now)
            progress = wait.step(outcome.snapshot)
            patience = _patience(wait)
            narrator.log(
                clock.now(), *outcome.log_lines, *progress.lines, *([progress.ask.why] if progress.ask else [])
            )
            if progress.done:
                return progress
            if progress.error:
                raise progress.error
            if progress.ask:
                looks.ask(progress.ask)
    finally:
        await leave(looks, pool, owner)


def pause_after(waited: timedelta, every: float) -> float:
    """Return the seconds between two checks for a wait that has lasted this long."""
    return min(every, max(SOONEST, waited.total_seconds() / _PATIENCE))

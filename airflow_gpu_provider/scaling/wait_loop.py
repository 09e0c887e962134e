"""The loop around a wait's step: reconcile, step, log what is new, wait for a change.

One loop for the blocking operator (`asyncio.run`) and the trigger (in the triggerer's event loop), so that the ways
of running cannot drift apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

from airflow_gpu_provider.cluster.clock import SystemClock
from airflow_gpu_provider.cluster.threads import in_thread
from airflow_gpu_provider.errors import DemandLockBusy, GpuError
from airflow_gpu_provider.patience import Patience
from airflow_gpu_provider.platforms.base import Say
from airflow_gpu_provider.scaling.hard_to_get import Ask
from airflow_gpu_provider.scaling.reconcile import Outcome
from airflow_gpu_provider.scaling.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.waits import Progress, format_seconds

SOONEST = 2.0
_PATIENCE = 8.0


class Wait(Protocol):
    """A wait of `waits`: it steps, and has a deadline."""

    @property
    def started(self) -> datetime: ...

    @property
    def deadline(self) -> datetime: ...

    def step(self, snapshot: PoolSnapshot) -> Progress: ...


class Narrator:
    """Logs each line once while it stays true, with the time since the start.

    `goes_on`: another process has logged about the wait before; the first lines may repeat it, and are marked so.
    """

    def __init__(self, say: Say, *, started: datetime, goes_on: bool = False) -> None:
        self._say = say
        self._started = started
        self._before = "so far: " if goes_on else ""
        self._true_now: frozenset[str] = frozenset()

    def tell(self, now: datetime, *lines: str) -> None:
        for line in dict.fromkeys(lines):
            if line not in self._true_now:
                self._say(f"[{format_seconds(now - self._started)}] {self._before}{line}")
        self._before = ""
        self._true_now = frozenset(lines)


class _ClusterTime:
    """The cluster's time: from the last snapshot, plus what this machine has counted since.

    Before the first snapshot this machine's clock is used; it only limits how long errors are tolerated.
    """

    def __init__(self) -> None:
        self._clock = SystemClock()
        self.is_now(self._clock.now())

    def is_now(self, at: datetime) -> None:
        self._at, self._counted_from = at, self._clock.monotonic()

    def now(self) -> datetime:
        return self._at + timedelta(seconds=self._clock.monotonic() - self._counted_from)


def _patience(wait: Wait) -> Patience:
    """Return the Patience for errors from now on; the same access has worked before the wait began."""
    return Patience(wait.deadline, worked=True)


async def run_wait(
    wait: Wait,
    reconcile: Callable[[], Outcome],
    *,
    say: Say,
    every: float,
    amend: Callable[[Ask], Outcome] | None = None,
    goes_on: bool = False,
    change: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Progress:
    """Reconcile and step until the wait is done.

    Args:
        wait: The wait.
        reconcile: Brings the pool closer to what is wanted; runs in a thread.
        amend: Writes what the run wants from now on, and reconciles; for a wait that may ask for that.
        say: Takes lines for the task's log.
        every: Seconds after which to look again when no change was reported; at first it is sooner, because a cloud
            does not report that it is starting or terminating a machine.
        goes_on: Another process has logged about the wait before; see Narrator.
        change: Returns when something may have changed, at the latest after the seconds it is given.

    Raises:
        GpuError: The wait's own error, or one of `reconcile` that is no longer tolerated.
    """
    narrator = Narrator(say, started=wait.started, goes_on=goes_on)
    clock = _ClusterTime()
    patience = _patience(wait)
    look = reconcile
    while True:
        try:
            outcome = await in_thread(look)
        except GpuError as error:
            if not patience.bears(error, clock.now()):
                raise
            if not isinstance(error, DemandLockBusy):  # waiting for the lock logs its holder
                narrator.tell(clock.now(), patience.in_words(error))
            look = reconcile
        else:
            clock.is_now(outcome.snapshot.now)
            progress = wait.step(outcome.snapshot)
            patience = _patience(wait)
            narrator.tell(clock.now(), *outcome.said, *progress.lines)
            if progress.done:
                return progress
            if progress.error:
                raise progress.error
            if progress.ask and amend:
                look = partial(amend, progress.ask)
                continue
            look = reconcile
        waited = (clock.now() - wait.started).total_seconds()
        await change(min(every, max(SOONEST, waited / _PATIENCE)))

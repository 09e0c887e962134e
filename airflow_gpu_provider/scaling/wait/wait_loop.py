"""The progress of a wait, in the form that all waits of this package share, and the loop around its step.

Each wait is a small record with a pure `step`. It returns done, or why not yet, or the error that ends the wait. One
loop drives it for the blocking operator (`asyncio.run`) and the trigger (in the triggerer's event loop), so that the
two cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from airflow_gpu_provider.cluster.clock import SystemClock, format_time
from airflow_gpu_provider.errors import DemandLockBusy, GpuError
from airflow_gpu_provider.platforms.base import Report
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.decide.scarce_capacity import DemandChange
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.wait import pool_loop
from airflow_gpu_provider.scaling.wait.pool_loop import SOONEST, Subscription, Write
from airflow_gpu_provider.scaling.wait.retry import Tolerance


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The state of a wait.

    Attributes:
        lines: The present state, as text; the waiting process logs each new line.
        ask: What the run wants from now on; the waiting process writes it, and steps again.
        result: What the task returns, once done.
    """

    done: bool = False
    lines: tuple[str, ...] = ()
    error: GpuError | None = None
    ask: DemandChange | None = None
    result: Mapping[str, Any] | None = None


def format_seconds(duration: timedelta) -> str:
    """Return a duration in readable form: 42 s, 3 min 10 s, 2 h 5 min."""
    seconds = round(duration.total_seconds())
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def phase(name: str, start: datetime, end: datetime, **more: Any) -> dict[str, Any]:
    """Return a phase of a wait, as the `timeline` XComs have it: `at` in ISO 8601, `seconds` in tenths and at least 0.

    Times are by the cluster's clock, which all processes share.
    """
    return {
        "phase": name,
        "at": format_time(start),
        "seconds": round(max(0.0, (end - start).total_seconds()), 1),
        **more,
    }


_PATIENCE = 8.0


class Wait(Protocol):
    @property
    def started(self) -> datetime: ...

    @property
    def deadline(self) -> datetime: ...

    def step(self, snapshot: PoolSnapshot) -> Progress: ...


class Narrator:
    """Logs each line once while it stays true, with the time since the start.

    `is_resumed`: another process has already logged this wait; the first lines may repeat its log, and are marked.
    """

    def __init__(self, report: Report, *, started: datetime, is_resumed: bool = False) -> None:
        self._report = report
        self._started = started
        self._before = "so far: " if is_resumed else ""
        self._true_now: frozenset[str] = frozenset()

    def log(self, now: datetime, *lines: str) -> None:
        for line in dict.fromkeys(lines):
            if line not in self._true_now:
                self._report(f"[{format_seconds(now - self._started)}] {self._before}{line}")
        self._before = ""
        self._true_now = frozenset(lines)


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


def _patience(wait: Wait) -> Tolerance:
    """Return the Tolerance for errors from now on; the same access has worked before the wait began."""
    return Tolerance(wait.deadline, worked=True)


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
) -> Progress:
    """Have the pool reconciled, and step after each check, until the wait is done.

    Args:
        every: Seconds after which to check again if no change was reported; at first it is sooner, because a cloud does
            not report that it is starting or terminating a machine.
        is_resumed: Another process has already logged this wait; see Narrator.
        first: What to write before the wait's first step; it is repeated until it succeeds.
    """
    narrator = Narrator(report, started=wait.started, is_resumed=is_resumed)
    clock = _ClusterTime()
    patience = _patience(wait)
    pause = lambda: pause_after(clock.now() - wait.started, every)  # noqa: E731
    looks = Subscription(pause, report=report)
    if first:
        looks.ask(first)
    pool_loop.subscribe(looks, pool, owner, reconciler)
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
        await pool_loop.leave(looks, pool, owner)


def pause_after(waited: timedelta, every: float) -> float:
    """Return the seconds between two checks for a wait that has lasted this long."""
    return min(every, max(SOONEST, waited.total_seconds() / _PATIENCE))

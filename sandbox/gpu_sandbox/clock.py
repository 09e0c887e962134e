"""The time by which a sandbox lives: the machine's own here, or one that its user moves (`manual_clock`).

All parts of a sandbox share one clock. Each asks it for the time, gives it the steps that move its life cycles on, and
compares moments through `reached`, so that a clock that is moved by hand knows where to stop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from typing import Literal, Protocol

ClockName = Literal["system", "manual"]

_HOLD_POLL = 0.02

log = logging.getLogger(__name__)


class Loop(Protocol):
    """The steps of one part of a sandbox."""

    def start(self) -> None: ...

    def wake(self) -> None:
        """Take the next step now: something was asked for."""

    def stop(self) -> None:
        """Return when the last step is over."""


class Clock(Protocol):
    """What the parts of a sandbox need of their common clock. Thread-safe."""

    stands_still: bool
    """Whether no time passes while others, who live by the machine's clock, do their work."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def utc_now(self) -> datetime: ...

    def reached(self, moment: float | datetime) -> bool:
        """Whether this moment, in seconds since the epoch or as a datetime, has come.

        A step must ask for each moment that it waits for, and ask at each step: a clock that is moved by hand takes the
        next step at the first of the moments that had not come.
        """

    def loop(
        self,
        step: Callable[[], None],
        *,
        poll: float,
        name: str,
        mark: Callable[[], Hashable] = lambda: None,
        periodic: bool = False,
    ) -> Loop:
        """Steps to be taken from `Loop.start` on, `poll` seconds apart, and at once when woken.

        By hand they are taken whenever something may have changed, and until a step changes nothing: what it waits for,
        and `mark`, are as after the step before. A periodic loop keeps to its `poll` there, and leaves out the steps
        before which nothing has changed, neither `mark` nor another part of the sandbox, and nothing has come due; but
        not the last one.
        """

    def hold(self, is_held: Callable[[], bool], *, seconds: float) -> None:
        """Keep an API call open until it is no longer held, for so long at most."""

    # Work in other threads, which has to wait for an API server or a node agent: see `workers`

    def work_begins(self, name: str) -> None: ...

    def work_ends(self, name: str, error: Exception | None = None) -> None: ...

    def pause(self, name: str, seconds: float, *, stopping: threading.Event) -> None:
        """Let so much time pass for this piece of work; it ends early when `stopping` is set and `interrupt` called."""

    def interrupt(self) -> None:
        """Have pauses look at their `stopping`."""


class SystemClock:
    """The machine's clock: steps are taken by threads, and one that raises is logged and followed by the next."""

    stands_still = False

    def now(self) -> float:
        return time.time()

    def utc_now(self) -> datetime:
        return datetime.now(UTC)

    def reached(self, moment: float | datetime) -> bool:
        return self.now() >= (moment.timestamp() if isinstance(moment, datetime) else moment)

    def loop(
        self,
        step: Callable[[], None],
        *,
        poll: float,
        name: str,
        mark: Callable[[], Hashable] = lambda: None,
        periodic: bool = False,
    ) -> Loop:
        return LoopThread(step, poll=poll, name=name)

    def hold(self, is_held: Callable[[], bool], *, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and is_held():
            time.sleep(_HOLD_POLL)

    def work_begins(self, name: str) -> None:
        """Nobody waits for it."""

    def work_ends(self, name: str, error: Exception | None = None) -> None:
        if error is not None:
            log.error("%s failed", name, exc_info=error)

    def pause(self, name: str, seconds: float, *, stopping: threading.Event) -> None:
        stopping.wait(seconds)

    def interrupt(self) -> None:
        """A set event ends a pause by itself."""


class LoopThread:
    """Calls `step` until stopped. A step that raises is logged, and the next one follows."""

    def __init__(self, step: Callable[[], None], *, poll: float, name: str) -> None:
        self._step = step
        self._poll = poll
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        self._stopping = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._woken.wait(self._poll)
            self._woken.clear()
            try:
                self._step()
            except Exception:
                log.exception("a step of %s failed", self._thread.name)

"""A clock that its user moves: a sandbox stands still until `advance`, and then lives exactly so long, at once.

At each moment the parts take steps until they have come to rest: a step changes nothing that shows, asks about the same
moments (`Clock.reached`) as the one before and gets the same answers, nobody was woken, and no work is under way in
another thread. The next moment is the first that a step asked about and that had not come, so an hour in which nothing
is due costs nothing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpu_sandbox.clock import Loop

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NOTHING = object()
_MOST_STEPS = 1000
_WORK_SECONDS = 180.0
_Asked = Counter[tuple[int, bool]]
"""The moments that a step asked about, whether they had come, and how often it asked."""


class RestlessError(RuntimeError):
    """Time cannot go on: a part of the sandbox finds something to do for ever, or work does not end."""


_A_YEAR = 366 * 86400.0


class ManualClock:
    """Implements `Clock`; it shows the same time until `advance` is called.

    Args:
        start: What it shows at first, UTC. Default: now.
    """

    stands_still = True

    def __init__(self, start: datetime | None = None) -> None:
        self._now = _microseconds(start or datetime.now(UTC))
        self._loops: list[_Loop] = []
        self._asked: _Asked = Counter()
        self._stepping: int | None = None
        """The thread that takes steps now."""
        self._advancing = threading.Lock()
        self._changed = threading.Condition()
        self._work: dict[str, int] = {}
        self._pauses: list[_Pause] = []
        self._errors: list[Exception] = []

    def now(self) -> float:
        return self._now / 1e6

    def utc_now(self) -> datetime:
        return _EPOCH + self._now * _MICROSECOND

    def advance(self, seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0) -> None:
        """Let so much time pass, and return when all that came due in it has been done; with 0, what is due at once.

        What a step raises, or work in another thread, is raised here, and the clock stays at that moment.
        RestlessError if work does not end within three minutes of real time. RuntimeError if a step calls this.
        ValueError for less than nothing, and for more than a year.
        """
        given = seconds + 60.0 * minutes + 3600.0 * hours
        if not 0 <= given <= _A_YEAR:
            raise ValueError(f"advance takes from 0 s to a year at once, not {given:g} s")
        length = round(given * 1e6)
        if self._stepping == threading.get_ident():
            raise RuntimeError("a step of the sandbox moved the clock on which it is taken")
        with self._advancing:
            end = self._now + length
            # Faults may have changed, or what a listener answers: nobody is woken by that.
            for loop in self._loops:
                loop.disturb(self._now)
                loop.is_restless = loop.is_restless or not loop.period
            self._settle()
            self._live_until(end)
            for loop in self._loops:
                loop.catch_up(end)
            self._live_until(end)
            self._move_to(end)

    def _live_until(self, end: int) -> None:
        while (moment := self._next_moment()) is not None and moment <= end:
            self._move_to(moment)
            self._settle()

    # Steps

    def loop(
        self,
        step: Callable[[], None],
        *,
        poll: float,
        name: str,
        mark: Callable[[], Hashable] = lambda: None,
        periodic: bool = False,
    ) -> Loop:
        return _Loop(step, mark, clock=self, name=name, period=_in_microseconds(poll) if periodic else 0)

    def reached(self, moment: float | datetime) -> bool:
        due = _microseconds(moment)
        has_come = due <= self._now
        if self._stepping == threading.get_ident():
            self._asked[due, has_come] += 1
        return has_come

    def hold(self, is_held: Callable[[], bool], *, seconds: float) -> None:
        """A call that waits for time to pass is answered at once: none passes meanwhile."""

    def _next_moment(self) -> int | None:
        dues = [loop.due for loop in self._loops if loop.due is not None]
        return min([*dues, *(pause.until for pause in self._pauses)], default=None)

    def _move_to(self, moment: int) -> None:
        self._now = max(moment, self._now)
        for loop in self._loops:
            if loop.due is not None and loop.due <= self._now:
                loop.is_restless = True

    def _settle(self) -> None:
        """Take steps, and wait for work, until nothing is to be done at this moment. Periodic steps come last."""
        for _ in range(_MOST_STEPS):
            if self._wait_for_work():
                self._disturb()
            restless = [loop for loop in self._loops if loop.is_restless]
            if not restless:
                return
            for loop in [loop for loop in restless if not loop.period] or restless:
                self._take_step(loop)
        restless_names = sorted(loop.name for loop in self._loops if loop.is_restless)
        raise RestlessError(
            f"{', '.join(restless_names)}: still something to do after {_MOST_STEPS} steps at one moment"
        )

    def _take_step(self, loop: _Loop) -> None:
        self._asked, self._stepping = Counter(), threading.get_ident()
        loop.was_woken = False
        try:
            loop.step()
        finally:
            self._stepping = None
        loop.note(self._asked, self._now)
        if loop.is_restless:
            self._disturb()

    def _disturb(self) -> None:
        for loop in self._loops:
            loop.disturb(self._now)

    def add(self, loop: _Loop) -> None:
        loop.begin = loop.stepped_at = self._now
        self._loops.append(loop)

    def remove(self, loop: _Loop) -> None:
        if loop in self._loops:
            self._loops.remove(loop)

    # Work in other threads

    def work_begins(self, name: str) -> None:
        with self._changed:
            self._work[name] = self._work.get(name, 0) + 1

    def work_ends(self, name: str, error: Exception | None = None) -> None:
        with self._changed:
            self._rests(name)
            if error is not None:
                self._errors.append(error)
            self._changed.notify_all()

    def _rests(self, name: str) -> None:
        self._work[name] -= 1
        if not self._work[name]:
            del self._work[name]

    def pause(self, name: str, seconds: float, *, stopping: threading.Event) -> None:
        with self._changed:
            pause = _Pause(name, until=self._now + _in_microseconds(seconds))
            self._pauses.append(pause)
            self._rests(name)
            self._changed.notify_all()
            self._changed.wait_for(lambda: pause.is_over or stopping.is_set())
            if not pause.is_over:
                self._end(pause)

    def interrupt(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _end(self, pause: _Pause) -> None:
        """The work counts as under way from now on, not only when its thread has found out."""
        pause.is_over = True
        self._pauses.remove(pause)
        self._work[pause.name] = self._work.get(pause.name, 0) + 1

    def _wait_for_work(self) -> bool:
        """Return when no work is under way; whether there was any."""
        was_any = False
        deadline = time.monotonic() + _WORK_SECONDS
        with self._changed:
            while True:
                over = [pause for pause in self._pauses if pause.until <= self._now]
                for pause in over:
                    self._end(pause)
                self._changed.notify_all()
                if not over and not self._work:
                    break
                was_any = True
                if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    raise RestlessError(f"not over after {_WORK_SECONDS:.0f} s of real time: {', '.join(self._work)}")
            if self._errors:
                raise self._errors.pop(0)
        return was_any


@dataclass(eq=False)
class _Pause:
    name: str
    until: int
    is_over: bool = False


@dataclass(eq=False)
class _Loop:
    """One part's steps, and what is known of the next one."""

    step: Callable[[], None]
    mark: Callable[[], Hashable]
    clock: ManualClock
    name: str
    period: int
    """In microseconds; 0 of one that steps when something is due."""
    begin: int = 0
    stepped_at: int = 0
    due: int | None = None
    is_restless: bool = False
    was_woken: bool = False
    _seen: Hashable = _NOTHING

    def start(self) -> None:
        self.clock.add(self)

    def wake(self) -> None:
        if not self.period:
            self.was_woken = self.is_restless = True

    def stop(self) -> None:
        self.clock.remove(self)

    def note(self, asked: _Asked, now: int) -> None:
        """What the step that was just taken asked about."""
        seen = self.mark() if self.period else (frozenset(asked.items()), self.mark())
        has_changed = self.was_woken or seen != self._seen
        self._seen, self.stepped_at = seen, now
        self.due = min((moment for moment, has_come in asked if not has_come), default=None)
        self.is_restless = has_changed and not self.period
        if self.period and has_changed:
            self.disturb(now)
        elif self.period and self.due is not None:
            self.due = self.begin - (self.begin - self.due) // self.period * self.period

    def catch_up(self, end: int) -> None:
        """Of the steps that a periodic loop leaves out, take the last one: what it tells is to be new."""
        if self.period:
            last = end - (end - self.begin) % self.period
            self.due = last if last > self.stepped_at else self.due

    def disturb(self, now: int) -> None:
        """Something has changed: a periodic loop takes its next step."""
        if self.period:
            self.due = now + self.period - (now - self.begin) % self.period


def _in_microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def _microseconds(moment: float | datetime) -> int:
    """Whole microseconds, in which nothing is lost: of a float they are all that it can tell in this century."""
    if isinstance(moment, datetime):
        return (moment - _EPOCH) // _MICROSECOND
    return _in_microseconds(moment)

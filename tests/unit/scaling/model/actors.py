"""Actors: production code that runs one request at a time, paused before each, killed or left to stall anywhere."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeVar

from greenlet import greenlet

EPOCH = datetime(2026, 3, 1, tzinfo=UTC)

T = TypeVar("T")
Trouble = Literal["request lost", "answer lost"]

TICK = 300.0
"""Seconds: what is due at some time happens at most this much later."""


class Killed(BaseException):
    """What a killed actor's code meets instead of the world: no `except Exception` can catch it."""


class ModelClock:
    """Time that moves when the model says so, or when the only thing that an actor does is to sleep.

    Attributes:
        ahead: Seconds by which it is wrong. None of these clocks is the cluster's but the one that is right.
    """

    def __init__(self, actors: Actors, ahead: float = 0.0) -> None:
        self._actors = actors
        self.ahead = ahead

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._actors.time + self.ahead)

    def of_local(self, at: datetime) -> datetime:
        return at

    def monotonic(self) -> float:
        return self._actors.time

    def sleep(self, seconds: float) -> None:
        self._actors.pause(until=self._actors.time + seconds)


class Actor:
    """One process.

    Attributes:
        wakes_at: When it goes on.
        decisions: How often it began to change the pool.
        trouble: What happens to its next request.
    """

    def __init__(self, name: str, work: Callable[[], None], actors: Actors) -> None:
        self.name = name
        self.wakes_at = 0.0
        self.killed = False
        self.decisions = 0
        self.trouble: Trouble | None = None
        self._actors = actors
        self._greenlet = greenlet(work)

    @property
    def alive(self) -> bool:
        return not self.killed and not self._greenlet.dead

    def step(self) -> None:
        """Let it do one request, and what it does by itself until the next."""
        self._actors.advance_to(self.wakes_at)
        self._actors.current = self
        try:
            self._greenlet.switch()
        finally:
            self._actors.current = None

    def kill(self) -> None:
        """End it on the spot. Its cleanup code runs, as Python insists, but does not reach the world any more."""
        self.killed = True
        try:
            self._greenlet.throw(Killed)
        except Killed:
            return


class Actors:
    """All actors, and the time that they share."""

    def __init__(self) -> None:
        self.time = 0.0
        self.current: Actor | None = None
        self.all: list[Actor] = []
        self.events: list[str] = []
        self.clock = ModelClock(self)
        self.when_time_moves: Callable[[], None] = lambda: None

    def note(self, event: str) -> None:
        """Write down what happens, for whoever reads a failure."""
        who = self.current.name if self.current else "-"
        self.events.append(f"{self.time:8.1f} {who:8} {event}")

    def start(self, name: str, work: Callable[[], None]) -> Actor:
        actor = Actor(name, work, self)
        self.all.append(actor)
        return actor

    @property
    def alive(self) -> list[Actor]:
        return [actor for actor in self.all if actor.alive]

    def pause(self, until: float = 0.0) -> None:
        """Called by an actor's code before a request: others may go on, and it may be a long time until it does.

        Where nobody else is there, time passes.
        """
        actor = self.current
        if actor is None:
            self.advance_to(until)
            return
        if actor.killed:
            raise Killed
        actor.wakes_at = until
        greenlet.getcurrent().parent.switch()
        if actor.killed:
            raise Killed

    def request(self, work: Callable[[], T], error: Callable[[], Exception]) -> T:
        """Do what a request asks for, unless the request is lost; and answer, unless the answer is."""
        trouble: Trouble | None = None
        if self.current:
            trouble, self.current.trouble = self.current.trouble, None
        if trouble == "request lost":
            self.note(trouble)
            raise error()
        answer = work()
        if trouble == "answer lost":
            self.note(trouble)
            raise error()
        return answer

    def advance_to(self, time: float) -> None:
        while time > self.time:
            self.time = min(time, self.time + TICK)
            self.when_time_moves()

    def close(self) -> None:
        for actor in self.alive:
            actor.kill()

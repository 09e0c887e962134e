"""A clock that is moved by hand: what moves, when, in which order, and what is told when something goes wrong."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sandbox.manual_clock import ManualClock, RestlessError
from gpu_sandbox.workers import Workers

NIGHT = datetime(2026, 3, 1, 22, tzinfo=UTC)
seconds = st.integers(0, 2_000_000).map(lambda milli: milli / 1000)


class Chain:
    """A part that does one thing after another, each so long after the one before; `told` when, and what."""

    def __init__(self, clock: ManualClock, name: str, waits: list[float], told: list[tuple[float, str]]) -> None:
        self._clock, self._name, self._waits, self._told = clock, name, list(waits), told
        self._since = clock.utc_now()
        self.steps = 0
        self.loop = clock.loop(self._step, poll=0.1, name=name, mark=lambda: len(self._waits))
        self.loop.start()

    def _step(self) -> None:
        """One thing at each step at most, so that two that are due at once need two."""
        self.steps += 1
        if self._waits and self._clock.reached(self._since + timedelta(seconds=self._waits[0])):
            self._since += timedelta(seconds=self._waits.pop(0))
            self._told.append(((self._clock.utc_now() - NIGHT).total_seconds(), self._name))


def lived(chains: list[list[float]], advances: list[float]) -> list[tuple[float, str]]:
    clock, told = ManualClock(NIGHT), list[tuple[float, str]]()
    for number, waits in enumerate(chains):
        Chain(clock, str(number), waits, told)
    for each in advances:
        clock.advance(each)
    assert (clock.utc_now() - NIGHT).total_seconds() == pytest.approx(sum(advances), abs=1e-5)
    return told


@given(st.lists(st.lists(seconds, max_size=6), max_size=4), st.lists(seconds, min_size=1, max_size=5))
def test_it_does_not_matter_in_how_many_pieces_time_passes(chains: list[list[float]], pieces: list[float]) -> None:
    told = lived(chains, pieces)

    assert told == lived(chains, [sum(pieces)])
    assert all(before[0] <= after[0] for before, after in pairwise(told))
    due = [
        (at, str(number))
        for number, waits in enumerate(chains)
        for at in (sum(waits[: count + 1]) for count in range(len(waits)))
        if at <= sum(pieces)
    ]
    assert sorted(told) == [(pytest.approx(at), name) for at, name in sorted(due)]


def test_nothing_moves_until_it_is_told_to() -> None:
    clock, told = ManualClock(NIGHT), list[tuple[float, str]]()
    chain = Chain(clock, "night", [0.0, 60.0], told)
    chain.loop.wake()
    assert (clock.utc_now(), clock.now(), told, chain.steps) == (NIGHT, NIGHT.timestamp(), [], 0)
    clock.advance()
    assert told == [(0.0, "night")]
    clock.advance(59.999999)
    assert told == [(0.0, "night")]
    clock.advance(0.000001)
    assert told == [(0.0, "night"), (60.0, "night")]


def test_hours_in_which_nothing_is_due_cost_nothing() -> None:
    clock, told = ManualClock(NIGHT), list[tuple[float, str]]()
    chain = Chain(clock, "night", [3600.0 * 24], told)
    clock.advance(hours=23, minutes=59, seconds=59)
    assert chain.steps < 5
    clock.advance(1)
    assert told == [(86400.0, "night")]


def test_what_one_part_causes_another_does_at_the_same_moment() -> None:
    clock, told = ManualClock(NIGHT), list[tuple[float, str]]()
    effect = clock.loop(lambda: told.append((clock.now(), "effect")) if told else None, poll=1.0, name="effect")
    effect.start()

    def cause() -> None:
        if not told and clock.reached(NIGHT + timedelta(minutes=5)):
            told.append((clock.now(), "cause"))
            effect.wake()

    clock.loop(cause, poll=1.0, name="cause").start()
    clock.advance(hours=1)
    assert {(at - NIGHT.timestamp(), name) for at, name in told} == {(300.0, "cause"), (300.0, "effect")}


def test_a_periodic_loop_keeps_to_its_time_and_comes_last() -> None:
    clock, told = ManualClock(NIGHT), list[tuple[float, str]]()
    clock.loop(
        lambda: told.append(((clock.utc_now() - NIGHT).total_seconds(), "scan")), poll=10.0, name="", periodic=True
    ).start()
    Chain(clock, "cloud", [10.0, 0.0], told)
    clock.advance(5)
    clock.advance(15)
    assert told == [(10.0, "cloud"), (10.0, "cloud"), (10.0, "scan"), (20.0, "scan")]


def test_what_a_step_raises_is_raised_and_time_stays_where_it_was() -> None:
    clock, fails = ManualClock(NIGHT), True

    def step() -> None:
        if clock.reached(NIGHT + timedelta(seconds=30)) and fails:
            raise KeyError("a defect")

    clock.loop(step, poll=0.1, name="cloud").start()
    for _ in range(2):
        with pytest.raises(KeyError, match="a defect"):
            clock.advance(minutes=1)
        assert clock.utc_now() == NIGHT + timedelta(seconds=30)
    fails = False
    clock.advance(minutes=1)
    assert clock.utc_now() == NIGHT + timedelta(seconds=90)


def test_a_part_that_never_comes_to_rest_is_named() -> None:
    clock = ManualClock()
    loop = clock.loop(lambda: loop.wake(), poll=0.1, name="the cloud")
    loop.start()
    with pytest.raises(RestlessError, match="the cloud: still something to do after 1000 steps at one moment"):
        clock.advance()


def test_a_part_that_has_stopped_takes_no_step() -> None:
    clock, told = ManualClock(NIGHT), list[tuple[float, str]]()
    chain = Chain(clock, "night", [1.0], told)
    clock.advance()
    chain.loop.stop()
    clock.advance(hours=1)
    assert told == []


def test_time_neither_goes_back_nor_is_moved_by_a_step() -> None:
    clock = ManualClock()
    for hours in (-1, 24 * 400, 1e9, math.nan, math.inf):
        with pytest.raises(ValueError, match="from 0 s to a year at once"):
            clock.advance(hours=hours)
    clock.loop(lambda: clock.advance(1), poll=0.1, name="cloud").start()
    with pytest.raises(RuntimeError, match="a step of the sandbox moved the clock"):
        clock.advance()


def test_two_threads_move_it_one_after_the_other() -> None:
    clock, told = ManualClock(NIGHT), list[tuple[float, str]]()
    Chain(clock, "night", [1.0] * 50, told)
    threads = [threading.Thread(target=clock.advance, args=(10,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.utc_now() == NIGHT + timedelta(seconds=50)
    assert told == [(float(second), "night") for second in range(1, 51)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NIGHT)


def work_at(clock: ManualClock, workers: Workers, at: float, work: Callable[[], None]) -> None:
    """Have a part that submits this work so many seconds from now."""
    begun: list[bool] = []
    due = clock.utc_now() + timedelta(seconds=at)

    def step() -> None:
        if not begun and clock.reached(due):
            begun.append(True)
            workers.submit(work)

    clock.loop(step, poll=0.1, name="cloud").start()


def test_work_in_another_thread_is_over_before_time_goes_on(clock: ManualClock) -> None:
    workers, may_end, seen = Workers(clock, name="machine"), threading.Event(), list[float]()

    def join() -> None:
        assert may_end.wait(60)
        seen.append((clock.utc_now() - NIGHT).total_seconds())

    work_at(clock, workers, 45.0, join)
    advancing = threading.Thread(target=clock.advance, kwargs={"hours": 1})
    advancing.start()
    may_end.set()
    advancing.join()
    assert seen == [45.0]
    workers.stop()


def test_a_pause_of_such_work_is_by_this_clock(clock: ManualClock) -> None:
    workers, seen = Workers(clock, name="machine"), list[float]()

    def drain() -> None:
        for _ in range(3):
            seen.append((clock.utc_now() - NIGHT).total_seconds())
            assert not workers.pause(20.0)

    work_at(clock, workers, 10.0, drain)
    clock.advance(29)
    assert seen == [10.0]
    clock.advance(hours=1)
    assert seen == [10.0, 30.0, 50.0]
    workers.stop()


def test_what_such_work_raises_is_raised(clock: ManualClock) -> None:
    workers = Workers(clock, name="machine")

    def fail() -> None:
        raise OSError("no agent")

    work_at(clock, workers, 10.0, fail)
    with pytest.raises(OSError, match="no agent"):
        clock.advance(hours=1)
    assert clock.utc_now() == NIGHT + timedelta(seconds=10)
    clock.advance(hours=1)
    workers.stop()


def test_workers_that_stop_end_their_pauses(clock: ManualClock) -> None:
    workers, ended = Workers(clock, name="machine"), list[bool]()
    work_at(clock, workers, 0.0, lambda: ended.append(workers.pause(3600)))
    clock.advance()
    workers.stop()
    assert ended == [True]
    workers.submit(lambda: ended.append(False))
    clock.advance(hours=2)
    assert ended == [True]


def test_a_periodic_loop_leaves_out_the_steps_before_which_nothing_has_changed() -> None:
    clock, scans = ManualClock(NIGHT), list[float]()
    due = NIGHT + timedelta(seconds=605)

    def scan() -> None:
        clock.reached(due)
        scans.append((clock.utc_now() - NIGHT).total_seconds())

    clock.loop(scan, poll=10.0, name="scan", periodic=True).start()
    Chain(clock, "cloud", [33.0], [])
    clock.advance(hours=1)
    # The first two, as nothing is known before; after the cloud has changed; and at what was due.
    assert scans[:-1] == [10.0, 20.0, 40.0, 610.0]
    assert scans[-1] == 3600.0, "the last one, which tells what is so now"
    clock.advance(9)
    clock.advance(1)
    assert scans[5:] == [3610.0]

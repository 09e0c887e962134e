"""Time that passes quicker: it never goes back, and each stretch counts at the speed that it had."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sandbox.faults import Faults
from gpu_sandbox.manual_clock import ManualClock
from gpu_sandbox.scaled_time import ScaledTime

stretches = st.lists(st.tuples(st.floats(0.01, 1000), st.floats(0, 100)))


@given(stretches)
def test_each_stretch_counts_at_its_speed(stretches: list[tuple[float, float]]) -> None:
    clock = ManualClock()
    scaled = ScaledTime(clock)
    counted = scaled.seconds()
    for speed, seconds in stretches:
        scaled.speed = speed
        assert scaled.seconds() == counted
        clock.advance(seconds)
        assert scaled.seconds() - counted == pytest.approx(speed * seconds, abs=speed * 2e-6)
        counted = scaled.seconds()


def test_cleared_faults_let_deadlines_come_in_their_time_again_but_nothing_comes_back() -> None:
    clock, faults = ManualClock(), Faults()
    faults.follow(clock)
    before = faults.deadline_seconds()
    faults.deadline_speed = 60.0
    clock.advance(minutes=1)
    faults.clear()
    assert faults.deadline_speed is None
    assert faults.deadline_seconds() - before == pytest.approx(3600.0)
    clock.advance(minutes=1)
    assert faults.deadline_seconds() - before == pytest.approx(3660.0)


@given(st.floats(0.5, 1000), st.floats(1.0, 10_000))
def test_a_moment_of_the_count_is_reached_when_the_clock_has_counted_so_far(speed: float, seconds: float) -> None:
    clock, faults = ManualClock(), Faults()
    faults.follow(clock)
    faults.deadline_speed = speed
    came: list[float] = []
    due = faults.deadline_seconds() + seconds
    begin = clock.now()

    def step() -> None:
        if not came and faults.deadline_reached(due):
            came.append(clock.now() - begin)

    clock.loop(step, poll=1.0, name="deadline").start()
    clock.advance(2 * seconds / speed)
    assert came == [pytest.approx(seconds / speed, abs=1e-5)]

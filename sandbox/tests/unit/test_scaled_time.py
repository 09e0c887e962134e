"""Time that passes quicker: it never goes back, and each stretch counts at the speed that it had."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sandbox.faults import Faults
from gpu_sandbox.scaled_time import ScaledTime

stretches = st.lists(st.tuples(st.floats(0.01, 1000), st.floats(0, 100)))


@given(stretches)
def test_each_stretch_counts_at_its_speed(stretches: list[tuple[float, float]]) -> None:
    now = 50.0
    scaled = ScaledTime(lambda: now)
    counted = scaled.seconds()
    for speed, seconds in stretches:
        scaled.speed = speed
        assert scaled.seconds() == counted
        now += seconds
        assert scaled.seconds() - counted == pytest.approx(speed * seconds, abs=1e-6)
        counted = scaled.seconds()


def test_cleared_faults_let_deadlines_come_in_their_time_again_but_nothing_comes_back() -> None:
    faults = Faults()
    faults.deadline_speed = 1e6
    before = faults.deadline_seconds()
    faults.clear()
    assert faults.deadline_speed is None
    after = faults.deadline_seconds()
    assert after > before
    assert faults.deadline_seconds() - after < 10

"""The clouds' own times, and how they are scaled."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sandbox.aws import AwsTimings
from gpu_sandbox.google import GoogleTimings
from gpu_sandbox.nodes import Image
from gpu_sandbox.pace import AWS, GOOGLE, Pace

PACED: list[tuple[Any, Any, Any]] = [(Pace.aws, AwsTimings, AWS), (Pace.google, GoogleTimings, GOOGLE)]


@pytest.mark.parametrize(("paced", "timings", "table"), PACED)
def test_a_real_pace_at_speed_1_is_as_the_table_says_and_slower_than_the_quick_one(
    paced: Any, timings: Any, table: dict[str, float]
) -> None:
    quick, real = asdict(paced(Pace())), asdict(paced(Pace(name="real", speed=1)))

    assert quick == asdict(timings())
    assert set(table) <= set(real)
    assert {name: real[name] for name in table} == table
    unscaled = {"poll", "token_lifetime", "spot_notice"}
    assert all(real[name] > seconds for name, seconds in quick.items() if name not in unscaled and seconds)
    assert all(real[name] == quick[name] for name in unscaled & quick.keys())


@pytest.mark.parametrize(("paced", "timings", "table"), PACED)
@given(speed=st.floats(0.1, 1000))
def test_all_times_keep_their_proportions(paced: Any, timings: Any, table: Any, speed: float) -> None:
    real, scaled = asdict(paced(Pace(name="real", speed=1))), asdict(paced(Pace(name="real", speed=speed)))

    for name in real.keys() - {"poll", "token_lifetime"}:
        assert scaled[name] * speed == pytest.approx(real[name])


def test_images_take_time_to_pull_unless_they_say_how_long() -> None:
    images = [Image(pattern="train:*"), Image(pattern="python:*"), Image(pattern="large:*", pull_seconds=7)]

    assert [each.pull_seconds for each in Pace(name="real", speed=10).images(images)] == [4.5, 1.0, 7]
    sized = [Image(pattern="huge:*", size=12)]
    assert Pace(name="real", speed=10).images(sized) == sized, "its node's disk says how long"
    assert Pace().images(images) == images
    assert Pace.by("manual", name=None, speed=None, stale=None).images(images) == images, "nodes live in real time"


def test_time_that_is_moved_by_hand_is_real_and_its_reads_are_never_old() -> None:
    by_hand = Pace.by("manual", name=None, speed=None, stale=None)
    assert (by_hand.name, by_hand.speed, by_hand.aws().stale, by_hand.google().stale) == ("real", 1.0, 0.0, 0.0)
    assert Pace.by("system", name=None, speed=None, stale=None) == Pace()
    given = Pace.by("manual", name="quick", speed=5.0, stale=1.0)
    assert (given.name, given.speed, given.aws().stale) == ("quick", 5.0, 1.0)


@pytest.mark.parametrize("settings", [{"name": "slow"}, {"speed": 0}, {"speed": float("inf")}, {"stale": -1}])
def test_what_is_no_pace_is_refused(settings: Any) -> None:
    with pytest.raises(ValueError, match=r"a sandbox's pace|a speed|the age"):
        Pace(**settings)

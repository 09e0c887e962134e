"""A price is asked for once in a while, and no refusal or odd answer is an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_gpu_provider.clouds.list_prices import ASKED_AGAIN_AFTER, KEPT_FOR, Kept, Unknown, list_prices
from airflow_gpu_provider.errors import CloudError, PermissionDenied
from airflow_gpu_provider.pools import Candidate


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_it_is_asked_for_again_after_a_while(clock: Clock) -> None:
    kept, answers = Kept[float](clock), iter([1.0, 2.0])
    assert [kept.get("a", lambda: next(answers)) for _ in range(3)] == [1.0, 1.0, 1.0]
    clock.now = KEPT_FOR.total_seconds()
    assert kept.get("a", lambda: next(answers)) == 2.0


def test_each_question_has_its_own_answer(clock: Clock) -> None:
    kept = Kept[float](clock)
    assert (kept.get("a", lambda: 1.0), kept.get("b", lambda: 2.0), kept.get("a", lambda: 3.0)) == (1.0, 2.0, 1.0)
    kept.forget()
    assert kept.get("a", lambda: 3.0) == 3.0


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (PermissionDenied("AWS refused pricing:GetProducts.", "Allow it."), "AWS refused pricing:GetProducts"),
        (CloudError("AWS (pricing) did not answer: timed out."), "AWS (pricing) did not answer: timed out"),
        (KeyError("PriceList"), "the answer could not be read (KeyError('PriceList'))"),
    ],
)
def test_an_error_is_a_reason_and_not_met_twice_in_a_row(clock: Clock, error: Exception, why: str) -> None:
    kept, asked = Kept[float](clock), []

    def fail() -> float:
        asked.append(clock.now)
        raise error

    fails: Callable[[], float] = fail
    assert [kept.get("a", fails) for _ in range(3)] == [Unknown(why=why)] * 3
    clock.now = ASKED_AGAIN_AFTER.total_seconds()
    assert kept.get("a", lambda: 1.0) == 1.0
    assert asked == [0.0]


def test_prices_and_reasons_by_group() -> None:
    a, b = (Candidate(group=name, zone="z", instance_type="t", market="SPOT") for name in "ab")
    found = list_prices([a, b], lambda each: 1.5 if each is a else Unknown(why="no"))
    assert (found.per_hour, found.unknown) == ({"a": 1.5}, {"b": "no"})

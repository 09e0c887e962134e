"""How long a candidate that failed is passed over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.platforms.backoff import FIRST, FORGOTTEN_AFTER, LONGEST, in_a_row, ordinal, pause

START = datetime(2026, 1, 1, tzinfo=UTC)
GAPS = st.lists(st.timedeltas(min_value=timedelta(0), max_value=timedelta(hours=4)), min_size=1, max_size=30)


def moments(gaps: list[timedelta]) -> list[datetime]:
    at, found = START, []
    for gap in gaps:
        at += gap
        found.append(at)
    return found


def test_each_time_twice_as_long_up_to_half_an_hour() -> None:
    assert [pause(n) / FIRST for n in range(1, 7)] == [1, 2, 4, 6, 6, 6]
    assert pause(10_000) == LONGEST


@given(gaps=GAPS)
def test_passed_over_for_five_to_thirty_minutes_after_the_newest_failure(gaps: list[timedelta]) -> None:
    failed_at = moments(gaps)
    times, until = in_a_row(failed_at)
    assert 1 <= times <= len(failed_at)
    assert FIRST <= until - failed_at[-1] <= LONGEST
    assert until - failed_at[-1] == pause(times)


@given(gaps=GAPS, burst=st.lists(st.timedeltas(timedelta(0), FIRST / 10), max_size=5))
def test_a_cloud_that_tries_by_itself_several_times_is_one_failure(
    gaps: list[timedelta], burst: list[timedelta]
) -> None:
    failed_at = moments(gaps)
    times, _ = in_a_row(failed_at)
    assert in_a_row(moments([*gaps, *burst]))[0] == times


@given(gaps=GAPS)
def test_a_failure_after_its_time_counts_one_more_until_it_is_forgotten(gaps: list[timedelta]) -> None:
    failed_at = moments(gaps)
    times, until = in_a_row(failed_at)
    assert in_a_row([*failed_at, until])[0] == times + 1
    assert in_a_row([*failed_at, failed_at[-1] + FORGOTTEN_AFTER + timedelta(seconds=1)])[0] == 1


@pytest.mark.parametrize(
    ("number", "word"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd")]
)
def test_ordinals(number: int, word: str) -> None:
    assert ordinal(number) == word

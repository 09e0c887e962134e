"""How long a candidate that failed is passed over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.clouds.backoff import (
    FIRST,
    FORGOTTEN_AFTER,
    LONGEST,
    in_a_row,
    ordinal,
    passed_over,
    pause,
)
from airflow_gpu_provider.clouds.base import FailureKind, LaunchFailure
from tests.unit.scaling.pools import A, B, C, groups, pool

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


KINDS: list[FailureKind | None] = [None, "out_of_stock", "refused", "other"]


@given(kinds=st.tuples(*[st.sampled_from(KINDS)] * 3), full=st.integers(0, 7), gone=st.integers(0, 7))
def test_any_failed_launch_passes_a_candidate_over_while_another_is_open(
    kinds: tuple[FailureKind | None, ...], full: int, gone: int
) -> None:
    """Where none is, one that failed for who knows what is asked again; stock and refusals are waited for."""
    fields: dict[str, dict[str, Any]] = {}
    for number, (name, kind) in enumerate(zip((A, B, C), kinds, strict=True)):
        failure = LaunchFailure(at=START, message="No.", kind=kind) if kind else None
        fields[name.replace("-", "_")] = {
            "launch_failure": failure,
            "max_size": 0 if full >> number & 1 else 4,
            "status": "failed" if gone >> number & 1 else "active",
        }
    found = groups(pool(), **fields)
    over = passed_over(found, START)
    failed = {name for name, kind in zip((A, B, C), kinds, strict=True) if kind}
    is_another_open = any(each.status == "active" and each.max_size and each.name not in failed for each in found)
    kept = (
        failed
        if is_another_open
        else {each.name for each in found if each.launch_failure and each.launch_failure.kind != "other"}
    )
    assert over.keys() == kept
    assert not passed_over(found, START + FIRST)


MINUTES = st.integers(0, 20)


@given(failed=st.tuples(*[st.none() | MINUTES] * 3), ended=st.tuples(*[st.none() | MINUTES] * 3), now=MINUTES)
def test_a_quota_is_met_no_longer_once_a_machine_of_any_group_has_ended_since(
    failed: tuple[int | None, ...], ended: tuple[int | None, ...], now: int
) -> None:
    def at(minutes: int) -> datetime:
        return START + timedelta(minutes=minutes)

    fields: dict[str, dict[str, Any]] = {}
    for name, failure, end in zip((A, B, C), failed, ended, strict=True):
        met = None if failure is None else LaunchFailure(at=at(failure), message="No.", kind="quota")
        fields[name.replace("-", "_")] = {"launch_failure": met, "last_end": None if end is None else at(end)}
    over = passed_over(groups(pool(), **fields), at(now))
    last_end = max((end for end in ended if end is not None), default=-1)
    counts = [failure for failure in failed if failure is not None and last_end <= failure and now < failure + 5]
    assert over.keys() == ({A, B, C} if counts else set())


def test_a_machine_that_has_ended_makes_no_stock() -> None:
    dry = {"launch_failure": LaunchFailure(at=START, message="No.", kind="out_of_stock"), "last_end": START + FIRST / 2}
    assert passed_over(groups(pool(), train_a_g6_xlarge=dry), START + FIRST / 2).keys() == {A}


@pytest.mark.parametrize(
    ("number", "word"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd")]
)
def test_ordinals(number: int, word: str) -> None:
    assert ordinal(number) == word

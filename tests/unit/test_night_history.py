"""The record of a block's last nights, which each scale-down carries on."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.clouds.base import Group, MachineLoss
from airflow_gpu_provider.pools.candidates import Candidate
from airflow_gpu_provider.reports.night_history import (
    MOST_BYTES,
    MOST_NIGHTS,
    Night,
    NightHistory,
    percentile,
    run_of,
)
from airflow_gpu_provider.tasks.night_records import keep_night
from airflow_gpu_provider.testing import TaskInstance

START = datetime(2026, 3, 1, 20, tzinfo=UTC)


def at(minutes: float) -> str:
    return (START + timedelta(minutes=minutes)).isoformat()


def lane(machine: str, launched: float, usable: float | None, *worked: tuple[float, float]) -> dict[str, Any]:
    spans = [[at(start), at(end)] for start, end in worked]
    usable_at = None if usable is None else at(usable)
    return {"machine": machine, "launched_at": at(launched), "usable_at": usable_at, "worked": spans}


USAGE = {"cost": {"total": 3.14159}, "timeline": [lane("i-1", 1, 4, (5, 65)), lane("i-2", 70, 73, (74, 124.5))]}
ENSURED = {"timeline": [{"phase": "machine launched", "at": at(0), "seconds": 60}]}
PULLS = [
    {"phase": "image pulled", "image": "train:1", "seconds": 41.6, "attempt": 1},
    {"phase": "image pulled", "image": "train:1", "seconds": 90, "attempt": 2},
    {"phase": "container ran", "seconds": 3600},
]


def group(*lost: str) -> Group:
    where = Candidate(group="spot-a", zone="us-west-2a", instance_type="g6.xlarge", market="SPOT")
    earlier = MachineLoss(at=START - timedelta(hours=1), machine="i-1", why="spot")  # of a name that comes again
    losses = (earlier, *(MachineLoss(at=START + timedelta(minutes=9), machine=each, why="spot") for each in lost))
    return Group(name="spot-a", candidate=where, status="active", desired=0, max_size=2, losses=losses)


def night(number: int, **fields: Any) -> Night:
    return Night(run=run_of(f"run-{number}"), at=START + timedelta(days=number), **fields)


def test_a_night_by_hand() -> None:
    found = Night.of(
        "run", USAGE, ensured=ENSURED, timelines=[PULLS], groups=[group("i-1", "i-of-another")], state="success"
    )
    assert found == Night(
        run=run_of("run"), at=START, wait=240, pull=42, ran=7230, cost=3.142, state="success", losses={"spot-a": 1}
    )
    assert found.done_at == START + timedelta(minutes=124.5)


def test_what_is_not_known_is_none() -> None:
    usage = {"cost": {"total": "unknown"}, "timeline": [lane("i-1", 1, None)]}
    assert Night.of("run", usage, ensured=None) == Night(run=run_of("run"), at=START + timedelta(minutes=1))
    assert Night.of("run", {"timeline": []}, ensured=ENSURED) is None


def test_a_cleared_run_s_last_night_counts() -> None:
    history = NightHistory().with_night(night(1, cost=1.0)).with_night(night(2)).with_night(night(1, cost=5.0))
    assert [each.cost for each in history.nights] == [5.0, None]


long = st.builds(
    night,
    st.integers(0, 400),
    wait=st.integers(0, 10**6),
    ran=st.integers(0, 10**7),
    pull=st.none() | st.integers(0, 10**4),
    cost=st.none() | st.floats(0, 10**5).map(lambda value: round(value, 3)),
    state=st.sampled_from(["", "success", "failed"]),
    losses=st.dictionaries(st.text(max_size=60), st.integers(1, 99), max_size=4),
)


@given(st.lists(long, max_size=40))
def test_it_stays_within_its_bounds_and_is_read_as_it_was_written(nights: list[Night]) -> None:
    history = NightHistory()
    for each in nights:
        history = history.with_night(each)
    text = json.dumps(history.to_json())
    assert len(text) <= MOST_BYTES
    assert len(history.nights) <= MOST_NIGHTS
    assert NightHistory.parse(json.loads(text)) == history
    if nights:
        assert history.nights[-1].at == max(each.at for each in nights), "the newest are kept"


@pytest.mark.parametrize("raw", [None, "x", {"a": 1}, [1, None, [], ["a"], ["a", "no time", 1, 2, 3, 4, "", {}]]])
def test_what_is_no_record_is_left_out(raw: Any) -> None:
    assert NightHistory.parse(raw) == NightHistory()


def test_nothing_is_concluded_from_fewer_than_five_nights() -> None:
    nights = [night(n, wait=60 * n, ran=3600, cost=2.0, losses={"a": n % 2}) for n in range(1, 11)]
    assert NightHistory(nights=tuple(nights[:4])).in_words("USD") == ""
    assert NightHistory(nights=tuple(nights)).in_words("USD") == (
        "10 earlier nights of this block; nodes after 5 min (nine of ten: at most 9 min); work for 1 h 0 min (nine of"
        " ten: at most 1 h 0 min); 2.00 USD on average; machines lost: 5 of a"
    )


@given(st.lists(st.floats(0, 100), min_size=1), st.sampled_from([0.5, 0.9, 1.0]))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


def test_a_record_that_cannot_be_kept_fails_no_task(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    ti = TaskInstance(task_id="scale_down", run_id="run")
    task: Any = SimpleNamespace(has_dag=lambda: False)
    context: Any = {"ti": ti}

    def fails() -> list[Group]:
        raise OSError("no answer")

    keep_night(task, context, USAGE, fails)
    assert "history" not in ti.xcoms
    assert "could not be kept" in caplog.text
    for _ in range(2):
        keep_night(task, context, USAGE, lambda: [group("i-2")])
    (row,) = ti.xcoms["history"]
    assert row[-1] == {"spot-a": 1}

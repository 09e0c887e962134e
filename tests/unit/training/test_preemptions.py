"""What an attempt leaves to the next one, and when there is a next one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.errors import (
    EndUnknown,
    GpuHung,
    GpuOutOfMemory,
    PodDeadline,
    PodFailed,
    PodPreempted,
    PoolSpecError,
)
from airflow_gpu_provider.training.life.run import AttemptRecord, Preemptions

NOW = datetime(2026, 1, 1, 2, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


def test_record_survives_a_triggers_row() -> None:
    attempt = AttemptRecord().following(deadline=LATER, phases=[{"phase": "ran", "seconds": 3.0}])
    assert AttemptRecord.from_record(json.loads(json.dumps(attempt.to_record()))) == attempt


def test_event_of_an_earlier_release_is_a_first_attempt() -> None:
    assert AttemptRecord.from_record({}) == AttemptRecord()


def test_timeline_tells_attempts_apart() -> None:
    second = AttemptRecord().following(deadline=LATER, phases=[{"phase": "ran", "seconds": 3.0}])
    assert second.whole_timeline([{"phase": "ran", "seconds": 4.0}]) == (
        {"phase": "ran", "seconds": 3.0, "attempt": 1},
        {"phase": "ran", "seconds": 4.0, "attempt": 2},
    )


@given(at_most=st.integers(0, 20))
def test_a_try_has_one_pod_more_than_it_may_be_preempted(at_most: int) -> None:
    preemptions = Preemptions.of("resume", max_preemptions=at_most, has_checkpoint=False)
    attempt = AttemptRecord()
    while not preemptions.why_not(attempt, deadline=LATER, now=NOW):
        attempt = attempt.following(deadline=LATER, phases=[])
    assert attempt.number == at_most + 1


@pytest.mark.parametrize(
    ("on_preemption", "has_checkpoint", "resumes"),
    [(None, True, True), (None, False, False), ("resume", False, True), ("fail", True, False)],
)
def test_a_checkpoint_is_what_resuming_is_for(on_preemption: str | None, has_checkpoint: bool, resumes: bool) -> None:
    preemptions = Preemptions.of(on_preemption, max_preemptions=3, has_checkpoint=has_checkpoint)
    assert (not preemptions.why_not(AttemptRecord(), deadline=LATER, now=NOW)) is resumes


def test_nothing_starts_after_the_deadline() -> None:
    preemptions = Preemptions.of("resume", max_preemptions=3, has_checkpoint=True)
    assert "deadline" in preemptions.why_not(AttemptRecord(), deadline=NOW, now=NOW)


@pytest.mark.parametrize(("on_preemption", "max_preemptions"), [("retry", 3), ("resume", -1), ("resume", True)])
def test_wrong_arguments_are_refused(on_preemption: str, max_preemptions: int) -> None:
    with pytest.raises(PoolSpecError):
        Preemptions.of(on_preemption, max_preemptions=max_preemptions, has_checkpoint=True)


def asking(codes: Any = (75,), **changes: Any) -> Preemptions:
    given = {"on_preemption": None, "max_preemptions": 3, "has_checkpoint": True, "exit_codes": codes, **changes}
    return Preemptions.of(given.pop("on_preemption"), **given)


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"codes": [0]}, "from 1 to 255"),
        ({"codes": 256}, "from 1 to 255"),
        ({"codes": [True]}, "from 1 to 255"),
        ({"codes": "75"}, "from 1 to 255"),
        ({"codes": [75, 137]}, "such as 75"),
        ({"codes": 143}, "such as 75"),
        ({"skips": [75]}, "Choose one"),
        ({"has_checkpoint": False}, "checkpoint="),
        ({"on_preemption": "fail"}, "Leave out one"),
    ],
)
def test_exit_codes_that_cannot_ask_for_a_node_are_refused(changes: dict[str, Any], fix: str) -> None:
    with pytest.raises(PoolSpecError, match=fix):
        asking(**changes)


@pytest.mark.parametrize("codes", [75, [75], (75, 76), {75}])
def test_an_exit_code_asks_for_another_node_whatever_its_log_says(codes: Any) -> None:
    for error in (PodFailed("It failed.", exit_code=75), GpuOutOfMemory("No memory.", exit_code=75, without_log="No.")):
        end = asking(codes).end(error, "n1")
        assert isinstance(end, PodPreempted)
        assert "another node than n1 (exit code 75)" in end.what
        assert end.details == {"exit_code": 75, "node": "n1", "asked_for_node": True}


@pytest.mark.parametrize(
    "error",
    [
        None,
        PodFailed("It failed.", exit_code=1),
        PodFailed("It has no exit code."),
        PodPreempted("Its node was reclaimed, and it has saved.", exit_code=75),
        EndUnknown("Nobody saw it.", exit_code=75),
        PodDeadline("Its time was over.", exit_code=75),
        GpuHung("It hung.", exit_code=75),
    ],
)
def test_other_ends_ask_for_nothing(error: Any) -> None:
    assert asking().end(error, "n1") is error


def test_the_timeline_has_the_request() -> None:
    second = AttemptRecord().following(deadline=LATER, phases=[{"phase": "ran", "seconds": 3.0}], is_request=True)
    assert second.timeline == ({"phase": "ran", "seconds": 3.0, "end": "asked for another node", "attempt": 1},)

"""Demand Leases that somebody edited by hand: no decision on the pool fails by that, and no run loses its nodes."""

from __future__ import annotations

from datetime import timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_gpu_provider.reports.status import pool_status
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.end.janitor import look
from airflow_gpu_provider.scaling.state.demand import DemandLease
from tests.unit.scaling.pools import LATER, NOW, lease, machine, snapshot

PREFIX = "airflow-gpu-provider/"
WRITTEN = ("nodes", "until", "groups", "attempts", "attempt-since", "resume-at")

zones = st.integers(-23, 23).map(lambda hours: timezone(timedelta(hours=hours)))
times = st.datetimes().map(str) | st.datetimes(timezones=zones).map(lambda at: at.isoformat())
odd_times = st.sampled_from(["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59Z", "2026-03-01", "20260301T080000"])
json_like = st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=5).map(repr)
junk = st.text() | times | odd_times | json_like | st.integers().map(str) | st.just("[" * 5000) | st.just("9" * 5000)


def edited(**annotations: str) -> dict[str, Any]:
    raw = lease(nodes=2).manifest()
    raw["metadata"]["annotations"] |= {PREFIX + name.replace("_", "-"): text for name, text in annotations.items()}
    return raw


@given(st.dictionaries(st.sampled_from(WRITTEN), junk))
@example({"until": "2026-03-01T08:00:00"})
@example({"until": ""})
def test_any_words_are_demand_that_can_be_decided_on_and_written_again(annotations: dict[str, str]) -> None:
    found = DemandLease.parse(edited(**annotations))
    seen = snapshot(machine(1), machine(2), leases=(found,))
    said = decide(seen).notes
    named = {each.what for each in found.unreadable}
    assert named <= set(annotations)
    assert sum(found.key.lease_name in line for line in said) == len(named)
    assert found.until == LATER or "until" not in named
    assert DemandLease.parse(found.manifest()) == found


def test_a_time_without_a_zone_is_utc() -> None:
    found = DemandLease.parse(edited(until=f"{LATER + timedelta(hours=1):%Y-%m-%dT%H:%M}"))
    assert (found.until, found.unreadable) == (LATER + timedelta(hours=1), ())


@pytest.mark.parametrize("until", ["tomorrow", "", "9999-12-31T00:00:00Z"])
def test_a_time_that_nobody_can_read_is_as_it_was_written(until: str) -> None:
    found = DemandLease.parse(edited(until=until))
    decision = decide(snapshot(machine(1), machine(2), leases=(found,)))
    assert not decision.release
    assert not decision.switch  # it is right where it is
    (said,) = (line for line in decision.notes if "cannot be parsed" in line)
    assert found.key.lease_name in said
    assert str(LATER) in said


def test_where_nothing_says_how_long_it_lasts_it_is_a_day() -> None:
    raw = edited(until="tomorrow")
    del raw["spec"]["leaseDurationSeconds"]
    assert DemandLease.parse(raw).until == lease().created_at + timedelta(days=1)


def test_a_number_that_nobody_can_read_is_one_node() -> None:
    assert DemandLease.parse(edited(nodes="many")).nodes == 1
    assert DemandLease.parse(edited(nodes="-5")).live(NOW)


def test_what_cannot_be_read_is_in_the_status_and_what_reap_says() -> None:
    found = DemandLease.parse(edited(nodes="zwei", gang="{]"))
    seen = snapshot(machine(1), leases=(found,))
    (row,) = pool_status(seen, "here").leases
    assert [line.partition(": ")[2].partition(",")[0] for line in row.unreadable] == [
        "airflow-gpu-provider/nodes is 'zwei'",
        "airflow-gpu-provider/gang is '{]'",
    ]
    assert look(seen, "airflow", lambda run: False).unreadable == row.unreadable

"""What a quota keeps from growing, on any cloud."""

from __future__ import annotations

from airflow_gpu_provider.clouds.quota import pass_over
from airflow_gpu_provider.pools import Candidate

SPOT, ON_DEMAND = (
    Candidate(group=market.lower(), zone="us-west-2a", instance_type="g6.xlarge", market=market)
    for market in ("SPOT", "ON_DEMAND")
)


def test_where_one_has_room_for_all_the_others_are_passed_over_and_said_once() -> None:
    verdict = pass_over([SPOT, SPOT, ON_DEMAND], 2, {"spot": 1, "on_demand": 2}, lambda candidate: "too small")
    assert verdict.over_quota == {"spot"}
    assert verdict.notes == ("g6.xlarge spot is not tried: too small",)


def test_where_none_has_room_for_all_those_with_some_are_used_together() -> None:
    assert pass_over([SPOT, ON_DEMAND], 2, {"spot": 1, "on_demand": 1}, str).over_quota == frozenset()

"""Which instances of a group AWS took back, by its activities, and by EC2's word on those that it only found gone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.clouds.aws.group_state import ends_to_explain, losses
from airflow_gpu_provider.clouds.base import MachineLoss

NOW = datetime(2026, 3, 1, 4, tzinfo=UTC)
ONE = "i-0123456789abcdef0"
FOUND_GONE = "At T an instance was taken out of service in response to an EC2 health check indicating it is gone."
TAKEN = "At T an instance was taken out of service in response to an EC2 Spot Instance interruption notice."
AT_RISK = "At T an EC2 instance rebalance recommendation was received for i-0123456789abcdef0."


def end(cause: str, hours_ago: float = 1, status: str = "Successful") -> dict[str, Any]:
    return activity(f"Terminating EC2 instance: {ONE}", cause, hours_ago, status)


def activity(what: str, cause: str, hours_ago: float, status: str = "Successful") -> dict[str, Any]:
    return {"Description": what, "Cause": cause, "StartTime": NOW - timedelta(hours=hours_ago), "StatusCode": status}


def launch(hours_ago: float) -> dict[str, Any]:
    return activity(f"Launching a new EC2 instance: {ONE}", "", hours_ago)


@pytest.mark.parametrize(
    ("cause", "code", "market", "launched", "why"),
    [
        (TAKEN, "", "SPOT", 5, "Spot interruption"),
        (AT_RISK, "", "SPOT", 5, "EC2 rebalance recommendation"),
        (FOUND_GONE, "Server.SpotInstanceTermination", "SPOT", 5, "EC2 health check"),
        (FOUND_GONE, "", "SPOT", 5, "EC2 health check"),
        (FOUND_GONE, "Client.UserInitiatedShutdown", "SPOT", 5, ""),
        (FOUND_GONE, "Server.InternalError", "ON_DEMAND", 1.3, "EC2 health check"),
        (FOUND_GONE, "Server.InternalError", "ON_DEMAND", 5, ""),
        ("At T instance i-0 was taken out of service in response to a user request.", "", "SPOT", 5, ""),
        ("At T an instance was taken out of service in response to a user health-check.", "", "SPOT", 5, ""),
        ("At T instances were launched to balance instances in zones us-west-2a.", "", "SPOT", 5, ""),
        ("At T a difference between desired and actual capacity, shrinking from 1 to 0.", "", "SPOT", 5, ""),
    ],
)
def test_what_is_a_loss(cause: str, code: str, market: str, launched: float, why: str) -> None:
    found = losses([end(cause), launch(launched)], market, {ONE: code})
    at = NOW - timedelta(hours=1)
    assert found == ((MachineLoss(at=at, machine=ONE, why=why),) if why else ())


def test_one_that_is_still_drained_counts_and_the_oldest_comes_first() -> None:
    found = losses([end(AT_RISK, 0.1, "InProgress"), end(TAKEN, 2)], "SPOT", {})
    assert [each.at for each in found] == [NOW - timedelta(hours=2), NOW - timedelta(hours=0.1)]


def test_ec2_is_asked_about_what_was_only_found_gone_and_lately() -> None:
    assert ends_to_explain([end(FOUND_GONE), launch(2)], NOW) == {ONE}
    assert not ends_to_explain([end(FOUND_GONE, 4)], NOW)
    assert not ends_to_explain([end(TAKEN), launch(2)], NOW)

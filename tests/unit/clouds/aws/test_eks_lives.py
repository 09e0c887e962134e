"""When EC2 instances ran, from what EC2 and EC2 Auto Scaling say of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.clouds.aws.group_state import instance_ids, launched_by, lives
from airflow_gpu_provider.clouds.base import MachineLife

START = datetime(2026, 3, 1, 2, tzinfo=UTC)
ONE = "i-0123456789abcdef0"
BY_HEALTH_CHECK = (
    "At 2026-03-01T03:00:00Z an instance was taken out of service in response to an EC2 health check indicating it has"
    " been terminated or stopped."
)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def activity(what: str, start: float, end: float | None, *, cause: str = "", **fields: Any) -> dict[str, Any]:
    status = "InProgress" if end is None else "Successful"
    over = {} if end is None else {"EndTime": at(end)}
    return {"Description": what, "StatusCode": status, "StartTime": at(start), "Cause": cause, **over, **fields}


def launch(start: float = 0) -> dict[str, Any]:
    return activity(f"Launching a new EC2 instance: {ONE}", start, start + 1)


def termination(start: float, end: float | None, cause: str = "") -> dict[str, Any]:
    return activity(f"Terminating EC2 instance: {ONE}", start, end, cause=cause)


def instance(state: str, reason: str = "") -> dict[str, Any]:
    return {"InstanceId": ONE, "State": {"Name": state}, "LaunchTime": at(0.5), "StateTransitionReason": reason}


def life(launched: float | None, ended: float | None) -> MachineLife:
    return MachineLife(
        id=ONE,
        group="g",
        launched_at=None if launched is None else at(launched),
        ended_at=None if ended is None else at(ended),
    )


@pytest.mark.parametrize(
    ("activities", "described", "expected"),
    [
        ([launch()], instance("running"), [life(0.5, None)]),
        # Drained for minutes before it is ended: it runs until then, and is not paid for while it shuts down.
        ([launch(), termination(50, None)], instance("running"), [life(0.5, None)]),
        (
            [launch(), termination(50, None)],
            instance("shutting-down", "User initiated (2026-03-01 02:55:00 GMT)"),
            [life(0.5, 55)],
        ),
        (
            [launch(), termination(50, 57)],
            instance("terminated", "User initiated (2026-03-01 02:55:00 GMT)"),
            [life(0.5, 55)],
        ),
        # Taken back: EC2 gives no time, and the group has noticed it at once.
        (
            [launch(), termination(60, 62, BY_HEALTH_CHECK)],
            instance("terminated", "Server.SpotInstanceTermination"),
            [life(0.5, 60)],
        ),
        # EC2 has forgotten it.
        ([launch(), termination(60, 62, BY_HEALTH_CHECK)], None, [life(0, 60)]),
        ([launch(), termination(50, 57)], None, [life(0, 57)]),
        ([termination(50, 57)], None, [life(None, 57)]),
        # It ended, and nothing tells when: what looks have seen has to do.
        ([launch()], None, []),
        ([launch()], instance("terminated", "Server.InternalError"), []),
        # Before the time that matters.
        ([launch(-30), termination(-20, -10)], None, []),
    ],
)
def test_lives(activities: list[dict[str, Any]], described: dict[str, Any] | None, expected: list[MachineLife]) -> None:
    instances = {ONE: described} if described else {}
    assert list(lives("g", activities, instances, at(0))) == expected
    assert list(lives("g", activities[::-1], instances, at(0))) == expected, "newest first, or oldest"


def test_a_launch_that_failed_has_no_instance() -> None:
    failed = activity("Launching a new EC2 instance.  Status Reason: no Spot capacity available", 0, 1)
    assert instance_ids([failed, launch()]) == {ONE}
    assert lives("g", [failed], {}, at(0)) == ()


def test_an_instance_is_of_the_group_whose_tag_it_has() -> None:
    tagged = {**instance("running"), "Tags": [{"Key": "aws:autoscaling:groupName", "Value": "asg-1"}]}
    assert launched_by("asg-1", [tagged, instance("running")]) == {ONE: tagged}
    assert launched_by("asg-2", [tagged]) == {}

"""Scheduled actions: they fire, they vanish, and AWS's refusals, through boto3."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from sandbox.tests.aws.conftest import Account, eventually
from tests.sandbox.running import standing_still


def soon(seconds: float = 2.0) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def put(account: Account, asg: str, **action: Any) -> None:
    account.asg.put_scheduled_update_group_action(
        **{"AutoScalingGroupName": asg, "ScheduledActionName": "switch-off", "DesiredCapacity": 0} | action
    )


def actions(account: Account, asg: str) -> list[dict[str, Any]]:
    described = account.asg.describe_scheduled_actions(AutoScalingGroupName=asg)
    return list(described["ScheduledUpdateGroupActions"])


def refusal(account: Account, asg: str, **action: Any) -> str:
    with pytest.raises(ClientError) as error:
        put(account, asg, **action)
    assert error.value.response["Error"]["Code"] == "ValidationError"
    return str(error.value.response["Error"]["Message"])


def test_the_switch_fires_once_and_vanishes(account: Account) -> None:
    asg = account.node_group()
    (instance,) = account.grow(asg, 1)
    with standing_still(account.cloud):
        put(account, asg, StartTime=soon())
        (action,) = actions(account, asg)
    assert (action["DesiredCapacity"], action.get("MinSize")) == (0, None)

    eventually(lambda: account.ec2_state(instance), lambda state: state == "terminated")
    assert actions(account, asg) == []
    assert account.group(asg)["DesiredCapacity"] == 0
    assert "a scheduled action update of AutoScalingGroup constraints" in account.activities(asg)[0]["Cause"]
    assert account.events.kinds() == ["launched", "drain", "terminated"]


def test_an_action_hours_ahead_comes_sooner_where_deadlines_do(account: Account) -> None:
    asg = account.node_group()
    account.grow(asg, 1)
    put(account, asg, StartTime=soon(3600))
    begun = time.monotonic()
    account.faults.deadline_speed = 1200
    eventually(lambda: actions(account, asg), lambda left: left == [])
    assert time.monotonic() - begun > 2
    assert account.group(asg)["DesiredCapacity"] == 0
    # One that is put or moved now counts from now.
    put(account, asg, StartTime=soon(24 * 3600))
    account.faults.deadline_speed = None
    assert len(actions(account, asg)) == 1


def test_moving_the_switch_keeps_what_is_left_out(account: Account) -> None:
    asg = account.node_group()
    first, later = soon(3600).replace(microsecond=0), soon(7200).replace(microsecond=0)
    put(account, asg, StartTime=first, MaxSize=2)
    account.asg.put_scheduled_update_group_action(
        AutoScalingGroupName=asg, ScheduledActionName="switch-off", StartTime=later
    )

    (action,) = actions(account, asg)
    assert (action["StartTime"], action["DesiredCapacity"], action["MaxSize"]) == (later, 0, 2)


def test_groups_may_use_the_same_action_name(account: Account) -> None:
    a = account.node_group("a")
    b = account.node_group("b")
    put(account, a, StartTime=soon(100))
    put(account, b, StartTime=soon(200))
    account.asg.delete_scheduled_action(AutoScalingGroupName=a, ScheduledActionName="switch-off")

    assert actions(account, a) == []
    assert len(actions(account, b)) == 1


def test_a_recurring_action_moves_on(account: Account) -> None:
    asg = account.node_group()
    put(account, asg, StartTime=soon(), Recurrence="0 2 * * *", DesiredCapacity=1, TimeZone="Europe/Berlin")
    eventually(lambda: account.instances(asg))

    (action,) = actions(account, asg)
    assert action["StartTime"] > datetime.now(UTC)
    assert action["StartTime"].minute == 0
    assert action["TimeZone"] == "Europe/Berlin"


def test_a_suspended_action_passes_without_effect(account: Account) -> None:
    asg = account.node_group()
    (instance,) = account.grow(asg, 1)
    account.asg.suspend_processes(AutoScalingGroupName=asg, ScalingProcesses=["ScheduledActions"])
    put(account, asg, StartTime=soon())
    eventually(lambda: not actions(account, asg))

    assert account.instances(asg) == [instance]


def test_actions_go_with_their_group(account: Account) -> None:
    asg = account.node_group()
    put(account, asg, StartTime=soon(3600))
    account.eks.delete_nodegroup(clusterName="k8s-ml", nodegroupName="train-gpu-a")

    eventually(lambda: not account.asg.describe_scheduled_actions()["ScheduledUpdateGroupActions"])


def test_what_aws_refuses(account: Account) -> None:
    asg = account.node_group()
    assert refusal(account, asg, StartTime=soon(-5)) == "Given start time is in the past"
    assert refusal(account, asg, StartTime=soon(60), DesiredCapacity=4) == (
        "Desired capacity must be less than or equal to max size"
    )
    assert refusal(account, asg, StartTime=soon(60), MinSize=1) == (
        "Desired capacity must be greater than or equal to min size"
    )
    assert refusal(account, asg, StartTime=soon(60), MinSize=2, MaxSize=1, DesiredCapacity=1)
    assert refusal(account, asg) == "Either recurrence, time or start_time should be given"
    assert "recurrence" in refusal(account, asg, Recurrence="every night")
    assert "timezone" in refusal(account, asg, Recurrence="0 2 * * *", TimeZone="Mars/Olympus")
    assert "name not found" in refusal(account, "nope", StartTime=soon(60))
    assert actions(account, asg) == []


def test_two_actions_at_the_same_moment_are_refused(account: Account) -> None:
    asg = account.node_group()
    when = soon(3600)
    put(account, asg, StartTime=when)
    with pytest.raises(ClientError) as error:
        put(account, asg, StartTime=when, ScheduledActionName="another")
    assert error.value.response["Error"]["Code"] == "AlreadyExists"


def test_deleting_an_unknown_action(account: Account) -> None:
    asg = account.node_group()
    with pytest.raises(ClientError) as error:
        account.asg.delete_scheduled_action(AutoScalingGroupName=asg, ScheduledActionName="nope")
    assert error.value.response["Error"]["Code"] == "ValidationError"


def test_actions_in_a_batch(account: Account) -> None:
    asg = account.node_group()
    failed = account.asg.batch_put_scheduled_update_group_action(
        AutoScalingGroupName=asg,
        ScheduledUpdateGroupActions=[
            {"ScheduledActionName": "good", "StartTime": soon(60), "DesiredCapacity": 0},
            {"ScheduledActionName": "bad", "StartTime": soon(90), "DesiredCapacity": 9},
        ],
    )["FailedScheduledUpdateGroupActions"]

    assert [(one["ScheduledActionName"], one["ErrorCode"]) for one in failed] == [("bad", "ValidationError")]
    assert [action["ScheduledActionName"] for action in actions(account, asg)] == ["good"]

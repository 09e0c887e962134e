"""Scheduled actions: they fire, they vanish, and AWS's refusals, through boto3."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from botocore.exceptions import ClientError

from tests.sandbox.aws_account import CLUSTER, END, LAUNCH, Account


def put(account: Account, asg: str, *, hours: float | None = None, **action: Any) -> None:
    """An action that starts so many hours from now; the API takes whole seconds."""
    if hours is not None:
        action["StartTime"] = account.clock.utc_now().replace(microsecond=0) + timedelta(hours=hours)
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
    put(account, asg, hours=1)
    account.advance(minutes=59, seconds=58)
    (action,) = actions(account, asg)
    assert (action["DesiredCapacity"], action.get("MinSize")) == (0, None)
    assert account.group(asg)["DesiredCapacity"] == 1

    account.advance(2 + END)
    assert account.ec2_state(instance) == "terminated"
    assert actions(account, asg) == []
    assert account.group(asg)["DesiredCapacity"] == 0
    assert "a scheduled action update of AutoScalingGroup constraints" in account.activities(asg)[0]["Cause"]
    assert account.events.kinds() == ["launched", "drain", "terminated"]


def test_an_action_hours_ahead_comes_sooner_where_deadlines_do(account: Account) -> None:
    asg = account.node_group()
    account.grow(asg, 1)
    put(account, asg, hours=1)
    account.advance(minutes=30)
    account.faults.deadline_speed = 60
    account.advance(29)
    assert len(actions(account, asg)) == 1
    account.advance(1)
    assert actions(account, asg) == []
    assert account.group(asg)["DesiredCapacity"] == 0
    # One that is put or moved now counts from now.
    put(account, asg, hours=24)
    account.faults.deadline_speed = None
    account.advance(hours=23)
    assert len(actions(account, asg)) == 1
    account.advance(hours=1)
    assert actions(account, asg) == []


def test_moving_the_switch_keeps_what_is_left_out(account: Account) -> None:
    asg = account.node_group()
    later = account.clock.utc_now().replace(microsecond=0) + timedelta(hours=2)
    put(account, asg, hours=1, MaxSize=2)
    account.asg.put_scheduled_update_group_action(
        AutoScalingGroupName=asg, ScheduledActionName="switch-off", StartTime=later
    )

    (action,) = actions(account, asg)
    assert (action["StartTime"], action["DesiredCapacity"], action["MaxSize"]) == (later, 0, 2)


def test_groups_may_use_the_same_action_name(account: Account) -> None:
    a = account.node_group("a")
    b = account.node_group("b")
    put(account, a, hours=1)
    put(account, b, hours=2)
    account.asg.delete_scheduled_action(AutoScalingGroupName=a, ScheduledActionName="switch-off")

    assert actions(account, a) == []
    assert len(actions(account, b)) == 1


def test_a_recurring_action_moves_on(account: Account) -> None:
    asg = account.node_group()
    put(account, asg, hours=1, Recurrence="0 2 * * *", DesiredCapacity=1, TimeZone="Europe/Berlin")
    account.advance(3600 + LAUNCH)
    assert len(account.instances(asg)) == 1

    (action,) = actions(account, asg)
    following = action["StartTime"].astimezone(ZoneInfo("Europe/Berlin"))
    assert (following.hour, following.minute, action["TimeZone"]) == (2, 0, "Europe/Berlin")
    left = action["StartTime"] - account.clock.utc_now()
    assert timedelta(0) < left <= timedelta(hours=25)
    account.resize(asg, 0)
    account.advance(left.total_seconds() + LAUNCH)
    assert account.group(asg)["DesiredCapacity"] == 1
    assert actions(account, asg)[0]["StartTime"] > action["StartTime"]


def test_a_suspended_action_passes_without_effect(account: Account) -> None:
    asg = account.node_group()
    (instance,) = account.grow(asg, 1)
    account.asg.suspend_processes(AutoScalingGroupName=asg, ScalingProcesses=["ScheduledActions"])
    put(account, asg, hours=1)
    account.advance(hours=2)

    assert (actions(account, asg), account.instances(asg)) == ([], [instance])


def test_actions_go_with_their_group(account: Account) -> None:
    asg = account.node_group()
    put(account, asg, hours=1)
    account.eks.delete_nodegroup(clusterName=CLUSTER, nodegroupName="train-gpu-a")
    account.advance(END)

    assert account.asg.describe_scheduled_actions()["ScheduledUpdateGroupActions"] == []


def test_what_aws_refuses(account: Account) -> None:
    asg = account.node_group()
    assert refusal(account, asg, hours=-1) == "Given start time is in the past"
    assert refusal(account, asg, hours=1, DesiredCapacity=4) == (
        "Desired capacity must be less than or equal to max size"
    )
    assert refusal(account, asg, hours=1, MinSize=1) == ("Desired capacity must be greater than or equal to min size")
    assert refusal(account, asg, hours=1, MinSize=2, MaxSize=1, DesiredCapacity=1)
    assert refusal(account, asg) == "Either recurrence, time or start_time should be given"
    assert "recurrence" in refusal(account, asg, Recurrence="every night")
    assert "timezone" in refusal(account, asg, Recurrence="0 2 * * *", TimeZone="Mars/Olympus")
    assert "name not found" in refusal(account, "nope", hours=1)
    assert actions(account, asg) == []


def test_two_actions_at_the_same_moment_are_refused(account: Account) -> None:
    asg = account.node_group()
    put(account, asg, hours=1)
    with pytest.raises(ClientError) as error:
        put(account, asg, hours=1, ScheduledActionName="another")
    assert error.value.response["Error"]["Code"] == "AlreadyExists"


def test_deleting_an_unknown_action(account: Account) -> None:
    asg = account.node_group()
    with pytest.raises(ClientError) as error:
        account.asg.delete_scheduled_action(AutoScalingGroupName=asg, ScheduledActionName="nope")
    assert error.value.response["Error"]["Code"] == "ValidationError"


def test_actions_in_a_batch(account: Account) -> None:
    asg = account.node_group()
    times = [account.clock.utc_now() + timedelta(hours=hours) for hours in (1, 2)]
    failed = account.asg.batch_put_scheduled_update_group_action(
        AutoScalingGroupName=asg,
        ScheduledUpdateGroupActions=[
            {"ScheduledActionName": "good", "StartTime": times[0], "DesiredCapacity": 0},
            {"ScheduledActionName": "bad", "StartTime": times[1], "DesiredCapacity": 9},
        ],
    )["FailedScheduledUpdateGroupActions"]

    assert [(one["ScheduledActionName"], one["ErrorCode"]) for one in failed] == [("bad", "ValidationError")]
    assert [action["ScheduledActionName"] for action in actions(account, asg)] == ["good"]

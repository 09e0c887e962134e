"""Spot interruptions: the notice, the end, and the replacement."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from sandbox.tests.aws.conftest import QUICK, Account, eventually
from tests.sandbox.running import standing_still


def test_a_notice_comes_before_the_end(account: Account) -> None:
    asg = account.node_group(capacityType="SPOT")
    (instance,) = account.grow(asg, 1)
    assert account.ec2_state(instance) == "running"  # boto3 takes longer over its first call than the notice lasts
    asked_at = datetime.now(UTC)
    account.cloud.interrupt_spot(instance)

    looks: list[tuple[str, datetime]] = []
    while not looks or looks[-1][0] != "terminated":
        looks.append((account.ec2_state(instance), datetime.now(UTC)))
        assert looks[-1][1] < asked_at + timedelta(minutes=2), looks
    eventually(lambda: account.events.of("terminated"))
    assert [kind for kind in account.events.kinds() if kind in ("notice", "terminated")] == ["notice", "terminated"]
    ends_at = account.events.notices[instance]
    assert ends_at >= asked_at + timedelta(seconds=QUICK.spot_notice)
    assert {state for state, seen_at in looks if seen_at < ends_at} <= {"running"}
    (reservation,) = account.ec2.describe_instances(InstanceIds=[instance])["Reservations"]
    assert reservation["Instances"][0]["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_the_taken_instance_is_replaced(account: Account) -> None:
    asg = account.node_group(capacityType="SPOT")
    (instance,) = account.grow(asg, 1)
    account.cloud.interrupt_spot(instance)

    eventually(lambda: account.instances(asg), lambda ids: len(ids) == 1 and ids != [instance])
    assert [kind for kind in account.events.kinds() if kind == "notice"] == ["notice"]


def test_a_second_interruption_changes_nothing(account: Account) -> None:
    asg = account.node_group(capacityType="SPOT")
    (instance,) = account.grow(asg, 1)
    with standing_still(account.cloud):
        account.cloud.interrupt_spot(instance)
        account.cloud.interrupt_spot(instance)
    eventually(lambda: account.ec2_state(instance), lambda state: state == "terminated")

    assert len(account.events.of("notice")) == 1


def test_an_interrupted_instance_may_end_earlier(account: Account) -> None:
    asg = account.node_group(capacityType="SPOT")
    (instance,) = account.grow(asg, 1)
    with standing_still(account.cloud):
        account.cloud.interrupt_spot(instance)
        account.asg.terminate_instance_in_auto_scaling_group(InstanceId=instance, ShouldDecrementDesiredCapacity=True)

    eventually(lambda: account.ec2_state(instance), lambda state: state == "terminated")
    eventually(lambda: account.events.of("terminated"))
    assert len(account.events.of("terminated")) == 1


def test_on_demand_and_unknown_instances_cannot_be_interrupted(account: Account) -> None:
    asg = account.node_group()
    (instance,) = account.grow(asg, 1)
    with pytest.raises(ValueError, match="no running spot instance"):
        account.cloud.interrupt_spot(instance)
    with pytest.raises(ValueError, match="i-nope"):
        account.cloud.interrupt_spot("i-nope")


def test_the_times_of_its_end_are_those_at_which_it_ended(account: Account) -> None:
    """EC2 gives the time where somebody ended an instance; where it took the instance itself, the group's activity."""
    asg = account.node_group(capacityType="SPOT")
    (taken,) = account.grow(asg, 1)
    account.cloud.interrupt_spot(taken)
    ends_at = eventually(lambda: account.events.notices.get(taken), lambda at: at is not None)
    assert ends_at
    eventually(lambda: account.ec2_state(taken), lambda state: state == "terminated")
    (released,) = eventually(lambda: account.instances(asg), lambda ids: len(ids) == 1 and ids != [taken])
    eventually(lambda: account.ec2_state(released), lambda state: state == "running")
    before = datetime.now(UTC).replace(microsecond=0)
    account.asg.terminate_instance_in_auto_scaling_group(InstanceId=released, ShouldDecrementDesiredCapacity=True)
    eventually(lambda: account.ec2_state(released), lambda state: state != "running")
    after = datetime.now(UTC)
    eventually(lambda: account.ec2_state(released), lambda state: state == "terminated")

    told = {each: account.ec2.describe_instances(InstanceIds=[each])["Reservations"][0] for each in (taken, released)}
    reasons = {each: reservation["Instances"][0]["StateTransitionReason"] for each, reservation in told.items()}
    assert reasons[taken] == "Server.SpotInstanceTermination"
    said = re.fullmatch(r"User initiated \((.*) GMT\)", reasons[released])
    assert said
    assert before <= datetime.fromisoformat(f"{said[1]}+00:00") <= after
    activities = account.asg.describe_scaling_activities(AutoScalingGroupName=asg)["Activities"]
    (loss,) = [each for each in activities if each["Description"] == f"Terminating EC2 instance: {taken}"]
    assert ends_at - timedelta(seconds=1) < loss["StartTime"] < loss["EndTime"] < before + timedelta(seconds=1)

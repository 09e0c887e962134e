"""Spot interruptions: the notice, the end, and the replacement."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest

from tests.sandbox.aws_account import LAUNCH, TIMINGS, Account


def test_a_notice_comes_before_the_end(account: Account) -> None:
    asg = account.node_group(capacityType="SPOT")
    (instance,) = account.grow(asg, 1)
    ends_at = account.clock.utc_now() + timedelta(minutes=2)
    account.cloud.interrupt_spot(instance)
    account.advance()
    assert account.events.notices == {instance: ends_at}

    account.advance(minutes=2, seconds=-1)
    assert account.ec2_state(instance) == "running"
    account.advance(1)
    assert account.ec2_state(instance) == "shutting-down"
    account.advance(TIMINGS.terminate)
    assert account.ec2_state(instance) == "terminated"
    assert account.events.kinds()[:2] == ["launched", "notice"]
    (reservation,) = account.ec2.describe_instances(InstanceIds=[instance])["Reservations"]
    assert reservation["Instances"][0]["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_the_taken_instance_is_replaced(account: Account) -> None:
    asg = account.node_group(capacityType="SPOT")
    (instance,) = account.grow(asg, 1)
    account.cloud.interrupt_spot(instance)
    account.advance(TIMINGS.spot_notice + TIMINGS.asg_launch)

    (another,) = account.instances(asg)
    assert another != instance
    account.advance(hours=1)
    assert account.events.kinds() == ["launched", "notice", "launched", "terminated"]


def test_a_second_interruption_changes_nothing(account: Account) -> None:
    asg = account.node_group(capacityType="SPOT")
    (instance,) = account.grow(asg, 1)
    account.cloud.interrupt_spot(instance)
    account.advance(minutes=1)
    account.cloud.interrupt_spot(instance)
    account.advance(minutes=1)
    account.advance(TIMINGS.terminate)

    assert account.ec2_state(instance) == "terminated"
    assert len(account.events.of("notice")) == 1


def test_an_interrupted_instance_may_end_earlier(account: Account) -> None:
    asg = account.node_group(capacityType="SPOT")
    (instance,) = account.grow(asg, 1)
    account.cloud.interrupt_spot(instance)
    account.terminate(instance)
    account.advance(TIMINGS.terminate)

    assert account.ec2_state(instance) == "terminated"
    account.advance(hours=1)
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
    account.advance(TIMINGS.spot_notice + LAUNCH)
    (released,) = account.instances(asg)
    released_at = account.clock.utc_now().replace(microsecond=0)
    account.terminate(released)
    account.advance(TIMINGS.terminate)

    told = {each: account.ec2.describe_instances(InstanceIds=[each])["Reservations"][0] for each in (taken, released)}
    reasons = {each: reservation["Instances"][0]["StateTransitionReason"] for each, reservation in told.items()}
    assert reasons[taken] == "Server.SpotInstanceTermination"
    said = re.fullmatch(r"User initiated \((.*) GMT\)", reasons[released])
    assert said
    assert datetime.fromisoformat(f"{said[1]}+00:00") == released_at
    (loss,) = [each for each in account.activities(asg) if each["Description"] == f"Terminating EC2 instance: {taken}"]
    assert (loss["StartTime"], loss["EndTime"]) == (
        account.events.notices[taken],
        account.events.notices[taken] + timedelta(seconds=TIMINGS.terminate),
    )

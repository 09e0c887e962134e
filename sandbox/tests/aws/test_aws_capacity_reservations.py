"""Capacity Reservations and Capacity Blocks: their states by the clock, and what launches into them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.sandbox.aws_account import LAUNCH, TIMINGS, Account

TYPE, ZONE, ELSEWHERE = "p5.48xlarge", "us-west-2a", "us-west-2b"
HOUR = timedelta(hours=1)


def described(account: Account, id_: str) -> dict[str, Any]:
    (found,) = account.ec2.describe_capacity_reservations(CapacityReservationIds=[id_])["CapacityReservations"]
    return dict(found)


def state(account: Account, id_: str) -> tuple[str, int]:
    found = described(account, id_)
    return found["State"], found["AvailableInstanceCount"]


def group(account: Account, id_: str, *, market: str = "capacity-block", zone: str = ZONE, kind: str = TYPE) -> str:
    """A self-managed group whose template targets the reservation."""
    data: dict[str, Any] = {
        "ImageId": "ami-12345678",
        "InstanceType": kind,
        "CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": id_}},
    }
    if market:
        data["InstanceMarketOptions"] = {"MarketType": market}
    account.ec2.create_launch_template(LaunchTemplateName="reserved", LaunchTemplateData=data)
    account.asg.create_auto_scaling_group(
        AutoScalingGroupName="reserved",
        MinSize=0,
        MaxSize=4,
        LaunchTemplate={"LaunchTemplateName": "reserved"},
        VPCZoneIdentifier=account.network.subnets[zone],
    )
    return "reserved"


def refusal(account: Account, asg: str, size: int) -> str:
    account.resize(asg, size)
    account.advance(LAUNCH)
    return str(account.failed(asg)[0]["StatusMessage"])


def test_a_block_is_scheduled_then_active_then_expired(account: Account) -> None:
    block = account.cloud.reserve("capacity-block", TYPE, ZONE, count=2, starts_in=2 * HOUR, lasts=24 * HOUR)
    found = described(account, block)
    assert (found["ReservationType"], found["InstanceType"], found["AvailabilityZone"]) == (
        "capacity-block",
        TYPE,
        ZONE,
    )
    assert found["EndDate"] - found["StartDate"] == 24 * HOUR
    assert state(account, block) == ("scheduled", 0)
    account.advance(hours=2)
    assert state(account, block) == ("active", 2)
    account.advance(hours=24)
    assert state(account, block) == ("expired", 0)


def test_a_test_may_hold_a_state(account: Account) -> None:
    reserved = account.cloud.reserve("default", TYPE, ZONE)
    assert described(account, reserved)["EndDateType"] == "unlimited"
    account.cloud.hold_reservation(reserved, "cancelled")
    assert state(account, reserved) == ("cancelled", 0)


@pytest.mark.parametrize(("kind", "market"), [("capacity-block", "capacity-block"), ("default", "")])
def test_launches_take_from_the_count_and_need_no_quota_and_no_stock(account: Account, kind: Any, market: str) -> None:
    account.cloud.set_quota("L-417A185B", 0)
    account.stock_out(instance_type=TYPE)
    reserved = account.cloud.reserve(kind, TYPE, ZONE, count=2, lasts=24 * HOUR)
    asg = group(account, reserved, market=market)
    first, _ = account.grow(asg, 2)
    assert state(account, reserved) == ("active", 0)
    ((instance,),) = [each["Instances"] for each in account.ec2.describe_instances(InstanceIds=[first])["Reservations"]]
    assert instance["CapacityReservationId"] == reserved
    assert instance.get("InstanceLifecycle", "") == market
    assert "does not have sufficient compatible and available capacity" in refusal(account, asg, 3)


def test_room_comes_back_when_an_instance_is_terminated_not_before(account: Account) -> None:
    block = account.cloud.reserve("capacity-block", TYPE, ZONE, lasts=24 * HOUR)
    (instance,) = account.grow(group(account, block), 1)
    account.terminate(instance)
    assert (account.ec2_state(instance), state(account, block)) == ("shutting-down", ("active", 0))
    account.advance(TIMINGS.terminate)
    assert (account.ec2_state(instance), state(account, block)) == ("terminated", ("active", 1))


@pytest.mark.parametrize(
    ("kind", "market", "where", "said"),
    [
        ("capacity-block", "", {}, "market type"),
        ("default", "capacity-block", {}, "market type"),
        ("capacity-block", "capacity-block", {"zone": ELSEWHERE}, "sufficient compatible"),
        ("capacity-block", "capacity-block", {"kind": "p4d.24xlarge"}, "sufficient compatible"),
    ],
)
def test_what_does_not_fit_a_reservation_is_refused(
    account: Account, kind: Any, market: str, where: dict[str, str], said: str
) -> None:
    reserved = account.cloud.reserve(kind, TYPE, ZONE, lasts=24 * HOUR)
    assert said in refusal(account, group(account, reserved, market=market, **where), 1)


@pytest.mark.parametrize("held", ["payment-pending", "cancelled", "delayed"])
def test_a_reservation_that_is_not_active_takes_nothing(account: Account, held: str) -> None:
    block = account.cloud.reserve("capacity-block", TYPE, ZONE, lasts=24 * HOUR, state=held)
    assert f"takes no instances: it is {held}" in refusal(account, group(account, block), 1)


def test_one_that_does_not_exist_takes_nothing_and_cannot_be_described(account: Account) -> None:
    assert "does not exist" in refusal(account, group(account, "cr-0123456789abcdef0"), 1)
    with pytest.raises(account.ec2.exceptions.ClientError, match=r"InvalidCapacityReservationId\.NotFound"):
        described(account, "cr-0123456789abcdef0")


def test_ec2_ends_a_blocks_instances_thirty_minutes_before_it_ends(account: Account) -> None:
    block = account.cloud.reserve("capacity-block", TYPE, ZONE, lasts=HOUR)
    asg = group(account, block)
    (instance,) = account.grow(asg, 1)
    account.advance_until(lambda: account.ec2_state(instance) != "running", after=1800 - LAUNCH)
    (reservation,) = account.ec2.describe_instances(InstanceIds=[instance])["Reservations"]
    assert reservation["Instances"][0]["StateReason"]["Code"] == "Server.CapacityBlockEnding"
    account.advance(TIMINGS.terminate + TIMINGS.asg_retry + LAUNCH)
    assert (account.instances(asg), state(account, block)[0]) == ([], "active")
    assert "takes no instances" in account.failed(asg)[0]["StatusMessage"]


def test_instances_of_an_on_demand_reservation_outlive_it(account: Account) -> None:
    reserved = account.cloud.reserve("default", TYPE, ZONE, lasts=HOUR)
    (instance,) = account.grow(group(account, reserved, market=""), 1)
    account.advance(hours=2)
    assert (account.ec2_state(instance), state(account, reserved)[0]) == ("running", "expired")


def test_a_managed_group_of_a_block_takes_its_type_from_the_template(account: Account) -> None:
    """EKS user guide, "Create a managed node group with Capacity Blocks for ML"."""
    block = account.cloud.reserve("capacity-block", TYPE, ZONE, lasts=24 * HOUR)
    group(account, block)
    request = account.node_group_request(capacityType="CAPACITY_BLOCK", launchTemplate={"name": "reserved"})
    del request["instanceTypes"], request["amiType"]
    account.eks.create_nodegroup(**request)
    account.advance(TIMINGS.nodegroup_create)
    account.grow(account.asg_of("train-gpu-a"), 1)
    assert state(account, block) == ("active", 0)
    (by_state,) = account.ec2.describe_capacity_reservations(Filters=[{"Name": "state", "Values": ["active"]}])[
        "CapacityReservations"
    ]
    assert by_state["CapacityReservationId"] == block


@pytest.mark.parametrize("lacking", ["InstanceMarketOptions", "CapacityReservationSpecification", "InstanceType"])
def test_a_managed_group_of_a_block_needs_all_of_it_in_the_template(account: Account, lacking: str) -> None:
    block = account.cloud.reserve("capacity-block", TYPE, ZONE, lasts=24 * HOUR)
    data: dict[str, Any] = {
        "InstanceType": TYPE,
        "InstanceMarketOptions": {"MarketType": "capacity-block"},
        "CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": block}},
    }
    del data[lacking]
    account.ec2.create_launch_template(LaunchTemplateName="lacks", LaunchTemplateData=data)
    request = account.node_group_request(capacityType="CAPACITY_BLOCK", launchTemplate={"name": "lacks"})
    del request["instanceTypes"]
    with pytest.raises(account.eks.exceptions.InvalidParameterException, match="has to have"):
        account.eks.create_nodegroup(**request)

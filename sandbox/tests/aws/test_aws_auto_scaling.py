"""Auto Scaling groups: size, termination, drains, activities and suspended processes, through boto3."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gpu_sandbox.faults import Stockout
from tests.sandbox.aws_account import CLUSTER, END, LAUNCH, TIMINGS, Account


def refusal(call: Any, **arguments: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as error:
        call(**arguments)
    answer = error.value.response["Error"]
    return answer["Code"], answer["Message"]


def own_group(account: Account, name: str = "own", **changes: Any) -> str:
    """A group that its user made, with a launch template."""
    account.ec2.create_launch_template(
        LaunchTemplateName=f"{name}-template",
        LaunchTemplateData={"ImageId": "ami-12345678", "InstanceType": "g5.xlarge"},
    )
    account.asg.create_auto_scaling_group(
        **{
            "AutoScalingGroupName": name,
            "MinSize": 0,
            "MaxSize": 4,
            "LaunchTemplate": {"LaunchTemplateName": f"{name}-template"},
            "VPCZoneIdentifier": ",".join(account.network.subnets.values()),
        }
        | changes
    )
    return name


# Launches


def test_instances_do_not_appear_at_once(account: Account) -> None:
    """A group reacts after a while in which nothing shows, and then an instance is launched."""
    asg = account.node_group()
    account.resize(asg, 1)
    account.advance(TIMINGS.asg_reaction - 1)
    assert (account.group(asg)["Instances"], account.activities(asg)) == ([], [])

    account.advance(1)
    (pending,) = account.instances(asg, "Pending")
    account.advance(TIMINGS.asg_launch - 1)
    assert (account.instances(asg, "Pending"), account.ec2_state(pending)) == ([pending], "pending")
    assert account.events.kinds() == []

    account.advance(1)
    assert account.instances(asg) == [pending]
    assert account.ec2_state(pending) == "running"
    assert account.events.kinds() == ["launched"]


def test_instances_carry_type_zone_and_tags(account: Account) -> None:
    asg = account.node_group(tags={"owner": "ml"})
    (instance_id,) = account.grow(asg, 1)
    (reservation,) = account.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
    (instance,) = reservation["Instances"]
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}

    assert instance["InstanceType"] == "g6.xlarge"
    assert instance["Placement"]["AvailabilityZone"] == "us-west-2a"
    assert instance["SubnetId"] == account.network.subnets["us-west-2a"]
    assert tags["aws:autoscaling:groupName"] == asg
    assert tags["eks:nodegroup-name"] == "train-gpu-a"
    assert tags["eks:cluster-name"] == CLUSTER


def test_a_launch_is_an_activity_that_ends(account: Account) -> None:
    asg = account.node_group()
    (instance,) = account.grow(asg, 1)
    (activity,) = account.activities(asg)

    assert activity["StatusCode"] == "Successful"
    assert activity["Description"] == f"Launching a new EC2 instance: {instance}"
    assert "changing the desired capacity from 0 to 1" in activity["Cause"]
    assert activity["EndTime"] - activity["StartTime"] == timedelta(seconds=TIMINGS.asg_launch)
    assert json.loads(activity["Details"]) == {
        "Subnet ID": account.network.subnets["us-west-2a"],
        "Availability Zone": "us-west-2a",
    }


def test_a_stock_out_fails_in_ec2s_words_and_is_tried_again(account: Account) -> None:
    asg = account.node_group()
    shortage = Stockout(zone="us-west-2a", instance_type="g6.xlarge", market="on-demand")
    account.faults.add(shortage)
    account.resize(asg, 2)
    account.advance(minutes=20)
    failures = account.failed(asg)

    assert failures[0]["StatusMessage"] == (
        "Could not launch On-Demand Instances. InsufficientInstanceCapacity - We currently do not have sufficient "
        "g6.xlarge capacity in the Availability Zone you requested (us-west-2a). Our system will be working on "
        "provisioning additional capacity. You can currently get g6.xlarge capacity by not specifying an "
        "Availability Zone in your request or choosing us-west-2b, us-west-2c, us-west-2d. Launching EC2 instance "
        "failed."
    )
    assert failures[0]["Description"].startswith("Launching a new EC2 instance.  Status Reason: Could not launch")
    tries = [failure["StartTime"] for failure in reversed(failures)]
    assert {later - before for before, later in pairwise(tries)} == {timedelta(seconds=TIMINGS.asg_retry)}
    assert len(tries) == 20
    assert {each["StatusCode"] for each in failures} == {"Failed", "Cancelled"}
    assert account.events.seen == []

    account.faults.remove(shortage)
    account.advance(TIMINGS.asg_retry + TIMINGS.asg_launch)
    assert len(account.instances(asg)) == 2


def test_a_launch_that_fails_for_want_of_addresses_says_so(account: Account) -> None:
    asg = account.node_group()
    account.faults.add(Stockout(code="InsufficientFreeAddressesInSubnet"))
    account.resize(asg, 1)
    account.advance(LAUNCH)
    (failed,) = account.failed(asg)
    subnet = account.network.subnets["us-west-2a"]
    assert failed["StatusMessage"].endswith(
        f"InsufficientFreeAddressesInSubnet - There are not enough free addresses in subnet '{subnet}' to satisfy the"
        " requested number of instances. Launching EC2 instance failed."
    )


def test_a_launch_that_the_account_may_not_make_has_ec2s_words(account: Account) -> None:
    asg = account.node_group()
    account.faults.add(Stockout(code="Blocked"))
    account.resize(asg, 1)
    account.advance(LAUNCH)
    (failed,) = account.failed(asg)
    assert "Blocked - Your account is currently blocked" in failed["StatusMessage"]


def test_giving_up_the_size_ends_the_tries(account: Account) -> None:
    asg = account.node_group()
    account.faults.add(Stockout())
    account.resize(asg, 1)
    account.advance(LAUNCH)
    assert len(account.failed(asg)) == 1
    account.resize(asg, 0)
    account.advance(hours=1)

    assert len(account.activities(asg)) == 1


def test_spot_stock_out_has_its_own_words(account: Account) -> None:
    asg = account.node_group(capacityType="SPOT")
    account.faults.add(Stockout(market="spot"))
    account.resize(asg, 1)
    account.advance(LAUNCH)
    failures = account.failed(asg)

    assert "Could not launch Spot Instances. UnfulfillableCapacity - " in failures[0]["StatusMessage"]


def test_spot_by_lowest_price_has_other_words(account: Account) -> None:
    account.ec2.create_launch_template(
        LaunchTemplateName="mixed", LaunchTemplateData={"ImageId": "ami-12345678", "InstanceType": "g5.xlarge"}
    )
    policy = {
        "LaunchTemplate": {"LaunchTemplateSpecification": {"LaunchTemplateName": "mixed"}},
        "InstancesDistribution": {"OnDemandPercentageAboveBaseCapacity": 0, "SpotAllocationStrategy": "lowest-price"},
    }
    account.faults.add(Stockout(market="spot"))
    account.asg.create_auto_scaling_group(
        AutoScalingGroupName="mixed",
        MinSize=1,
        MaxSize=1,
        MixedInstancesPolicy=policy,
        VPCZoneIdentifier=account.network.subnets["us-west-2b"],
    )
    account.advance(LAUNCH)
    failures = account.failed("mixed")

    assert failures[0]["StatusMessage"] == (
        "Could not launch Spot Instances. InsufficientInstanceCapacity - There is no Spot capacity available that "
        "matches your request. Launching EC2 instance failed."
    )


def test_a_group_over_several_types_falls_back_in_order(account: Account) -> None:
    asg = account.node_group(instanceTypes=["g6.xlarge", "g5.xlarge", "g4dn.xlarge"])
    account.faults.add(Stockout(instance_type="g6.xlarge"))
    account.grow(asg, 1)

    (node,) = account.events.of("launched")
    assert node.instance_type == "g5.xlarge"
    assert account.failed(asg) == []


def test_a_group_over_several_subnets_spreads_and_falls_back(account: Account) -> None:
    asg = account.node_group(subnets=list(account.network.subnets.values()))
    account.faults.add(Stockout(zone="us-west-2b"))
    account.grow(asg, 3)

    zones = sorted(node.zone for node in account.events.of("launched"))
    assert zones == ["us-west-2a", "us-west-2a", "us-west-2c"] or zones == ["us-west-2a", "us-west-2c", "us-west-2c"]
    assert {json.loads(a["Details"])["Availability Zone"] for a in account.failed(asg)} == {"us-west-2b"}


def test_spot_instances_say_so(account: Account) -> None:
    asg = account.node_group(capacityType="SPOT")
    (instance_id,) = account.grow(asg, 1)
    (reservation,) = account.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]

    assert reservation["Instances"][0]["InstanceLifecycle"] == "spot"
    (node,) = account.events.of("launched")
    assert node.market == "spot"
    assert node.labels["eks.amazonaws.com/capacityType"] == "SPOT"


def test_a_zone_without_the_type_refuses(account: Account) -> None:
    account.cloud.set_offered("p3.2xlarge", "us-west-2a", offered=False)
    asg = account.node_group(instanceTypes=["p3.2xlarge"])
    account.resize(asg, 1)
    account.advance(LAUNCH)
    failures = account.failed(asg)

    message = failures[0]["StatusMessage"]
    assert "Your requested instance type (p3.2xlarge) is not supported in your requested Availability Zone" in message


def test_a_launch_without_its_template_fails(account: Account) -> None:
    own_group(account)
    account.ec2.delete_launch_template(LaunchTemplateName="own-template")
    account.resize("own", 1)
    account.advance(LAUNCH)

    failures = account.failed("own")
    assert "launch template" in failures[0]["StatusMessage"]
    assert failures[0]["StatusMessage"].endswith("Launching EC2 instance failed.")


# Size


@pytest.mark.parametrize(("size", "word"), [(4, "above max value 3"), (0, "below min value 1")])
def test_size_outside_the_limits_is_refused(account: Account, size: int, word: str) -> None:
    asg = account.node_group(scalingConfig={"minSize": 1, "maxSize": 3, "desiredSize": 1})
    code, message = refusal(account.asg.set_desired_capacity, AutoScalingGroupName=asg, DesiredCapacity=size)

    assert code == "ValidationError"
    assert message == f"New SetDesiredCapacity value {size} is {word} for the AutoScalingGroup."


def test_honouring_the_cooldown_refuses_during_an_activity(account: Account) -> None:
    asg = account.node_group()
    account.grow(asg, 1)
    resize = {"AutoScalingGroupName": asg, "DesiredCapacity": 2}
    code, message = refusal(account.asg.set_desired_capacity, **resize, HonorCooldown=True)

    assert code == "ScalingActivityInProgress"
    assert account.activities(asg)[0]["ActivityId"] in message
    account.asg.set_desired_capacity(**resize)
    account.advance(LAUNCH + 300 - 1)  # the second instance's launch, and EKS's cooldown after it
    resize["DesiredCapacity"] = 3
    assert refusal(account.asg.set_desired_capacity, **resize, HonorCooldown=True)[0] == "ScalingActivityInProgress"
    account.advance(1)
    account.asg.set_desired_capacity(**resize, HonorCooldown=True)


def test_unknown_group_is_a_validation_error(account: Account) -> None:
    for call, more in [
        (account.asg.set_desired_capacity, {"DesiredCapacity": 1}),
        (account.asg.update_auto_scaling_group, {"MaxSize": 1}),
        (account.asg.describe_scaling_activities, {}),
        (account.asg.delete_auto_scaling_group, {}),
        (account.asg.suspend_processes, {}),
    ]:
        code, message = refusal(call, AutoScalingGroupName="nope", **more)
        assert code == "ValidationError"
        assert "name not found" in message
    assert account.asg.describe_auto_scaling_groups(AutoScalingGroupNames=["nope"])["AutoScalingGroups"] == []


def test_update_moves_the_size_into_the_new_limits(account: Account) -> None:
    own_group(account, MinSize=0, DesiredCapacity=0)
    account.asg.update_auto_scaling_group(AutoScalingGroupName="own", MinSize=1)
    assert account.group("own")["DesiredCapacity"] == 1

    account.asg.update_auto_scaling_group(AutoScalingGroupName="own", MinSize=0, MaxSize=0)
    assert account.group("own")["DesiredCapacity"] == 0
    code, _ = refusal(account.asg.update_auto_scaling_group, AutoScalingGroupName="own", MaxSize=2, DesiredCapacity=3)
    assert code == "ValidationError"
    assert account.group("own")["LaunchTemplate"]["LaunchTemplateName"] == "own-template"


def test_creation_is_checked(account: Account) -> None:
    own_group(account)
    request = {
        "AutoScalingGroupName": "second",
        "MinSize": 0,
        "MaxSize": 1,
        "LaunchTemplate": {"LaunchTemplateName": "own-template"},
        "AvailabilityZones": ["us-west-2a"],
    }
    create = account.asg.create_auto_scaling_group
    assert refusal(create, **request | {"AutoScalingGroupName": "own"})[0] == "AlreadyExists"
    assert refusal(create, **request | {"DesiredCapacity": 2})[0] == "ValidationError"
    assert refusal(create, **request | {"MinSize": 2})[0] == "ValidationError"


# Termination


def test_terminate_with_decrement_ends_this_very_machine(account: Account) -> None:
    asg = account.node_group()
    first, second = account.grow(asg, 2)
    activity = account.terminate(first)

    assert "shrinking the capacity from 2 to 1" in activity["Cause"]
    assert account.group(asg)["DesiredCapacity"] == 1
    account.advance(TIMINGS.terminate - 1)
    assert account.ec2_state(first) == "shutting-down"
    account.advance(1)
    assert account.ec2_state(first) == "terminated"
    assert account.instances(asg) == [second]
    assert account.events.kinds() == ["launched", "launched", "drain", "terminated"]
    assert {one.instance_id for one in account.events.of("terminated")} == {first}


def test_terminate_without_decrement_brings_a_replacement(account: Account) -> None:
    asg = account.node_group()
    (first,) = account.grow(asg, 1)
    account.terminate(first, decrement=False)
    account.advance(LAUNCH)

    (second,) = account.instances(asg)
    assert second != first
    assert account.group(asg)["DesiredCapacity"] == 1


def test_terminate_below_the_minimum_is_refused(account: Account) -> None:
    asg = account.node_group(scalingConfig={"minSize": 1, "maxSize": 2, "desiredSize": 1})
    (instance,) = account.instances(asg)
    code, message = refusal(
        account.asg.terminate_instance_in_auto_scaling_group,
        InstanceId=instance,
        ShouldDecrementDesiredCapacity=True,
    )

    assert code == "ValidationError"
    assert message.startswith("Currently, desiredSize equals minSize (1).")
    assert account.instances(asg) == [instance]


def test_terminating_twice_does_not_decrement_twice(account: Account) -> None:
    account.events.drains_at_once = False
    asg = account.node_group()
    first, _ = account.grow(asg, 2)
    terminate = account.asg.terminate_instance_in_auto_scaling_group
    terminate(InstanceId=first, ShouldDecrementDesiredCapacity=True)

    assert refusal(terminate, InstanceId=first, ShouldDecrementDesiredCapacity=True)[0] == "ScalingActivityInProgress"
    assert account.group(asg)["DesiredCapacity"] == 1


def test_terminating_an_unknown_instance(account: Account) -> None:
    code, message = refusal(
        account.asg.terminate_instance_in_auto_scaling_group,
        InstanceId="i-0123456789abcdef0",
        ShouldDecrementDesiredCapacity=True,
    )
    assert code == "ValidationError"
    assert "Instance Id not found" in message


def test_a_pending_instance_is_not_terminated_on_request_and_ends_with_its_group_s_size(account: Account) -> None:
    asg = account.node_group()
    account.resize(asg, 1)
    account.advance(TIMINGS.asg_reaction)
    (pending,) = account.instances(asg, "Pending")
    terminate = account.asg.terminate_instance_in_auto_scaling_group
    assert refusal(terminate, InstanceId=pending, ShouldDecrementDesiredCapacity=True)[0] == "ScalingActivityInProgress"
    assert account.group(asg)["DesiredCapacity"] == 1

    account.resize(asg, 0)
    account.advance(END)
    assert account.ec2_state(pending) == "terminated"
    assert account.events.seen == [], "an end is told exactly for what was told as launched"


def test_scale_in_takes_as_many_as_it_must(account: Account) -> None:
    asg = account.node_group()
    ids = account.grow(asg, 3)
    account.resize(asg, 1)
    account.advance(END)

    (left,) = account.instances(asg)
    assert left in ids
    newest = account.activities(asg)[0]
    assert "was selected for termination" in newest["Cause"]
    assert len(account.events.of("terminated")) == 2


def test_scale_in_spares_the_protected(account: Account) -> None:
    asg = account.node_group()
    ids = account.grow(asg, 3)
    account.asg.set_instance_protection(AutoScalingGroupName=asg, InstanceIds=ids[:2], ProtectedFromScaleIn=True)
    account.resize(asg, 0)
    account.advance(hours=1)

    assert set(account.instances(asg)) == set(ids[:2])


def test_unhealthy_instances_are_replaced(account: Account) -> None:
    asg = account.node_group()
    (first,) = account.grow(asg, 1)
    account.asg.set_instance_health(InstanceId=first, HealthStatus="Unhealthy")
    account.advance(TIMINGS.asg_launch)

    (second,) = account.instances(asg)
    assert second != first


def test_an_instance_ended_by_ec2_is_replaced(account: Account) -> None:
    asg = account.node_group()
    (first,) = account.grow(asg, 1)
    account.ec2.terminate_instances(InstanceIds=[first])

    assert account.ec2_state(first) == "shutting-down"
    account.advance(TIMINGS.terminate)
    (second,) = account.instances(asg)
    assert second != first
    assert account.ec2_state(first) == "terminated"
    assert account.events.of("drain") == []


# Drains


def test_a_managed_instance_waits_for_its_drain(account: Account) -> None:
    account.events.drains_at_once = False
    asg = account.node_group()
    (instance,) = account.grow(asg, 1)
    account.terminate(instance)
    account.advance(TIMINGS.drain_timeout - 1)

    assert account.events.kinds() == ["launched", "drain"]
    assert account.instances(asg, "Terminating:Wait") == [instance]
    assert account.ec2_state(instance) == "running"
    assert account.activities(asg)[0]["StatusCode"] == "MidTerminatingLifecycleAction"

    account.cloud.complete_drain(instance)
    account.advance(TIMINGS.terminate)
    assert account.ec2_state(instance) == "terminated"
    assert account.activities(asg)[0]["StatusCode"] == "Successful"


def test_a_drain_that_nobody_reports_ends_by_itself(account: Account) -> None:
    account.events.drains_at_once = False
    asg = account.node_group()
    (instance,) = account.grow(asg, 1)
    account.resize(asg, 0)
    account.advance(TIMINGS.asg_reaction + TIMINGS.drain_timeout - 1)
    assert account.ec2_state(instance) == "running"
    account.advance(1)
    assert account.ec2_state(instance) == "shutting-down"
    account.advance(TIMINGS.terminate)
    assert account.ec2_state(instance) == "terminated"


def test_a_lifecycle_action_can_be_completed_through_the_api(account: Account) -> None:
    account.events.drains_at_once = False
    asg = account.node_group()
    (instance,) = account.grow(asg, 1)
    complete = {
        "LifecycleHookName": "Terminate-LC-Hook",
        "AutoScalingGroupName": asg,
        "LifecycleActionResult": "CONTINUE",
        "InstanceId": instance,
    }
    assert refusal(account.asg.complete_lifecycle_action, **complete)[0] == "ValidationError"

    account.resize(asg, 0)
    account.advance(TIMINGS.asg_reaction)
    assert account.instances(asg, "Terminating:Wait") == [instance]
    account.asg.complete_lifecycle_action(**complete)
    account.advance(TIMINGS.terminate)
    assert account.ec2_state(instance) == "terminated"


def test_a_self_managed_group_drains_nothing(account: Account) -> None:
    own_group(account)
    (instance,) = account.grow("own", 1)
    account.terminate(instance)
    account.advance(TIMINGS.terminate)

    assert account.ec2_state(instance) == "terminated"
    assert account.events.kinds() == ["launched", "terminated"]
    (node,) = account.events.of("launched")
    assert (node.nodegroup, node.cluster_name, node.instance_type) == (None, None, "g5.xlarge")


def test_a_group_of_a_capacity_block_counts_against_no_quota(account: Account) -> None:
    """Its launch template has the block's MarketType and reservation ("Create self-managed nodes with ...")."""
    account.cloud.set_quota("L-417A185B", 0)
    block = account.cloud.reserve("capacity-block", "p5.48xlarge", "us-west-2b")
    reservation = {"CapacityReservationTarget": {"CapacityReservationId": block}}
    data = {
        "ImageId": "ami-12345678",
        "InstanceType": "p5.48xlarge",
        "InstanceMarketOptions": {"MarketType": "capacity-block"},
        "CapacityReservationSpecification": reservation,
    }
    account.ec2.create_launch_template(LaunchTemplateName="block", LaunchTemplateData=data)
    own_group(account, LaunchTemplate={"LaunchTemplateName": "block"})
    (instance,) = account.grow("own", 1)
    (described,) = account.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"]
    assert described["InstanceLifecycle"] == "capacity-block"


def test_a_self_managed_group_joins_by_tag_and_kubelet_flags(account: Account) -> None:
    script = "bootstrap.sh k8s --kubelet-extra-args '--node-labels=role=x,a=b --register-with-taints=gpu=y:NoSchedule'"
    account.ec2.create_launch_template(
        LaunchTemplateName="joins",
        LaunchTemplateData={
            "ImageId": "ami-12345678",
            "InstanceType": "g5.xlarge",
            "UserData": base64.b64encode(script.encode()).decode(),
        },
    )
    tag = {"Key": f"kubernetes.io/cluster/{CLUSTER}", "Value": "owned", "PropagateAtLaunch": True}
    account.asg.create_auto_scaling_group(
        AutoScalingGroupName="joins",
        MinSize=1,
        MaxSize=1,
        LaunchTemplate={"LaunchTemplateName": "joins"},
        VPCZoneIdentifier=account.network.subnets["us-west-2c"],
        Tags=[tag],
    )
    account.advance(LAUNCH)
    (node,) = account.events.of("launched")

    assert node.cluster_name == CLUSTER
    assert (node.labels["role"], node.labels["a"]) == ("x", "b")
    assert [(t.key, t.value, t.effect) for t in node.taints] == [("gpu", "y", "NoSchedule")]
    assert node.zone == "us-west-2c"


def test_deleting_a_group_with_instances_needs_force(account: Account) -> None:
    own_group(account)
    (instance,) = account.grow("own", 1)
    delete = account.asg.delete_auto_scaling_group
    assert refusal(delete, AutoScalingGroupName="own")[0] == "ResourceInUse"

    delete(AutoScalingGroupName="own", ForceDelete=True)
    account.advance(END)
    assert account.asg.describe_auto_scaling_groups()["AutoScalingGroups"] == []
    assert account.ec2_state(instance) == "terminated"


def test_detaching_and_attaching(account: Account) -> None:
    own_group(account)
    (instance,) = account.grow("own", 1)
    account.asg.detach_instances(
        AutoScalingGroupName="own", InstanceIds=[instance], ShouldDecrementDesiredCapacity=True
    )
    assert account.group("own")["Instances"] == []
    assert account.ec2_state(instance) == "running"

    account.asg.attach_instances(AutoScalingGroupName="own", InstanceIds=[instance])
    assert account.instances("own") == [instance]
    assert account.group("own")["DesiredCapacity"] == 1


# Suspended processes


def test_suspended_launch_and_terminate_are_respected_and_shown(account: Account) -> None:
    asg = account.node_group()
    account.asg.suspend_processes(AutoScalingGroupName=asg, ScalingProcesses=["Launch"])
    account.resize(asg, 1)
    account.advance(hours=1)
    assert account.group(asg)["Instances"] == []
    assert [p["ProcessName"] for p in account.group(asg)["SuspendedProcesses"]] == ["Launch"]

    account.asg.resume_processes(AutoScalingGroupName=asg, ScalingProcesses=["Launch"])
    account.advance(TIMINGS.asg_launch)
    (instance,) = account.instances(asg)

    account.asg.suspend_processes(AutoScalingGroupName=asg, ScalingProcesses=["Terminate", "AZRebalance"])
    account.resize(asg, 0)
    account.advance(hours=1)
    assert account.instances(asg) == [instance]

    account.asg.resume_processes(AutoScalingGroupName=asg)
    account.advance(TIMINGS.terminate)
    assert account.ec2_state(instance) == "terminated"


# Activities and tags


def test_activities_come_newest_first_in_pages(account: Account) -> None:
    asg = account.node_group()
    for size in (1, 2, 3):
        account.grow(asg, size)
    first = account.asg.describe_scaling_activities(AutoScalingGroupName=asg, MaxRecords=2)
    second = account.asg.describe_scaling_activities(
        AutoScalingGroupName=asg, MaxRecords=2, NextToken=first["NextToken"]
    )

    assert [len(first["Activities"]), len(second["Activities"])] == [2, 1]
    assert "NextToken" not in second
    pages = account.asg.get_paginator("describe_scaling_activities").paginate(
        AutoScalingGroupName=asg, PaginationConfig={"PageSize": 1}
    )
    starts = [activity["StartTime"] for page in pages for activity in page["Activities"]]
    assert [(newer - older).total_seconds() for newer, older in pairwise(starts)] == [LAUNCH, LAUNCH]
    wanted = second["Activities"][0]["ActivityId"]
    (found,) = account.asg.describe_scaling_activities(ActivityIds=[wanted])["Activities"]
    assert found["ActivityId"] == wanted


def test_activities_outlive_their_group(account: Account) -> None:
    asg = account.node_group()
    account.grow(asg, 1)
    account.eks.delete_nodegroup(clusterName=CLUSTER, nodegroupName="train-gpu-a")
    account.advance(TIMINGS.nodegroup_delete)
    assert account.eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"] == []

    kept = account.asg.describe_scaling_activities(AutoScalingGroupName=asg, IncludeDeletedGroups=True)["Activities"]
    assert [a["Description"].split()[0] for a in kept] == ["Terminating", "Launching"]
    assert account.asg.describe_scaling_activities()["Activities"] == []


def test_tags_are_kept_by_group(account: Account) -> None:
    asg = account.node_group()
    tag = {
        "ResourceId": asg,
        "ResourceType": "auto-scaling-group",
        "Key": "k8s.io/cluster-autoscaler/node-template/label/role",
        "Value": "train",
        "PropagateAtLaunch": False,
    }
    account.asg.create_or_update_tags(Tags=[tag])
    found = account.asg.describe_tags(
        Filters=[{"Name": "auto-scaling-group", "Values": [asg]}, {"Name": "key", "Values": [tag["Key"]]}]
    )["Tags"]

    assert [(t["Key"], t["Value"]) for t in found] == [(tag["Key"], "train")]
    assert refusal(account.asg.create_or_update_tags, Tags=[tag | {"ResourceId": "nope"}])[0] == "ValidationError"

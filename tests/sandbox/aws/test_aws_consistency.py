"""Reads of AWS may be some moments old; nothing of that is wanted of what was written."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gpu_sandbox.aws import AwsTimings
from tests.sandbox.aws.conftest import CLUSTER, QUICK, Account

STALE = 1.5
READS = 20


@pytest.fixture
def timings() -> AwsTimings:
    return replace(QUICK, stale=STALE)


def reads(look: Callable[[], Any]) -> list[Any]:
    """What several reads right after each other see."""
    return [look() for _ in range(READS)]


def settled(look: Callable[[], Any]) -> Any:
    """What every read sees once the last change is as old as a read can be."""
    time.sleep(STALE + 0.2)
    seen = reads(look)
    assert all(one == seen[0] for one in seen), seen
    return seen[0]


def known(account: Account, name: str) -> str:
    """The node group's state, or why it is not described."""
    try:
        return account.status(name)
    except ClientError as error:
        return str(error.response["Error"]["Code"])


def active_group(account: Account) -> str:
    """The Auto Scaling group of a node group that every read shows as ACTIVE."""
    account.eks.create_nodegroup(**account.node_group_request("train-gpu-a"))
    assert settled(lambda: known(account, "train-gpu-a")) == "ACTIVE"
    return str(account.describe("train-gpu-a")["resources"]["autoScalingGroups"][0]["name"])


def test_a_new_node_group_is_there_for_one_read_and_not_for_the_next(account: Account) -> None:
    settled(lambda: account.eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"])
    account.eks.create_nodegroup(**account.node_group_request("train-gpu-a"))
    time.sleep(0.1)

    states = reads(lambda: known(account, "train-gpu-a"))
    listed = reads(lambda: account.eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"])

    assert {"ResourceNotFoundException"} < set(states)
    assert [] in listed
    assert ["train-gpu-a"] in listed
    with pytest.raises(account.eks.exceptions.ResourceInUseException):
        account.eks.create_nodegroup(**account.node_group_request("train-gpu-a"))
    assert settled(lambda: known(account, "train-gpu-a")) == "ACTIVE"


def test_sizes_instances_and_activities_are_shown_late_and_writes_find_what_is_there(account: Account) -> None:
    asg = active_group(account)

    account.asg.set_desired_capacity(AutoScalingGroupName=asg, DesiredCapacity=1)
    time.sleep(0.3)
    assert {0, 1} == set(reads(lambda: account.group(asg)["DesiredCapacity"]))
    assert set(reads(lambda: len(account.group(asg)["Instances"]))) <= {0, 1}
    assert set(reads(lambda: len(account.activities(asg)))) <= {0, 1}
    ((instance, _),) = settled(
        lambda: [(each["InstanceId"], each["LifecycleState"]) for each in account.group(asg)["Instances"]]
    )

    account.asg.terminate_instance_in_auto_scaling_group(InstanceId=instance, ShouldDecrementDesiredCapacity=True)
    time.sleep(0.3)
    assert [instance] in reads(lambda: account.instances(asg))
    assert set(reads(lambda: account.ec2_state(instance))) <= {"running", "shutting-down", "terminated"}
    with pytest.raises(ClientError, match="Instance Id not found"):
        account.asg.terminate_instance_in_auto_scaling_group(InstanceId=instance, ShouldDecrementDesiredCapacity=True)
    assert settled(lambda: account.group(asg)["Instances"]) == []


def test_ec2_does_not_know_an_instance_that_was_just_launched(account: Account) -> None:
    asg = active_group(account)
    account.asg.set_desired_capacity(AutoScalingGroupName=asg, DesiredCapacity=1)
    seen: set[str] = set()
    deadline = time.monotonic() + 60
    while not seen:
        seen = {each["InstanceId"] for each in account.group(asg)["Instances"]}
        assert time.monotonic() < deadline, "no instance was ever shown"
    (instance,) = seen

    def state() -> str:
        try:
            return account.ec2_state(instance)
        except ClientError as error:
            return str(error.response["Error"]["Code"])

    assert "InvalidInstanceID.NotFound" in reads(state)
    assert settled(state) == "running"

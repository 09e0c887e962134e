"""Reads of AWS may be some moments old; nothing of that is wanted of what was written."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gpu_sandbox.aws import AwsTimings
from sandbox.tests.aws.conftest import CLUSTER, QUICK, Account, eventually

STALE = 1.5
READS = 20


@pytest.fixture
def timings() -> AwsTimings:
    return replace(QUICK, stale=STALE)


def reads(look: Callable[[], Any]) -> list[Any]:
    """What several reads right after each other see. On a busy machine all of them may be too late for an old one."""
    return [look() for _ in range(READS)]


def settled(look: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    """What every read sees in the end; return it once the last change is as old as a read can be."""
    seen: list[Any] = eventually(lambda: reads(look), lambda all_: wanted(all_[0]) and all_ == [all_[0]] * READS)
    time.sleep(STALE)
    return seen[0]


def known(account: Account, name: str) -> str:
    """The node group's state, or why it is not described."""
    try:
        return account.status(name)
    except ClientError as error:
        return str(error.response["Error"]["Code"])


def node_groups(account: Account) -> list[str] | None:
    """None where the read is from before the cluster."""
    try:
        return list(account.eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"])
    except account.eks.exceptions.ResourceNotFoundException:
        return None


def active_group(account: Account) -> str:
    """The Auto Scaling group of a node group that every read shows as ACTIVE."""
    account.eks.create_nodegroup(**account.node_group_request("train-gpu-a"))
    settled(lambda: known(account, "train-gpu-a"), lambda state: state == "ACTIVE")
    return str(account.describe("train-gpu-a")["resources"]["autoScalingGroups"][0]["name"])


def resize(account: Account, asg: str, size: int) -> None:
    account.asg.set_desired_capacity(AutoScalingGroupName=asg, DesiredCapacity=size)


def one_instance(account: Account, asg: str) -> str:
    """The group's instance, once every read shows it in service."""
    resize(account, asg, 1)
    (instance,) = settled(lambda: account.instances(asg), lambda instances: len(instances) == 1)
    return str(instance)


def test_a_new_node_group_is_there_for_one_read_and_not_for_the_next(account: Account) -> None:
    names = (f"train-gpu-{number}" for number in count())

    def both(name: str) -> tuple[str, bool]:
        return known(account, name), name in account.eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"]

    def shown_late() -> bool:
        name = next(names)
        account.eks.create_nodegroup(**account.node_group_request(name))
        described, listed = zip(*reads(lambda: both(name)), strict=True)
        with pytest.raises(account.eks.exceptions.ResourceInUseException):
            account.eks.create_nodegroup(**account.node_group_request(name))
        settled(lambda: both(name), lambda seen: seen == ("ACTIVE", True))
        return {"ResourceNotFoundException"} < set(described) and set(listed) == {True, False}

    settled(lambda: node_groups(account), lambda names: names == [])
    eventually(shown_late)


def test_sizes_instances_and_activities_are_shown_late_and_writes_find_what_is_there(account: Account) -> None:
    asg = active_group(account)

    def growth_shown_late() -> bool:
        before = len(account.activities(asg))
        resize(account, asg, 1)
        sizes = set(reads(lambda: account.group(asg)["DesiredCapacity"]))
        assert set(reads(lambda: len(account.group(asg)["Instances"]))) <= {0, 1}
        assert set(reads(lambda: len(account.activities(asg)))) <= {before, before + 1}
        return sizes == {0, 1}

    def end_shown_late() -> bool:
        instance = one_instance(account, asg)

        def terminate() -> None:
            account.asg.terminate_instance_in_auto_scaling_group(
                InstanceId=instance, ShouldDecrementDesiredCapacity=True
            )

        terminate()
        late = [instance] in reads(lambda: account.instances(asg))
        assert set(reads(lambda: account.ec2_state(instance))) <= {"running", "shutting-down", "terminated"}
        with pytest.raises(ClientError, match="Instance Id not found"):
            terminate()
        settled(lambda: account.group(asg)["Instances"], lambda instances: instances == [])
        return late

    def both_shown_late() -> bool:
        late = growth_shown_late()
        return end_shown_late() and late

    eventually(both_shown_late)


def test_ec2_does_not_know_an_instance_that_was_just_launched(account: Account) -> None:
    asg = active_group(account)

    def state(instance: str) -> str:
        try:
            return account.ec2_state(instance)
        except ClientError as error:
            return str(error.response["Error"]["Code"])

    def unknown_at_first() -> bool:
        resize(account, asg, 1)
        (each,) = eventually(lambda: account.group(asg)["Instances"])
        instance = str(each["InstanceId"])
        late = "InvalidInstanceID.NotFound" in reads(lambda: state(instance))
        settled(lambda: state(instance), lambda seen: seen == "running")
        resize(account, asg, 0)
        settled(lambda: account.group(asg)["Instances"], lambda instances: instances == [])
        return late

    eventually(unknown_at_first)

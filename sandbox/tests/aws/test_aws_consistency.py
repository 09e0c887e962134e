"""Reads of AWS may be some moments old; nothing of that is wanted of what was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gpu_sandbox.aws import AwsTimings
from tests.sandbox.aws_account import CLUSTER, TIMINGS, Account

STALE = 10.0
READS = 20


@pytest.fixture
def timings() -> AwsTimings:
    return replace(TIMINGS, stale=STALE)


@pytest.fixture
def account(account: Account) -> Account:
    """With a cluster that every read sees."""
    account.advance(STALE)
    return account


def reads(look: Callable[[], Any]) -> list[Any]:
    """What several reads at one moment see."""
    return [look() for _ in range(READS)]


def answer(look: Callable[[], Any]) -> Any:
    """What is found, or the error's code."""
    try:
        return look()
    except ClientError as error:
        return str(error.response["Error"]["Code"])


def active_group(account: Account) -> str:
    """The Auto Scaling group of a node group that every read shows as ACTIVE."""
    account.eks.create_nodegroup(**account.node_group_request())
    account.advance(TIMINGS.nodegroup_create + STALE)
    assert reads(account.status) == ["ACTIVE"] * READS
    return str(account.describe()["resources"]["autoScalingGroups"][0]["name"])


def test_a_new_node_group_is_there_for_one_read_and_not_for_the_next(account: Account) -> None:
    def described() -> Any:
        return answer(account.status)

    def is_listed() -> bool:
        return "train-gpu-a" in account.eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"]

    account.eks.create_nodegroup(**account.node_group_request())
    seen = reads(described)
    assert set(seen) == {"ResourceNotFoundException", "CREATING"}
    assert ("CREATING", "ResourceNotFoundException") in pairwise(seen)
    assert set(reads(is_listed)) == {True, False}
    with pytest.raises(account.eks.exceptions.ResourceInUseException):
        account.eks.create_nodegroup(**account.node_group_request())

    account.advance(STALE / 2)
    assert set(reads(is_listed)) == {True, False}
    account.advance(STALE / 2)
    assert (set(reads(described)), set(reads(is_listed))) == ({"CREATING"}, {True})


def test_sizes_instances_and_activities_are_shown_late_and_writes_find_what_is_there(account: Account) -> None:
    asg = active_group(account)

    def size() -> int:
        return int(account.group(asg)["DesiredCapacity"])

    def states() -> str:
        return " ".join(one["LifecycleState"] for one in account.group(asg)["Instances"])

    def activities() -> str:
        return " ".join(one["StatusCode"] for one in account.activities(asg))

    account.resize(asg, 1)
    assert set(reads(size)) == {0, 1}
    account.advance(TIMINGS.asg_reaction)
    assert (set(reads(states)), set(reads(activities))) == ({"", "Pending"}, {"", "InProgress"})
    account.advance(STALE)
    assert (set(reads(size)), set(reads(states)), set(reads(activities))) == ({1}, {"Pending"}, {"InProgress"})
    account.advance(TIMINGS.asg_launch - STALE)
    assert set(reads(states)) == {"Pending", "InService"}
    assert set(reads(activities)) == {"InProgress", "Successful"}
    account.advance(STALE)
    (instance,) = account.instances(asg)

    account.terminate(instance)
    assert set(reads(states)) == {"InService", "Terminating:Wait"}
    account.advance(TIMINGS.terminate)
    assert "" in set(reads(states)) == {"Terminating:Proceed", ""}
    assert set(reads(lambda: account.ec2_state(instance))) == {"shutting-down", "terminated"}
    with pytest.raises(ClientError, match="Instance Id not found"):
        account.terminate(instance)
    account.advance(STALE)
    assert (set(reads(states)), account.ec2_state(instance)) == ({""}, "terminated")


def test_ec2_does_not_know_an_instance_that_was_just_launched(account: Account) -> None:
    asg = active_group(account)
    account.resize(asg, 1)
    account.advance(TIMINGS.asg_reaction)
    (instance,) = {id_ for ids in reads(lambda: account.instances(asg, "Pending")) for id_ in ids}

    def state() -> Any:
        return answer(lambda: account.ec2_state(instance))

    assert set(reads(state)) == {"InvalidInstanceID.NotFound", "pending"}
    account.advance(STALE)
    assert set(reads(state)) == {"pending"}
    account.advance(TIMINGS.asg_launch)
    assert set(reads(state)) == {"running"}

"""Many callers at once: sizes and events still add up."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from botocore.exceptions import ClientError

from sandbox.tests.aws.conftest import QUICK, Account, eventually


def test_sizes_and_events_add_up_under_many_callers(account: Account) -> None:
    groups = [account.node_group(name) for name in ("a", "b")]
    clients = [account._client("autoscaling") for _ in range(6)]

    def work(number: int) -> set[str]:
        """Twenty-five random calls; returns the errors that they met."""
        rng, errors = random.Random(number), set()
        client = clients[number]
        for _ in range(25):
            asg = rng.choice(groups)
            try:
                if rng.random() < 0.5:
                    client.set_desired_capacity(AutoScalingGroupName=asg, DesiredCapacity=rng.randint(0, 3))
                else:
                    (group,) = client.describe_auto_scaling_groups(AutoScalingGroupNames=[asg])["AutoScalingGroups"]
                    for instance in group["Instances"][:1]:
                        client.terminate_instance_in_auto_scaling_group(
                            InstanceId=instance["InstanceId"], ShouldDecrementDesiredCapacity=rng.random() < 0.5
                        )
            except ClientError as error:
                errors.add(error.response["Error"]["Code"])
        return errors

    with ThreadPoolExecutor(len(clients)) as pool:
        met = set().union(*pool.map(work, range(len(clients))))

    assert met <= {"ValidationError", "ScalingActivityInProgress"}
    for asg in groups:
        size = account.group(asg)["DesiredCapacity"]
        eventually(lambda asg=asg: account.group(asg)["Instances"], lambda found, size=size: len(found) == size)
        eventually(lambda asg=asg: account.instances(asg), lambda ids, size=size: len(ids) == size)
    alive = {instance for asg in groups for instance in account.instances(asg)}
    launched = [one.instance_id for one in account.events.of("launched")]
    ended = [one.instance_id for one in account.events.of("terminated")]
    assert len(launched) == len(set(launched))
    assert len(ended) == len(set(ended))
    assert set(launched) - set(ended) == alive


@pytest.mark.parametrize("timings", [replace(QUICK, asg_reaction=1.0)])
def test_the_group_reacts_after_a_while_in_which_nothing_shows(account: Account) -> None:
    asg = account.node_group()
    account.asg.set_desired_capacity(AutoScalingGroupName=asg, DesiredCapacity=1)

    assert account.group(asg)["Instances"] == []
    assert account.activities(asg) == []
    eventually(lambda: account.instances(asg))

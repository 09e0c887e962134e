"""Many callers at once, and time that passes meanwhile: sizes and events still add up."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

from botocore.exceptions import ClientError

from tests.sandbox.aws_account import END, LAUNCH, Account


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
        calls = [pool.submit(work, number) for number in range(len(clients))]
        while not all(each.done() for each in calls):
            account.advance(1)
        met = set().union(*(each.result() for each in calls))
    account.advance(LAUNCH + END)

    assert met <= {"ValidationError", "ScalingActivityInProgress"}
    for asg in groups:
        group = account.group(asg)
        assert len(account.instances(asg)) == len(group["Instances"]) == group["DesiredCapacity"]
    alive = {instance for asg in groups for instance in account.instances(asg)}
    launched = [one.instance_id for one in account.events.of("launched")]
    ended = [one.instance_id for one in account.events.of("terminated")]
    assert len(launched) == len(set(launched))
    assert len(ended) == len(set(ended))
    assert set(launched) - set(ended) == alive

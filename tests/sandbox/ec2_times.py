"""When the instances of a pool ran, as EC2 and EC2 Auto Scaling say it; the environment is the sandbox's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from gpu_sandbox.aws import AwsCloud
from gpu_sandbox.aws.observer import aws_client

_TOLD = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) GMT\)")


@dataclass(frozen=True)
class Ran:
    """One instance that has ended; `market` is "spot" or "on-demand"."""

    market: str
    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return (self.end - self.start).total_seconds()


def instances_of(pool_name: str, aws: AwsCloud) -> list[Ran]:
    """Return when the pool's instances ran: of those that EC2 took back, the end is when their group noticed it."""
    ec2, autoscaling = aws_client(aws, "ec2"), aws_client(aws, "autoscaling")
    of_pool = [{"Name": "tag:airflow-gpu-provider/pool", "Values": [pool_name]}]
    noticed = {
        activity["Description"].rpartition(" ")[2]: activity["StartTime"]
        for activity in autoscaling.describe_scaling_activities()["Activities"]
        if activity["Description"].startswith("Terminating")
    }
    found = []
    for reservation in ec2.describe_instances(Filters=of_pool)["Reservations"]:
        for instance in reservation["Instances"]:
            assert instance["State"]["Name"] in ("shutting-down", "terminated")
            told = _TOLD.search(instance["StateTransitionReason"])
            end = datetime.fromisoformat(f"{told[1]}+00:00") if told else noticed[instance["InstanceId"]]
            market = instance.get("InstanceLifecycle", "on-demand")
            found.append(Ran(market, instance["LaunchTime"], end))
    return found

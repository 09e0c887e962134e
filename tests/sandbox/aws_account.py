"""An AWS account of the sandbox for each test, by a clock that the test moves, and what tests ask of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

import boto3
from botocore.config import Config

from gpu_sandbox import ManualClock
from gpu_sandbox.aws import AwsCloud, Instance
from gpu_sandbox.faults import Faults, Stockout
from gpu_sandbox.pace import Pace

CLUSTER = "k8s-ml"
TIMINGS = Pace(name="real", speed=1, stale=0).aws()
"""AWS's own times: by this clock they cost nothing."""
LAUNCH = TIMINGS.asg_reaction + TIMINGS.asg_launch
"""From a group's larger size to its machines in service."""
# Not the default: a whole sandbox may be running in this process, with an account of its own.
_ACCOUNT_ID = "210987654321"


class Account:
    """A fresh account with one cluster, its clients, its faults, and short forms for what the tests do most.

    Nothing happens in it but by `advance`; calls are answered.
    """

    def __init__(self) -> None:
        # Without a fraction, which AWS' times do not have.
        self.clock = ManualClock(datetime.now(UTC).replace(microsecond=0))
        self.faults = Faults()
        self._nodes = _Nodes(self)
        self.cloud = AwsCloud(
            account_id=_ACCOUNT_ID, faults=self.faults, timings=TIMINGS, events=self._nodes, clock=self.clock
        )
        self.cloud.start()
        self.network = self.cloud.create_cluster(
            CLUSTER, endpoint="https://127.0.0.1:6443", certificate_authority="Q0E="
        )
        self.client = cache(self._client)

    def close(self) -> None:
        self.cloud.stop()

    def _client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.cloud.endpoint_url,
            region_name=self.cloud.region,
            aws_access_key_id=self.cloud.access_key.access_key_id,
            aws_secret_access_key=self.cloud.access_key.secret_access_key,
            config=Config(retries={"total_max_attempts": 1}),
        )

    @property
    def eks(self) -> Any:
        return self.client("eks")

    @property
    def asg(self) -> Any:
        return self.client("autoscaling")

    @property
    def ec2(self) -> Any:
        return self.client("ec2")

    def connection(self, **extra: Any) -> dict[str, Any]:
        """The Airflow connection by which the account is had."""
        return {
            "conn_type": "aws",
            "login": self.cloud.access_key.access_key_id,
            "password": self.cloud.access_key.secret_access_key,
            "extra": {"endpoint_url": self.cloud.endpoint_url, **extra},
        }

    @property
    def placeholders(self) -> dict[str, str]:
        """What stands in the policies of docs/iam for this account's cluster."""
        role = self.network.node_role_arn.rpartition("/")[2]
        return {"REGION": self.cloud.region, "ACCOUNT": _ACCOUNT_ID, "CLUSTER": CLUSTER, "NODE_ROLE": role}

    # Time

    @property
    def now(self) -> datetime:
        return self.clock.utc_now()

    def advance(self, seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0) -> None:
        """Let so much time pass, with all that comes due in it."""
        self.clock.advance(seconds, minutes=minutes, hours=hours)

    def advance_until(self, is_so: Callable[[], Any], *, after: float) -> None:
        """Let so many seconds pass; what `is_so` looks for comes at their end, and not one second before."""
        self.advance(after - 1)
        assert not is_so(), f"not only after {after} s: so a second before"
        self.advance(1)
        assert is_so(), f"not so after {after} s"

    # The other side of AWS

    def stock_out(self, **where: Any) -> None:
        self.faults.add(Stockout(**where))

    def hold_drains(self) -> None:
        """Instances drain from now on until `cloud.complete_drain`."""
        self._nodes.drain_at_once = False

    # Looking, and doing by hand

    def node_group(self, name: str) -> None:
        """Somebody creates a group of their own, and waits until it is ready."""
        self.create_node_group(name)
        self.advance(TIMINGS.nodegroup_create)

    def create_node_group(self, name: str, **changes: Any) -> None:
        """Somebody begins to create a group of their own."""
        request = {
            "clusterName": CLUSTER,
            "nodegroupName": name,
            "nodeRole": self.network.node_role_arn,
            "subnets": [self.network.subnets["us-west-2a"]],
            "instanceTypes": ["g6.xlarge"],
            "amiType": "AL2023_x86_64_NVIDIA",
            "scalingConfig": {"minSize": 0, "maxSize": 3, "desiredSize": 0},
        }
        self.eks.create_nodegroup(**request | changes)

    def scaling(self, name: str, **sizes: int) -> None:
        """Somebody changes a group's sizes, and waits until that is done."""
        self.eks.update_nodegroup_config(clusterName=CLUSTER, nodegroupName=name, scalingConfig=sizes)
        self.advance(TIMINGS.nodegroup_update)

    def node_groups(self) -> list[str]:
        names: list[str] = self.eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"]
        return names

    def describe(self, name: str) -> dict[str, Any]:
        described: dict[str, Any] = self.eks.describe_nodegroup(clusterName=CLUSTER, nodegroupName=name)
        return dict(described["nodegroup"])

    def asg_of(self, name: str) -> str:
        return str(self.describe(name)["resources"]["autoScalingGroups"][0]["name"])

    def group(self, asg_name: str) -> dict[str, Any]:
        (group,) = self.asg.describe_auto_scaling_groups(AutoScalingGroupNames=[asg_name])["AutoScalingGroups"]
        return dict(group)

    def in_service(self, asg_name: str) -> list[str]:
        return [i["InstanceId"] for i in self.group(asg_name)["Instances"] if i["LifecycleState"] == "InService"]


class _Nodes:
    """What AWS tells the sandbox. There are no nodes: none joins, and to drain one is nothing to wait for."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self.drain_at_once = True

    def drain_requested(self, instance: Instance) -> None:
        if self.drain_at_once:
            self._account.cloud.complete_drain(instance.instance_id)

    def instance_launched(self, instance: Instance) -> None: ...

    def instance_relabelled(self, before: Instance, after: Instance) -> None: ...

    def rebalance_recommended(self, instance: Instance) -> None: ...

    def spot_notice(self, instance: Instance, *, at: datetime) -> None: ...

    def instance_terminated(self, instance: Instance) -> None: ...

"""An AWS account of the sandbox for each test, by a clock that the test moves, and what tests ask of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

import boto3
from botocore.config import Config

from gpu_sandbox import ManualClock
from gpu_sandbox.aws import AccessKey, AwsCloud, AwsTimings, ClusterNetwork, Instance
from gpu_sandbox.faults import Faults, Stockout
from gpu_sandbox.pace import Pace

CLUSTER = "k8s-ml"
TIMINGS = Pace(name="real", speed=1, stale=0).aws()
"""AWS's own times: by this clock they cost nothing."""
LAUNCH = TIMINGS.asg_reaction + TIMINGS.asg_launch
"""From a change of a group's size to its machines in service."""
END = TIMINGS.asg_reaction + TIMINGS.terminate
"""From a change of a group's size to the end of a machine that drains at once."""
# Not the default: a whole sandbox may be running in this process, with an account of its own.
ACCOUNT_ID = "210987654321"


@dataclass
class Recorder:
    """The listener: remembers every event; drains at once, unless told not to. There are no nodes, unless they join."""

    drains_at_once: bool = True
    seen: list[tuple[str, Instance]] = field(default_factory=list)
    notices: dict[str, datetime] = field(default_factory=dict)
    nodes_join: bool = False
    complete_drain: Callable[[str], None] = lambda _: None
    node_joined: Callable[[str], None] = lambda _: None

    def instance_launched(self, instance: Instance) -> None:
        self._note("launched", instance)
        if self.nodes_join:
            self.node_joined(instance.instance_id)

    def drain_requested(self, instance: Instance) -> None:
        self._note("drain", instance)
        if self.drains_at_once:
            self.complete_drain(instance.instance_id)

    def instance_relabelled(self, before: Instance, after: Instance) -> None:
        self._note("relabelled", after)

    def rebalance_recommended(self, instance: Instance) -> None:
        self._note("at risk", instance)

    def spot_notice(self, instance: Instance, *, at: datetime) -> None:
        self.notices[instance.instance_id] = at
        self._note("notice", instance)

    def instance_terminated(self, instance: Instance) -> None:
        self._note("terminated", instance)

    def _note(self, what: str, instance: Instance) -> None:
        self.seen.append((what, instance))

    def of(self, what: str) -> list[Instance]:
        return [instance for event, instance in self.seen if event == what]

    def kinds(self) -> list[str]:
        return [event for event, _ in self.seen]


class Account:
    """An account with one cluster, its clients, its faults, and short forms for what the tests do most.

    Nothing happens in it but by `advance`; calls are answered.
    """

    def __init__(
        self, cloud: AwsCloud, clock: ManualClock, events: Recorder, faults: Faults, network: ClusterNetwork
    ) -> None:
        self.cloud = cloud
        self.clock = clock
        self.events = events
        self.faults = faults
        self.network = network
        self.client = cache(self._client)

    @classmethod
    def fresh(cls, *, timings: AwsTimings = TIMINGS, faults: Faults | None = None, nodes_join: bool = False) -> Account:
        """Start a cloud of its own; `close` ends it."""
        # Without a fraction, which AWS' times do not have.
        clock = ManualClock(datetime.now(UTC).replace(microsecond=0))
        faults, events = faults or Faults(), Recorder(nodes_join=nodes_join)
        cloud = AwsCloud(account_id=ACCOUNT_ID, faults=faults, timings=timings, events=events, clock=clock)
        events.complete_drain, events.node_joined = cloud.complete_drain, cloud.node_joined
        cloud.start()
        network = cloud.create_cluster(CLUSTER, endpoint="https://127.0.0.1:6443", certificate_authority="Q0E=")
        return cls(cloud, clock, events, faults, network)

    def close(self) -> None:
        self.cloud.stop()

    def _client(self, service: str, key: AccessKey | None = None, *, checked: bool = True) -> Any:
        """`checked=False` sends even what botocore itself would refuse."""
        key = key or self.cloud.access_key
        return boto3.client(
            service,
            endpoint_url=self.cloud.endpoint_url,
            region_name=self.cloud.region,
            aws_access_key_id=key.access_key_id,
            aws_secret_access_key=key.secret_access_key,
            config=Config(retries={"total_max_attempts": 1}, parameter_validation=checked),
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
        """What stands in the policies of docs/iam for this account's cluster, and a pool `train`."""
        role = self.network.node_role_arn.rpartition("/")[2]
        return {
            "REGION": self.cloud.region,
            "ACCOUNT": ACCOUNT_ID,
            "CLUSTER": CLUSTER,
            "NODE_ROLE": role,
            "POOL": "train",
        }

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
        self.events.drains_at_once = False

    # Looking, and doing by hand

    def node_group(self, name: str = "train-gpu-a", **changes: Any) -> str:
        """Create a group at size 0 in zone a, let the time to ACTIVE pass; return its Auto Scaling group's name."""
        self.create_node_group(name, **changes)
        self.advance(self.cloud.timings.nodegroup_create)
        assert self.status(name) == "ACTIVE"
        return self.asg_of(name)

    def create_node_group(self, name: str, **changes: Any) -> None:
        """Begin to create a group."""
        self.eks.create_nodegroup(**self.node_group_request(name, **changes))

    def node_group_request(self, name: str = "train-gpu-a", **changes: Any) -> dict[str, Any]:
        return {
            "clusterName": CLUSTER,
            "nodegroupName": name,
            "nodeRole": self.network.node_role_arn,
            "subnets": [self.network.subnets["us-west-2a"]],
            "instanceTypes": ["g6.xlarge"],
            "amiType": "AL2023_x86_64_NVIDIA",
            "scalingConfig": {"minSize": 0, "maxSize": 3, "desiredSize": 0},
        } | changes

    def scaling(self, name: str, **sizes: int) -> None:
        """Somebody changes a group's sizes, and waits until that is done."""
        self.eks.update_nodegroup_config(clusterName=CLUSTER, nodegroupName=name, scalingConfig=sizes)
        self.advance(TIMINGS.nodegroup_update)

    def node_groups(self) -> list[str]:
        names: list[str] = self.eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"]
        return names

    def describe(self, name: str = "train-gpu-a") -> dict[str, Any]:
        described: dict[str, Any] = self.eks.describe_nodegroup(clusterName=CLUSTER, nodegroupName=name)
        return dict(described["nodegroup"])

    def status(self, name: str = "train-gpu-a") -> str:
        return str(self.describe(name)["status"])

    def asg_of(self, name: str) -> str:
        return str(self.describe(name)["resources"]["autoScalingGroups"][0]["name"])

    def group(self, asg_name: str) -> dict[str, Any]:
        (group,) = self.asg.describe_auto_scaling_groups(AutoScalingGroupNames=[asg_name])["AutoScalingGroups"]
        return dict(group)

    def instances(self, asg_name: str, state: str = "InService") -> list[str]:
        found = self.group(asg_name)["Instances"]
        return [one["InstanceId"] for one in found if one["LifecycleState"] == state]

    def grow(self, asg_name: str, size: int) -> list[str]:
        """Set the desired capacity, and let the time to the instances pass."""
        self.resize(asg_name, size)
        self.advance(LAUNCH)
        found = self.instances(asg_name)
        assert len(found) == size
        return found

    def resize(self, asg_name: str, size: int) -> None:
        self.asg.set_desired_capacity(AutoScalingGroupName=asg_name, DesiredCapacity=size)

    def terminate(self, instance_id: str, *, decrement: bool = True) -> dict[str, Any]:
        """What Auto Scaling says that it does."""
        answer = self.asg.terminate_instance_in_auto_scaling_group(
            InstanceId=instance_id, ShouldDecrementDesiredCapacity=decrement
        )
        return dict(answer["Activity"])

    def ec2_state(self, instance_id: str) -> str:
        (reservation,) = self.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
        return str(reservation["Instances"][0]["State"]["Name"])

    def activities(self, asg_name: str) -> list[dict[str, Any]]:
        """Newest first."""
        return list(self.asg.describe_scaling_activities(AutoScalingGroupName=asg_name)["Activities"])

    def failed(self, asg_name: str) -> list[dict[str, Any]]:
        return [a for a in self.activities(asg_name) if a["StatusCode"] in ("Failed", "Cancelled")]

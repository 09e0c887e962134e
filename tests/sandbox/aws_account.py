"""The sandbox's AWS in a process of its own, everything quick, and what tests of the package ask of it.

moto's state is its process's, and a `gpu_sandbox` may be running in this one.
"""

from __future__ import annotations

import ctypes
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from typing import Any, TypeVar

import boto3
from botocore.config import Config

from gpu_sandbox.aws import AccessKey, AwsCloud, AwsTimings, Identity, Instance, PolicyUse
from gpu_sandbox.faults import Faults, Stockout
from tests.sandbox.running import standing_still

T = TypeVar("T")
CLUSTER = "k8s-ml"
_PR_SET_PDEATHSIG = 1
_QUICK = AwsTimings(
    nodegroup_create=0.1,
    nodegroup_create_timeout=1.0,
    join_timeout=0.5,
    nodegroup_update=0.3,
    nodegroup_delete=0.1,
    asg_launch=0.05,
    asg_retry=0.3,
    drain_timeout=600.0,
    terminate=0.1,
    stale=0.0,
    poll=0.02,
)


def eventually(look: Callable[[], T], wanted: Callable[[T], Any] = bool, *, seconds: float = 120.0) -> T:
    """What `look` sees once `wanted` says yes to it."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if wanted(seen):
            return seen
        assert time.monotonic() < deadline, f"after {seconds} s still: {seen}"
        time.sleep(0.05)


@dataclass(frozen=True)
class Opened:
    """A fresh account, with one cluster and its subnets by zone: for nodes, public without addresses, and its own."""

    endpoint_url: str
    access_key_id: str
    secret_access_key: str
    arn: str
    vpc_id: str
    subnets: Mapping[str, str]
    public_subnets: Mapping[str, str]
    control_plane_subnets: Mapping[str, str]
    node_role_arn: str
    env: Mapping[str, str]


class Cloud:
    """Lives in the other process: one account at a time."""

    def __init__(self) -> None:
        self._faults = Faults()
        self._cloud: AwsCloud | None = None
        self._drains_at_once = True
        self._stillness = ExitStack()

    def open(self) -> Opened:
        """Begin with an empty account."""
        self.close()
        self._faults.clear()
        self._drains_at_once = True
        cloud = self._cloud = AwsCloud(faults=self._faults, timings=_QUICK, events=self)
        cloud.start()
        network = cloud.create_cluster(CLUSTER, endpoint="https://127.0.0.1:6443", certificate_authority="Q0E=")
        key = cloud.access_key
        return Opened(
            endpoint_url=cloud.endpoint_url,
            access_key_id=key.access_key_id,
            secret_access_key=key.secret_access_key,
            arn=key.arn,
            vpc_id=network.vpc_id,
            subnets=dict(network.subnets),
            public_subnets=dict(network.public_subnets),
            control_plane_subnets=dict(network.control_plane_subnets),
            node_role_arn=network.node_role_arn,
            env=cloud.env(),
        )

    def close(self) -> None:
        if self._cloud:
            self._stillness.close()
            self._cloud.stop()
            self._cloud = None

    def ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of AwsCloud, or read a property."""
        found = getattr(self._cloud, name)
        return found(*args, **kwargs) if callable(found) else found

    def fault(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of Faults."""
        getattr(self._faults, name)(*args, **kwargs)

    def drain_at_once(self, at_once: bool) -> None:
        self._drains_at_once = at_once

    def stand_still(self, still: bool) -> None:
        """Have nothing go on by itself, or all again."""
        assert self._cloud is not None
        self._stillness.close()
        if still:
            self._stillness.enter_context(standing_still(self._cloud))

    # What AWS tells the sandbox

    def instance_launched(self, instance: Instance) -> None:
        """No node joins."""

    def drain_requested(self, instance: Instance) -> None:
        if self._drains_at_once:
            self.ask("complete_drain", instance.instance_id)

    def instance_relabelled(self, before: Instance, after: Instance) -> None:
        """No node is there."""

    def rebalance_recommended(self, instance: Instance) -> None:
        """Nobody listens."""

    def spot_notice(self, instance: Instance, *, at: datetime) -> None:
        """Nobody listens."""

    def instance_terminated(self, instance: Instance) -> None:
        """No node leaves."""


class _Process(BaseManager):
    """The other process."""


_Process.register(
    "Cloud",
    Cloud,
    exposed=("open", "close", "ask", "fault", "drain_at_once", "stand_still"),
)


@contextmanager
def cloud_process() -> Iterator[Any]:
    """Start the other process; it ends with this one, however that ends."""
    process = _Process(ctx=get_context("spawn"))
    process.start(initializer=_die_with_parent)
    try:
        yield process.Cloud()  # type: ignore[attr-defined]
    finally:
        process.shutdown()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Account:
    """A fresh account: its clients, its faults, and short forms for what the tests do most."""

    def __init__(self, cloud: Any) -> None:
        self._cloud = cloud
        self.opened: Opened = cloud.open()
        self.client = cache(self._client)

    def _client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.opened.endpoint_url,
            region_name="us-west-2",
            aws_access_key_id=self.opened.access_key_id,
            aws_secret_access_key=self.opened.secret_access_key,
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

    @property
    def placeholders(self) -> dict[str, str]:
        """What stands in the policies of docs/iam for this account's cluster."""
        _, _, _, _, account, role = self.opened.node_role_arn.split(":")
        role = role.rpartition("/")[2]
        return {"REGION": "us-west-2", "ACCOUNT": account, "CLUSTER": CLUSTER, "NODE_ROLE": role}

    # The other side of AWS

    def stock_out(self, **where: Any) -> None:
        self._cloud.fault("add", Stockout(**where))

    def set_rates(self, *, throttled: float = 0.0, failing: float = 0.0) -> None:
        self._cloud.fault("set_throttle_rate", throttled)
        self._cloud.fault("set_error_rate", failing)

    def clear_faults(self) -> None:
        self._cloud.fault("clear")

    def set_offered(self, instance_type: str, zone: str, *, offered: bool) -> None:
        self._cloud.ask("set_offered", instance_type, zone, offered=offered)

    def set_quota(self, code: str, vcpus: float) -> None:
        self._cloud.ask("set_quota", code, vcpus)

    def hold_drains(self) -> None:
        """Instances drain from now on until `complete_drain`."""
        self._cloud.drain_at_once(False)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Nothing goes on by itself meanwhile, however long the body takes; calls are answered."""
        self._cloud.stand_still(True)
        try:
            yield
        finally:
            self._cloud.stand_still(False)

    def complete_drain(self, instance_id: str) -> None:
        self._cloud.ask("complete_drain", instance_id)

    def identify(self, token: str) -> Identity | None:
        identity: Identity | None = self._cloud.ask("identify", token)
        return identity

    def add_identity(self, name: str, policy: Mapping[str, Any]) -> AccessKey:
        """A new IAM user with this policy and no other."""
        key: AccessKey = self._cloud.ask("add_identity", name, policy=policy)
        return key

    def policy_uses(self, arn: str) -> frozenset[PolicyUse]:
        uses: frozenset[PolicyUse] = self._cloud.ask("policy_uses", arn)
        return uses

    def refused(self, arn: str) -> frozenset[PolicyUse]:
        refused: frozenset[PolicyUse] = self._cloud.ask("refused", arn)
        return refused

    @property
    def calls(self) -> Counter[str]:
        """API calls so far by operation, `eks:DescribeNodegroup`."""
        calls: Counter[str] = self._cloud.ask("calls")
        return calls

    # Looking, and doing by hand

    def node_group(self, name: str) -> None:
        """Somebody creates a group of their own, and waits until it is ready."""
        self.create_node_group(name)
        self.until_active(name)

    def create_node_group(self, name: str, **changes: Any) -> None:
        """Somebody begins to create a group of their own."""
        request = {
            "clusterName": CLUSTER,
            "nodegroupName": name,
            "nodeRole": self.opened.node_role_arn,
            "subnets": [self.opened.subnets["us-west-2a"]],
            "instanceTypes": ["g6.xlarge"],
            "amiType": "AL2023_x86_64_NVIDIA",
            "scalingConfig": {"minSize": 0, "maxSize": 3, "desiredSize": 0},
        }
        self.eks.create_nodegroup(**request | changes)

    def scaling(self, name: str, **sizes: int) -> None:
        """Somebody changes a group's sizes, and waits until that is done."""
        self.eks.update_nodegroup_config(clusterName=CLUSTER, nodegroupName=name, scalingConfig=sizes)
        self.until_active(name)

    def until_active(self, name: str) -> None:
        eventually(lambda: self.describe(name)["status"], lambda status: status == "ACTIVE")

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

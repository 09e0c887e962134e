"""What the rest of the sandbox sees of AWS: instances, timings, and the events that AWS sends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Market = Literal["on-demand", "spot", "capacity-block"]


@dataclass(frozen=True, kw_only=True)
class Taint:
    """A taint in Kubernetes' spelling (`NoSchedule`, not EKS's `NO_SCHEDULE`)."""

    key: str
    value: str = ""
    effect: str


@dataclass(frozen=True, kw_only=True)
class Instance:
    """All that a node needs to register as EKS's AMI would."""

    instance_id: str
    private_ip: str
    private_dns_name: str
    zone: str
    region: str
    instance_type: str
    market: Market
    asg_name: str
    nodegroup: str | None
    """The managed node group; None for an instance of a self-managed Auto Scaling group."""
    cluster_name: str | None
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    ami_type: str | None = None
    """The managed node group's; None for an instance of a self-managed Auto Scaling group."""
    disk_gib: int | None = None
    """Of the volume for images and pods; None for an instance of a self-managed Auto Scaling group."""
    disk_mib_per_second: float | None = None
    """What the disk for images writes; None for an instance of a self-managed Auto Scaling group."""
    efa_interfaces: int = 0
    joins_as: Instance | None = None
    """What its kubelet registers with, where EKS adds the rest only afterwards: see Registration."""

    @property
    def at_registration(self) -> Instance:
        return self.joins_as or self

    @property
    def node_name(self) -> str:
        return self.private_dns_name


@dataclass(frozen=True, kw_only=True)
class AwsTimings:
    """How long AWS takes, in seconds. The defaults are far quicker than AWS, in the same order."""

    cluster_create: float = 3.0
    cluster_delete: float = 2.0
    cluster_update: float = 2.0
    nodegroup_create: float = 2.0
    nodegroup_create_timeout: float = 20.0
    """A group whose instances cannot be launched for so long becomes CREATE_FAILED."""
    join_timeout: float = 15.0
    """A managed group with a machine that has not joined for so long has the health issue NodeCreationFailure."""
    nodegroup_update: float = 1.0
    nodegroup_version_update: float = 1.0
    """To another version, of a group without machines."""
    nodegroup_delete: float = 1.0
    asg_reaction: float = 0.1
    """From a change of size to the first launch or end; nothing shows in between, as in AWS."""
    asg_launch: float = 0.2
    asg_retry: float = 5.0
    drain_timeout: float = 15.0
    """A managed group's instance that nobody reports as drained ends after so long.

    EKS tries 15 times, a minute apart, also where a node without pods is not Ready (containers-roadmap#1990).
    """
    terminate: float = 0.5
    spot_notice: float = 120.0
    az_rebalance: float = 10.0
    """How long the zones of a group must have been uneven before AWS evens them."""
    stale: float = 0.5
    """How old what a read call answers may be at most; 0: never. See `replicas`."""
    poll: float = 0.1
    """The step of the clock that moves life cycles on."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who signed a token, in GetCallerIdentity's words."""

    arn: str
    account_id: str
    user_id: str

    # As EKS's authenticator tells the API server

    @property
    def username(self) -> str:
        return self.arn

    @property
    def uid(self) -> str:
        return f"aws-iam-authenticator:{self.account_id}:{self.user_id}"

    @property
    def administers(self) -> bool:
        return True

    @property
    def extra(self) -> Mapping[str, list[str]]:
        return {"arn": [self.arn], "canonicalArn": [self.arn]}


@dataclass(frozen=True, kw_only=True)
class AccessKey:
    """Credentials of one IAM user."""

    access_key_id: str
    secret_access_key: str
    arn: str


@dataclass(frozen=True, kw_only=True)
class ClusterNetwork:
    """Where a cluster's node groups may be put, and where not: subnet ids by availability zone."""

    vpc_id: str
    subnets: Mapping[str, str]
    """For nodes: private, with a way out."""
    public_subnets: Mapping[str, str]
    """They give machines no public address."""
    control_plane_subnets: Mapping[str, str]
    """Without a way out."""
    node_role_arn: str


@dataclass(frozen=True, kw_only=True)
class ScalableGroup:
    """An Auto Scaling group as its scaler sees it.

    `node_labels` and `node_taints` are what EKS's DescribeNodegroup says of a managed group, empty for any other; a
    taint without a value is not among them, as cluster-autoscaler drops it. `launch_failed_at` is when the last launch
    that failed was tried.
    """

    name: str
    tags: Mapping[str, str]
    min_size: int
    max_size: int
    desired: int
    instance_ids: tuple[str, ...]
    zones: tuple[str, ...]
    instance_type: str
    architecture: str
    vcpus: int
    memory_bytes: int
    gpus: int
    node_labels: Mapping[str, str]
    node_taints: tuple[Taint, ...]
    launch_failed_at: datetime | None

"""What the rest of the sandbox sees of Google Cloud: instances, timings, and who calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpu_sandbox.google.machine_types import Accelerator

Market = Literal["on-demand", "spot"]
Driver = Literal["default", "latest", "disabled"]


@dataclass(frozen=True, kw_only=True)
class Taint:
    """A taint in Kubernetes' spelling (`NoSchedule`, not GKE's `NO_SCHEDULE`)."""

    key: str
    value: str = ""
    effect: str


@dataclass(frozen=True, kw_only=True)
class Instance:
    """All that a node needs to register as GKE's node image would."""

    instance_id: str
    name: str
    zone: str
    region: str
    project_id: str
    machine_type: str
    market: Market
    cluster_name: str
    node_pool: str
    group: str
    """The managed instance group's name."""
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    gpu: Accelerator | None
    gpus: int
    """As many as pods may ask for: more than the machine has where they are shared or partitioned."""
    driver: Driver
    """`disabled`: there is none until a driver DaemonSet installs it."""
    streams_images: bool = False
    """Containers start before their images are all there."""

    @property
    def node_name(self) -> str:
        return self.name

    @property
    def at_registration(self) -> Instance:
        return self


@dataclass(frozen=True, kw_only=True)
class ScalableGroup:
    """One zone's instance group of a node pool with autoscaling on, as GKE's autoscaler sees it.

    `name` is the group's whole URL, as in the autoscaler's events. `error` is the code and message of an instance that
    cannot be had. A `queued` one has instances only by resize requests: `GoogleCloud.create_resize_request`.
    """

    name: str
    node_pool: str
    pool_max_size: int
    """Of all zones together; 0 where each has its own limit."""
    min_size: int
    max_size: int
    target: int
    machines: tuple[str, ...]
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    vcpus: int
    memory_bytes: int
    gpus: int
    error: tuple[str, str] | None
    queued: bool = False


@dataclass(frozen=True, kw_only=True)
class GoogleTimings:
    """How long Google Cloud takes, in seconds. The defaults are far quicker than Google Cloud, in the same order."""

    operation_pending: float = 0.1
    cluster_create: float = 3.0
    cluster_delete: float = 2.0
    node_pool_create: float = 2.0
    node_pool_update: float = 1.0
    node_pool_resize: float = 0.5
    """At least; a resize is over when the instances are there, or cannot be had."""
    node_pool_delete: float = 1.0
    patience: float = 3.0
    """An operation ends with an error once an instance could not be had for so long."""
    group_reaction: float = 0.1
    """From a change of an instance group's size to its first step; nothing shows in between."""
    group_operation: float = 0.1
    """From a call that changes an instance group to the end of its operation; Compute Engine's seconds, or more."""
    operation_wait: float = 12.0
    """zoneOperations.wait answers after so long, if the operation goes on; Compute Engine's two minutes."""
    control_plane_restart: float = 2.0
    """For so long a zonal cluster has no API server once autoscaling begins or ends in it; GKE's several minutes."""
    instance_create: float = 0.3
    instance_delete: float = 0.5
    launch_retry: float = 5.0
    drain_timeout: float = 15.0
    """A node whose pods do not go ends after so long when its pool is made smaller or deleted; GKE's hour."""
    preemption_notice: float = 3.0
    """From Compute Engine's notice to the end of a spot instance; Google's 30 seconds."""
    driver: float = 1.0
    """From the Node to the GPUs, where GKE installs the driver."""
    token_lifetime: float = 3600.0
    stale: float = 0.5
    """How old what a read call answers may be at most; 0: never. See `replicas`."""
    poll: float = 0.1
    """The step of the clock that moves life cycles on."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A service account."""

    email: str
    unique_id: str
    project_id: str


@dataclass(frozen=True, kw_only=True)
class KubernetesUser:
    """A service account, as GKE tells the API server of the bearer of its token."""

    username: str
    """The account's email where the token may tell it, else its unique id."""
    uid: str
    administers: bool
    """IAM alone lets it do everything in the cluster."""

    @property
    def extra(self) -> Mapping[str, list[str]]:
        return {}

"""How fast a sandbox is: far faster than the clouds, or their own times on a faster clock.

What is scaled is what clouds, kubelets and cluster-autoscaler take; Kubernetes' own times (grace periods, leases) and
those of whoever uses the sandbox are not. Scheduled actions and ends of machines have a speed of their own, the fault
`deadline_speed`; credentials last as long as real ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gpu_sandbox.autoscaler.timings import SANDBOX_SPEED, AutoscalerTimings
from gpu_sandbox.clock import ClockName

if TYPE_CHECKING:
    from gpu_sandbox.aws import AwsTimings
    from gpu_sandbox.google import GoogleTimings
    from gpu_sandbox.nodes import Image

PaceName = Literal["quick", "real"]
PACES: tuple[PaceName, ...] = ("quick", "real")

_Timings = TypeVar("_Timings")
_UNSCALED = frozenset({"poll", "token_lifetime"})
_QUICK_BOOT = 3.0

AWS: Mapping[str, float] = {
    "cluster_create": 600.0,
    "cluster_delete": 300.0,
    "cluster_update": 480.0,
    "nodegroup_create": 150.0,
    "nodegroup_create_timeout": 1260.0,
    "join_timeout": 900.0,
    "nodegroup_update": 60.0,
    "nodegroup_version_update": 180.0,
    "nodegroup_delete": 120.0,
    "asg_reaction": 5.0,
    "asg_launch": 35.0,
    "asg_retry": 60.0,
    "drain_timeout": 900.0,
    "terminate": 45.0,
    "spot_notice": 120.0,
    "az_rebalance": 600.0,
    "stale": 10.0,
}
"""AWS's usual times, in seconds, by the names of `AwsTimings`.

A cluster: "several minutes", ten as a rule ("Create an Amazon EKS cluster"); its update "a few minutes" (botocore). A
node group: 2m50s in
umotif-public/terraform-aws-eks-node-group#7, without instances somewhat less; CREATE_FAILED after 21 minutes in
terraform-aws-modules/terraform-aws-eks#1910. Drain: "15 minutes" until PodEvictionFailure ("Understand each phase of
node updates"). A notice: two minutes ("Spot Instance interruption notices"). What reads may be behind by: EC2's guide
asks for waits of a couple of seconds and more ("Eventual consistency in the Amazon EC2 API"). Launch, end and reaction
are what users report of a minute in which an instance is there; no document gives them.
"""

GOOGLE: Mapping[str, float] = {
    "operation_pending": 2.0,
    "cluster_create": 360.0,
    "cluster_delete": 240.0,
    "control_plane_restart": 180.0,
    "node_pool_create": 45.0,
    "node_pool_update": 60.0,
    "node_pool_resize": 30.0,
    "node_pool_delete": 120.0,
    "patience": 600.0,
    "group_reaction": 3.0,
    "instance_create": 25.0,
    "instance_delete": 45.0,
    "launch_retry": 60.0,
    "drain_timeout": 3600.0,
    "preemption_notice": 30.0,
    "driver": 60.0,
    "stale": 5.0,
}
"""Google Cloud's usual times, in seconds, by the names of `GoogleTimings`.

The control plane's restart: "several minutes" ("Autoscaling a cluster"). An empty node pool: 30 to 45 seconds
(Google's announcement of concurrent node pool creation). Drain: an hour, and a notice: 30 seconds ("Node pool upgrade
strategies"; "Preemptible VM instances"). The driver's installer compiles nothing and takes about a minute after the
node is there ("Run GPUs in Standard node pools"). The others are what users report.
"""

_BOOT = 45.0
"""From an instance that runs to its Node: 30 to 60 seconds, as users report of AL2023 and COS."""

_PULLS: Mapping[str, float] = {
    "busybox*": 2.0,
    "alpine*": 2.0,
    "python:*": 10.0,
    "nvcr.io/nvidia/k8s-device-plugin:*": 10.0,
}
_PULL = 45.0
"""Of an image with a framework and CUDA: several gigabytes."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """One of the paces. ValueError if there is none of that name, or a number is out of its range.

    Args:
        name: "quick": everything takes moments; "real": the clouds' own times, `speed` times faster.
        speed: For a real pace; 1 is real time. It also applies to the cluster-autoscaler stand-in at each pace.
        stale: How old, in seconds, answers of the cloud's read calls may be; 0: never. Default: the pace's.
        by_hand: The cloud's time is moved by hand. What nodes do by themselves, in real time, then takes none: pulls of
            images without a size, and GKE's installation of the driver.
    """

    name: PaceName = "quick"
    speed: float = SANDBOX_SPEED
    stale: float | None = None
    by_hand: bool = False

    def __post_init__(self) -> None:
        if self.name not in PACES:
            raise ValueError(f"a sandbox's pace is 'quick' or 'real'; not {self.name!r}")
        if not 0 < self.speed < float("inf"):
            raise ValueError(f"a speed is a number above 0; not {self.speed!r}")
        if self.stale is not None and not 0 <= self.stale < float("inf"):
            raise ValueError(f"the age of what is read is a number of seconds, at least 0; not {self.stale!r}")

    @classmethod
    def by(cls, clock: ClockName, *, name: PaceName | None, speed: float | None, stale: float | None) -> Pace:
        """The pace with these settings, those that are None as suits the clock.

        Time that somebody moves costs nothing: it is real, and nothing that is read is old.
        """
        usual = cls(name="real", speed=1.0, stale=0.0) if clock == "manual" else cls()
        return cls(
            name=name or usual.name,
            speed=usual.speed if speed is None else speed,
            stale=usual.stale if stale is None else stale,
            by_hand=clock == "manual",
        )

    @property
    def boot_seconds(self) -> float:
        """From an instance's launch to its Node."""
        return _BOOT / self.speed if self.name == "real" else _QUICK_BOOT

    def aws(self) -> AwsTimings:
        from gpu_sandbox.aws import AwsTimings

        return self._timed(AwsTimings(), AWS)

    def google(self) -> GoogleTimings:
        from gpu_sandbox.google import GoogleTimings

        return self._timed(GoogleTimings(), GOOGLE)

    def autoscaler(self) -> AutoscalerTimings:
        return AutoscalerTimings().scaled(self.speed)

    def images(self, images: Iterable[Image]) -> list[Image]:
        """The images, which take time to pull in a real pace; one that says how long itself keeps that."""
        if self.name == "quick" or self.by_hand:
            return list(images)
        return [
            each if each.pull_seconds or each.size else replace(each, pull_seconds=self._pull(each)) for each in images
        ]

    def _pull(self, image: Image) -> float:
        known = (seconds for pattern, seconds in _PULLS.items() if fnmatch(image.pattern, pattern))
        return next(known, _PULL) / self.speed

    def _timed(self, quick: _Timings, real: Mapping[str, float]) -> _Timings:
        """What is not in the table is as long as the quick pace has it, times as much as that is quicker."""
        given = {} if self.stale is None else {"stale": self.stale}
        if self.name == "quick":
            return replace(quick, **given)  # type: ignore[type-var]
        names = [field.name for field in fields(quick) if field.name not in _UNSCALED]  # type: ignore[arg-type]
        usual = {name: real.get(name, getattr(quick, name) * SANDBOX_SPEED) for name in names}
        changed: Any = replace(quick, **({name: seconds / self.speed for name, seconds in usual.items()} | given))  # type: ignore[type-var]
        return changed  # type: ignore[no-any-return]

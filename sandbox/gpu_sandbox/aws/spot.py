"""Spot instances that are reclaimed: perhaps a rebalance recommendation, a notice, and the end two minutes later."""

from __future__ import annotations

from datetime import datetime, timedelta

from gpu_sandbox.aws.activities import at
from gpu_sandbox.aws.auto_scaling import AutoScaling
from gpu_sandbox.aws.ec2 import market_of
from gpu_sandbox.aws.groups import AutoScalingGroup, Member
from gpu_sandbox.aws.interface import Instance
from gpu_sandbox.clock import Clock
from gpu_sandbox.cloud_events import Outbox

_TAKEN = "Server.SpotInstanceTermination: Spot instance termination"


class SpotInterruptions:
    """The notices that run."""

    def __init__(self, *, auto_scaling: AutoScaling, outbox: Outbox[Instance], notice: float, clock: Clock) -> None:
        self._auto_scaling = auto_scaling
        self._outbox = outbox
        self._notice = timedelta(seconds=notice)
        self._clock = clock
        self._due: dict[str, datetime] = {}

    def recommend_rebalance(self, instance_id: str, now: datetime) -> None:
        """ValueError unless it is a spot instance in service."""
        group, member, announced = self._find(instance_id)
        self._outbox.rebalance_recommended(announced)
        if group.capacity_rebalance:
            group.replace_at_risk(member, now=now)

    def _find(self, instance_id: str) -> tuple[AutoScalingGroup, Member, Instance]:
        found = self._auto_scaling.find_member(instance_id)
        if found is None:
            raise ValueError(f"no Auto Scaling group has an instance {instance_id!r}")
        group, member = found
        if market_of(member.instance) != "spot" or member.announced is None:
            raise ValueError(f"{instance_id} is no running spot instance")
        return group, member, member.announced

    def interrupt(self, instance_id: str, now: datetime) -> datetime:
        """Give notice; returns the moment of the end. ValueError unless it is a spot instance in service.

        A second interruption of the same instance changes nothing.
        """
        group, member, announced = self._find(instance_id)
        if instance_id not in self._due:
            self._due[instance_id] = now + self._notice
            self._outbox.spot_notice(announced, at=self._due[instance_id])
            group.drain_before_replacement(member, now=now)
        return self._due[instance_id]

    def advance(self, now: datetime) -> None:
        for instance_id in [one for one, end in self._due.items() if self._clock.reached(end)]:
            del self._due[instance_id]
            self._auto_scaling.instance_ended_outside(
                instance_id,
                cause=f"{at(now)} in response to an EC2 Spot Instance interruption notice.",
                reason=_TAKEN,
            )

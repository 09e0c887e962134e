"""What AWS's read calls see: Auto Scaling's, EKS's and EC2's state as it was up to some seconds ago.

EC2: "Eventual consistency in the Amazon EC2 API" in its developer guide. A new instance may be
InvalidInstanceID.NotFound for a while, what was changed may be described as it was, and an accurate answer may be
followed by one that is not; the guide asks for waits of a couple of seconds at first. Auto Scaling launches and ends
its instances through that API, and Terraform's AWS provider waits for both, and for IAM, to show the same several times
in a row (`ContinuousTargetOccurence`). EKS says the same of what it keeps beside a cluster ("eventually consistent ...
several seconds", in the chapters on access entries and Pod Identity) and nothing of node groups: here they
are no better.

What is written is written at once, and writes find what is there, but for one that names what another service keeps:
EKS may not know a launch template that EC2 has just made. Else only reads are old.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from copy import copy
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from gpu_sandbox.clock import Clock
from gpu_sandbox.consistency import History, Staleness

if TYPE_CHECKING:
    from moto.ec2.models.instances import Instance as Ec2Instance

    from gpu_sandbox.aws.auto_scaling import AutoScaling
    from gpu_sandbox.aws.ec2 import Ec2Backend
    from gpu_sandbox.aws.eks import Eks
    from gpu_sandbox.aws.groups import AutoScalingGroup
    from gpu_sandbox.aws.scheduled_actions import ScheduledAction

_OF_AUTO_SCALING = frozenset(
    {
        "DescribeAutoScalingGroups",
        "DescribeAutoScalingInstances",
        "DescribeScalingActivities",
        "DescribeScheduledActions",
        "DescribeTags",
    }
)
_OF_EKS = frozenset({"DescribeNodegroup", "ListNodegroups"})
_OF_EC2 = frozenset({"DescribeInstances", "DescribeInstanceStatus"})


class Replicas:
    """The last seconds of one account and region, and how far back each read goes. Used under the cloud's lock."""

    def __init__(
        self, *, auto_scaling: AutoScaling, eks: Eks, ec2: Ec2Backend, staleness: Staleness, clock: Clock
    ) -> None:
        self._auto_scaling = auto_scaling
        self._eks = eks
        self._ec2 = ec2
        self._staleness = staleness
        self._clock = clock
        self.observer = ""
        """The access key of whose reads are never old."""
        longest = staleness.longest
        self._groups: History[str, AutoScalingGroup] = History(mark=_mark_group, copy=_copy_group, longest=longest)
        self._actions: History[tuple[str, str], ScheduledAction] = History(mark=_same, copy=_same, longest=longest)
        self._clusters: History[str, Any] = History(mark=_mark_cluster, copy=_copy_cluster, longest=longest)
        self._instances: History[str, Ec2Instance] = History(mark=_mark_instance, copy=_copy_instance, longest=longest)

    def record(self, now: datetime) -> None:
        """Take the state at `now`."""
        if not self._staleness.longest:
            return
        at = now.timestamp()
        self._groups.record({group.name: group for group in self._auto_scaling.groups()}, at)
        self._actions.record(self._auto_scaling.schedule.actions(), at)
        self._clusters.record(self._eks.clusters, at)
        self._instances.record({each.id: each for each in self._ec2.all_instances()}, at)

    def mark(self) -> Hashable:
        """Differs where anything that shows has changed."""
        return (
            tuple(map(_mark_group, self._auto_scaling.groups())),
            tuple(self._auto_scaling.schedule.actions().values()),
            tuple(map(_mark_cluster, self._eks.clusters.values())),
            tuple(map(_mark_instance, self._ec2.all_instances())),
        )

    def auto_scaling_for(self, operation: str, key: str) -> AutoScaling:
        """Auto Scaling as this call sees it."""
        then = self._moment("autoscaling", operation, key, _OF_AUTO_SCALING)
        return self._auto_scaling if then is None else self._auto_scaling_at(then)

    def eks_for(self, operation: str, key: str) -> Eks:
        """EKS as this call sees it."""
        then = self._moment("eks", operation, key, _OF_EKS)
        if then is None:
            return self._eks
        return self._eks.seen(self._clusters.at(then.timestamp()), self._auto_scaling_at(then))

    def ec2_for(self, operation: str, key: str) -> Ec2Backend:
        """EC2 as this call sees it."""
        then = self._moment("ec2", operation, key, _OF_EC2)
        if then is None:
            return self._ec2
        there = self._instances.at(then.timestamp())
        seen = copy(self._ec2)
        seen.reservations = {}
        for id_, reservation in self._ec2.reservations.items():
            known = [there[instance.id] for instance in reservation.instances if instance.id in there]
            if known:
                seen.reservations[id_] = copy(reservation)
                seen.reservations[id_].instances = known
        return seen

    def knows(self, service: str, made_at: datetime) -> bool:
        """Whether a service knows in this call what another one made then."""
        return made_at <= self._clock.utc_now() - timedelta(seconds=self._staleness.age(f"{service}:others"))

    def _moment(self, service: str, operation: str, key: str, stale: frozenset[str]) -> datetime | None:
        """How things stood when the call sees them; None for now."""
        if operation not in stale or key == self.observer:
            return None
        age = self._staleness.age(f"{service}:{operation}")
        return self._clock.utc_now() - timedelta(seconds=age) if age else None

    def _auto_scaling_at(self, then: datetime) -> AutoScaling:
        groups = self._groups.at(then.timestamp())
        return self._auto_scaling.seen(groups, self._actions.at(then.timestamp()), then)


def _same(action: ScheduledAction) -> ScheduledAction:
    return action


def _mark_group(group: AutoScalingGroup) -> Hashable:
    members = tuple(
        (each.instance.id, each.lifecycle_state, each.health_status, each.protected_from_scale_in)
        for each in group.members
    )
    processes = tuple(process["ProcessName"] for process in group.suspended_processes)
    tags = tuple((tag["Key"], tag["Value"]) for tag in group.tags)
    sizes = (group.min_size, group.max_size, group.desired_capacity, group.launch_template_version)
    return (*sizes, members, processes, tags, group.deleting, group.capacity_rebalance)


def _copy_group(group: AutoScalingGroup) -> AutoScalingGroup:
    seen = copy(group)
    seen.instance_states = [copy(member) for member in group.members]
    seen.tags = [dict(tag) for tag in group.tags]
    return seen


def _mark_cluster(cluster: Any) -> Hashable:
    return cluster.status, tuple(repr(_what_shows(group)) for group in cluster.nodegroups.values())


def _what_shows(group: Any) -> Mapping[str, Any]:
    names = ("nodegroup_name", "arn", "status", "labels", "taints", "tags", "resources", "health", "update_config")
    made_from = ("version", "release_version", "launch_template")
    return {name: getattr(group, name) for name in (*names, *made_from)}


def _copy_cluster(cluster: Any) -> Any:
    seen = copy(cluster)
    seen.nodegroups = {name: _copy_node_group(group) for name, group in cluster.nodegroups.items()}
    return seen


def _copy_node_group(group: Any) -> Any:
    seen = copy(group)
    for name in ("labels", "tags", "resources", "health"):
        setattr(seen, name, dict(getattr(group, name) or {}))
    return seen


def _mark_instance(instance: Ec2Instance) -> Hashable:
    return instance.state, instance._reason


def _copy_instance(instance: Ec2Instance) -> Ec2Instance:
    seen = copy(instance)
    seen._state = copy(instance._state)
    return seen

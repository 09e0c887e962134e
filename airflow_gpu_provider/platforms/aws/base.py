"""EksBase: what pools on Amazon EKS share, with own or external groups: the cluster, quotas, sizes, the switch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.cluster.threads import all_in_parallel
from airflow_gpu_provider.errors import CloudError, GroupNotFound
from airflow_gpu_provider.platforms.aws import lives as eks_lives
from airflow_gpu_provider.platforms.aws import permissions as eks_permissions
from airflow_gpu_provider.platforms.aws.autoscaling import AutoScaling
from airflow_gpu_provider.platforms.aws.clients import AwsClients, in_parallel
from airflow_gpu_provider.platforms.aws.errors import has_code
from airflow_gpu_provider.platforms.aws.group_state import instance_end
from airflow_gpu_provider.platforms.aws.node_groups import NodeGroups, asg_name
from airflow_gpu_provider.platforms.aws.quota import judge, read_quotas
from airflow_gpu_provider.platforms.base import (
    Group,
    GroupStatus,
    Machine,
    MachineEnd,
    MachineLife,
    Platform,
    Refusals,
    Say,
)
from airflow_gpu_provider.platforms.quota import Verdict, find_over_quota
from airflow_gpu_provider.pools import Candidate, EksGpuPool

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_gpu_provider.cluster.access import ClusterAccess

STATUS: dict[str, GroupStatus] = {
    "CREATING": "creating",
    "ACTIVE": "active",
    "UPDATING": "updating",
    "DEGRADED": "degraded",
    "CREATE_FAILED": "failed",
    "DELETE_FAILED": "failed",
    "DELETING": "deleting",
}
"""What EKS's word for a node group's state means for the pool."""

_FILTER_VALUES = 200
"""How many values a filter of EC2 may have."""


class EksBase(Platform):
    """A pool on Amazon EKS; which groups it has is for subclasses to say.

    Args:
        pool: The rendered spec.
    """

    def __init__(self, pool: EksGpuPool) -> None:
        self._pool = pool
        self._clients = AwsClients(conn_id=pool.aws_conn_id, region=pool.region)
        self._behind: Mapping[str, str] = {}
        """The Auto Scaling groups behind node groups, as last observed: EKS may not know a new one at the next call."""

    @abstractmethod
    def candidates(self) -> tuple[Candidate, ...]:
        """Return where the pool can have machines, the most wanted first."""

    # -- the cluster -----------------------------------------------------------------------------------------

    def account(self) -> str:
        caller = self._clients.sts.call("get_caller_identity")
        cluster = f"EKS cluster {self._pool.cluster_name} in {self._pool.region}"
        return f"AWS account {caller['Account']}, {cluster}, as {caller['Arn']}"

    def refusals(self) -> Refusals:
        behind = [name for group in self.observe() if (name := group.autoscaler_name)]
        asked = eks_permissions.questions(
            self._pool,
            cluster_arn=self._cluster["arn"],
            node_role="" if self._pool.manage == "scale" else self._groups.node_role(),
            groups=list(self._scaling.groups(behind).values()),
        )
        caller = self._clients.sts.call("get_caller_identity")
        return eks_permissions.ask(self._clients.iam, caller["Arn"], asked)

    def cluster_access(self) -> ClusterAccess:
        from airflow_gpu_provider.cluster.access import ClusterAccess

        return ClusterAccess(
            server=self._cluster["endpoint"],
            ca_data=self._cluster["certificateAuthority"]["data"],
            token=lambda: self._clients.cluster_token(self._pool.cluster_name),
        )

    @cached_property
    def _cluster(self) -> Mapping[str, Any]:
        return self._groups.cluster()

    @cached_property
    def _groups(self) -> NodeGroups:
        return NodeGroups(self._clients.eks, self._pool)

    @cached_property
    def _scaling(self) -> AutoScaling:
        return AutoScaling(self._clients.autoscaling)

    # -- quotas ----------------------------------------------------------------------------------------------

    def groups_over_quota(self, nodes: int, say: Say) -> frozenset[str]:
        def judged(missing: int) -> Verdict:
            candidates = self.candidates()
            quotas, vcpus = read_quotas(self._clients.service_quotas, self._clients.ec2, candidates)
            return judge(self._pool, missing, candidates, quotas, vcpus)

        return find_over_quota(self._pool, nodes, self.observe(), say, judged, whose="account")

    # -- sizes and the switch --------------------------------------------------------------------------------

    def set_switch(self, groups: Collection[str], at: datetime) -> None:
        in_parallel(lambda name: self._scaling.set_switch(name, at), self._asgs_of(groups).values())

    def resume_launches(self, groups: Collection[str]) -> None:
        in_parallel(self._scaling.resume, self._asgs_of(groups).values())

    def grow(self, sizes: Mapping[str, int]) -> None:
        for group, name in self._asgs_of(sizes).items():
            self._scaling.grow(name, sizes[group])

    def release(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        are_going = all_in_parallel(lambda machine: self._scaling.terminate(machine.id), machines)
        return tuple(machine for machine, is_going in zip(machines, are_going, strict=True) if not is_going)

    def machine_end(self, machine: str) -> MachineEnd | None:
        try:
            found = [*self._clients.ec2.items("describe_instances", "Reservations", InstanceIds=[machine])]
        except CloudError as error:
            if has_code(error, "InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"):
                return None  # EC2 forgets an ended instance within the hour, and not each node is one
            raise
        for instance in (instance for reservation in found for instance in reservation["Instances"]):
            if end := instance_end(instance):
                return end
        cause = self._scaling.why_ending(machine)
        return MachineEnd(why=cause) if cause else None

    def lives(self, groups: Sequence[Group], since: datetime, known: Collection[str] = ()) -> tuple[MachineLife, ...]:
        behind = {group.autoscaler_name: group.name for group in groups if group.autoscaler_name}
        read = in_parallel(lambda asg: self._scaling.activities_since(asg, since), behind)
        instances = self._instances({*known, *(each for some in read for each in eks_lives.instance_ids(some))})
        return tuple(
            life
            for asg, activities in zip(behind, read, strict=True)
            for life in eks_lives.lives(behind[asg], activities, eks_lives.launched_by(asg, instances), since)
        )

    def _instances(self, ids: Collection[str]) -> list[Mapping[str, Any]]:
        """Return what EC2 says of these instances; by a filter, which leaves out those that it has forgotten."""
        wanted = sorted(ids)
        parts = [wanted[start : start + _FILTER_VALUES] for start in range(0, len(wanted), _FILTER_VALUES)]
        return [
            instance
            for some in parts
            for reservation in self._clients.ec2.items(
                "describe_instances", "Reservations", Filters=[{"Name": "instance-id", "Values": some}]
            )
            for instance in reservation["Instances"]
        ]

    def shrink_unfilled(self, groups: Collection[str]) -> dict[str, int]:
        sizes = {group: self._scaling.shrink_to_existing(name) for group, name in self._asgs_of(groups).items()}
        return {group: size for group, size in sizes.items() if size is not None}

    def clear_switch(self, groups: Collection[str]) -> None:
        in_parallel(self._scaling.clear_switch, self._asgs_of(groups).values())

    def _asgs_of(self, groups: Collection[str]) -> dict[str, str]:
        """Return the Auto Scaling groups behind node groups, by node group, in the order given."""
        names = list(groups)
        return dict(zip(names, in_parallel(self._asg_of, names), strict=True))

    def _asg_of(self, group: str) -> str:
        if known := self._behind.get(group):
            return known
        raw = self._groups.describe(group)
        name = asg_name(raw) if raw else None
        if name is None:
            state = f"is {raw['status']} and has no Auto Scaling group" if raw else "does not exist"
            raise GroupNotFound(f"Node group {group} {state}.", "Run EnsureGpuPoolOperator again.", group=group)
        return name

"""EksPlatform: a pool's GPU nodes in groups of an Amazon EKS cluster, owned or external, by AWS's APIs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.clouds.answers import Refusals, has_code
from airflow_gpu_provider.clouds.aws import permissions as eks_permissions
from airflow_gpu_provider.clouds.aws import prices
from airflow_gpu_provider.clouds.aws.clients import instances
from airflow_gpu_provider.clouds.aws.cluster import EksCluster
from airflow_gpu_provider.clouds.aws.cluster_autoscaler import image_for, manifest
from airflow_gpu_provider.clouds.aws.external_groups import ExternalGroups
from airflow_gpu_provider.clouds.aws.group_state import instance_end, instance_ids, launched_by, lives
from airflow_gpu_provider.clouds.aws.node_groups import asg_name
from airflow_gpu_provider.clouds.aws.owned_groups import OwnedGroups
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.clouds.aws.quota import judge, read_quotas
from airflow_gpu_provider.clouds.aws.reservations import types_of
from airflow_gpu_provider.clouds.base import Group, Machine, MachineEnd, MachineLife, Plan
from airflow_gpu_provider.clouds.group_source import CloudPlatform
from airflow_gpu_provider.clouds.quota import Verdict
from airflow_gpu_provider.cluster.threads import all_in_parallel, in_parallel
from airflow_gpu_provider.errors import CloudError
from airflow_gpu_provider.pools import Candidate
from airflow_gpu_provider.pools.prices import ListPrices

if TYPE_CHECKING:
    from airflow_gpu_provider.cluster.access import ClusterAccess

_FILTER_VALUES = 200
"""How many values a filter of EC2 may have."""


class EksPlatform(CloudPlatform[EksGpuPool, ExternalGroups | OwnedGroups]):
    """A pool on Amazon EKS.

    Args:
        pool: The rendered spec; with `manage="scale"` its groups are external.
        owner: Who writes owned node groups, for the tag that a PoolDrift names: "installation/dag id".
    """

    quotas_of = "account"

    def __init__(self, pool: EksGpuPool, owner: str = "") -> None:
        self._eks = EksCluster(pool)
        self._clients = self._eks.clients
        super().__init__(pool, ExternalGroups(self._eks) if pool.manage == "scale" else OwnedGroups(self._eks, owner))

    # -- the cluster -----------------------------------------------------------------------------------------

    def account(self) -> str:
        caller = self._clients.sts.call("get_caller_identity")
        cluster = f"EKS cluster {self._pool.cluster_name} in {self._pool.region}"
        return f"AWS account {caller['Account']}, {cluster}, as {caller['Arn']}"

    def plan(self, nodes: int) -> Plan:
        plan = super().plan(nodes)
        return replace(plan, notes=(*plan.notes, *prices.currency_notes(self._pool)))

    def refusals(self) -> Refusals:
        behind = [name for group in self.observe() if (name := group.autoscaler_name)]
        wanted = eks_permissions.questions(
            self._pool,
            cluster_arn=self._eks.description["arn"],
            node_role="" if self._pool.manage == "scale" else self._eks.groups.node_role(),
            groups=list(self._eks.scaling.groups(behind).values()),
        )
        caller = self._clients.sts.call("get_caller_identity")
        return eks_permissions.simulate(self._clients.iam, caller["Arn"], wanted)

    def cluster_autoscaler(self, *, flags: Sequence[str], image: str | None, role_arn: str | None) -> str:
        image = image or image_for(str(self._eks.description["version"]))
        return manifest(self._pool, image=image, flags=flags, role_arn=role_arn)

    def cluster_access(self) -> ClusterAccess:
        return self._eks.access

    def _read_prices(self, candidates: Sequence[Candidate]) -> ListPrices:
        return prices.read(self._clients, self._pool, candidates)

    def _compare_quotas(self, missing: int, candidates: Sequence[Candidate]) -> Verdict:
        quotas, vcpus = read_quotas(self._clients.service_quotas, self._clients.ec2, candidates)
        return judge(self._pool, missing, candidates, quotas, vcpus)

    def update_autoscaler_tags(self, groups: Collection[str]) -> None:
        for name, raw in self._eks.groups.owned().items():
            if name in groups and (asg := asg_name(raw)):
                self._eks.write_autoscaler_tags(asg, types_of(raw)[0])

    # -- sizes and the switch --------------------------------------------------------------------------------

    def schedule_scale_to_zero(self, groups: Collection[str], at: datetime) -> None:
        """Set the groups to zero at `at`, external ones to their own smallest sizes."""
        sizes = self._source.switch_sizes(self._eks.asgs_of(groups).values())
        in_parallel(lambda name: self._eks.scaling.schedule_scale_to_zero(name, at, size=sizes[name]), sizes)

    def cancel_scale_to_zero(self, groups: Collection[str]) -> None:
        in_parallel(self._eks.scaling.cancel_scale_to_zero, filter(None, in_parallel(self._eks.find_asg, groups)))

    def resume_launches(self, groups: Collection[str]) -> None:
        in_parallel(self._eks.scaling.resume, self._eks.asgs_of(groups).values())

    def grow(self, sizes: Mapping[str, int]) -> None:
        for group, name in self._eks.asgs_of(sizes).items():
            self._eks.scaling.grow(name, sizes[group])
            self._eks.groups.last_look.was_sized(name)

    def shrink_unfilled(self, groups: Collection[str]) -> dict[str, int]:
        behind = self._eks.asgs_of(groups)
        sizes = {group: self._eks.scaling.shrink_to_existing(name) for group, name in behind.items()}
        return {group: size for group, size in sizes.items() if size is not None}

    # -- single machines -------------------------------------------------------------------------------------

    def release(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        are_going = all_in_parallel(lambda machine: self._eks.scaling.terminate(machine.id), machines)
        return tuple(machine for machine, is_going in zip(machines, are_going, strict=True) if not is_going)

    def machine_end(self, machine: str) -> MachineEnd | None:
        try:
            found = [*instances(self._clients.ec2, InstanceIds=[machine])]
        except CloudError as error:
            if has_code(error, "InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"):
                return None  # EC2 forgets an ended instance within the hour, and not each node is one
            raise
        for instance in found:
            if end := instance_end(instance):
                return end
        cause = self._eks.scaling.why_ending(machine)
        return MachineEnd(why=cause) if cause else None

    def lives(self, groups: Sequence[Group], since: datetime, known: Collection[str] = ()) -> tuple[MachineLife, ...]:
        behind = {group.autoscaler_name: group.name for group in groups if group.autoscaler_name}
        read = in_parallel(lambda asg: self._eks.scaling.activities_since(asg, since), behind)
        described = self._instances({*known, *(each for some in read for each in instance_ids(some))})
        launched = {asg: launched_by(asg, described) for asg in behind}
        found = [
            life
            for asg, activities in zip(behind, read, strict=True)
            for life in lives(behind[asg], activities, launched[asg], since)
        ]
        # A group that was deleted has no activities any more; EC2 knows its instances for an hour.
        of_groups = {each for some in launched.values() for each in some}
        others = {each["InstanceId"]: each for each in described if each["InstanceId"] in {*known} - of_groups}
        return (*found, *lives("", (), others, since))

    def _instances(self, ids: Collection[str]) -> list[Mapping[str, Any]]:
        """Return what EC2 says of these instances; by a filter, which leaves out those that it has forgotten."""
        wanted = sorted(ids)
        parts = [wanted[start : start + _FILTER_VALUES] for start in range(0, len(wanted), _FILTER_VALUES)]
        return [
            instance
            for some in parts
            for instance in instances(self._clients.ec2, Filters=[{"Name": "instance-id", "Values": some}])
        ]

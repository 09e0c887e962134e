"""EksPlatform: what pools on Amazon EKS with owned and external groups have in common, by AWS's APIs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.clouds.answers import Refusals, has_code
from airflow_gpu_provider.clouds.aws import permissions as eks_permissions
from airflow_gpu_provider.clouds.aws import prices
from airflow_gpu_provider.clouds.aws.clients import instances
from airflow_gpu_provider.clouds.aws.cluster import EksCluster
from airflow_gpu_provider.clouds.aws.cluster_autoscaler import image_for, manifest
from airflow_gpu_provider.clouds.aws.group_state import instance_end, instance_ids, launched_by, lives
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.clouds.aws.quota import judge, read_quotas
from airflow_gpu_provider.clouds.aws.reservations import read
from airflow_gpu_provider.clouds.base import Group, Machine, MachineEnd, MachineLife, Plan
from airflow_gpu_provider.clouds.cloud_platform import CloudPlatform
from airflow_gpu_provider.clouds.quota import Verdict
from airflow_gpu_provider.cluster.api.threads import all_in_parallel, in_parallel
from airflow_gpu_provider.errors import CloudError
from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.pools import Candidate

if TYPE_CHECKING:
    from airflow_gpu_provider.clouds.aws.autoscaling import SuspensionMarks
    from airflow_gpu_provider.cluster.api.access import ClusterAccess

_FILTER_VALUES = 200
"""How many values a filter of EC2 may have."""


class EksPlatform(CloudPlatform[EksGpuPool]):
    """A pool on Amazon EKS: `OwnedEksPlatform` or `ExternalEksPlatform`.

    Args:
        pool: The rendered spec.
        marks: Returns where suspended launches are marked. Default: in the Auto Scaling groups' tags.
    """

    quotas_of = "account"

    def __init__(self, pool: EksGpuPool, marks: Callable[[ClusterAccess], SuspensionMarks] | None = None) -> None:
        super().__init__(pool)
        self._eks = EksCluster(pool, marks)
        self._clients = self._eks.clients

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
            node_role=self._node_role(),
            groups=list(self._eks.scaling.groups(behind).values()),
        )
        caller = self._clients.sts.call("get_caller_identity")
        return eks_permissions.simulate(self._clients.iam, caller["Arn"], wanted)

    def cluster_autoscaler(self, *, flags: Sequence[str], image: str | None, role_arn: str | None) -> str:
        image = image or image_for(str(self._eks.description["version"]))
        return manifest(self._pool, image=image, flags=flags, role_arn=role_arn)

    def _node_role(self) -> str:
        """Return the role that a run gives the nodes of new groups; empty where it makes no groups."""
        return ""

    def cluster_access(self) -> ClusterAccess:
        return self._eks.access

    def _read_prices(self, candidates: Sequence[Candidate]) -> ListPrices:
        return prices.read(self._clients, self._pool, candidates)

    def _compare_quotas(self, missing: int, candidates: Sequence[Candidate]) -> Verdict:
        quotas, vcpus = read_quotas(self._clients.service_quotas, self._clients.ec2, candidates)
        return judge(self._pool, missing, candidates, quotas, vcpus)

    # -- sizes and the switch --------------------------------------------------------------------------------

    @abstractmethod
    def _switch_sizes(self, asgs: Collection[str]) -> dict[str, int]:
        """Return the sizes to which the switch sets Auto Scaling groups, by name."""

    def schedule_scale_to_zero(self, groups: Collection[str], at: datetime) -> None:
        """Set the groups to zero at `at`, external ones to their own smallest sizes."""
        sizes = self._switch_sizes(self._eks.asgs_of(groups).values())
        in_parallel(lambda name: self._eks.scaling.schedule_scale_to_zero(name, at, size=sizes[name]), sizes)

    def cancel_scale_to_zero(self, groups: Collection[str]) -> None:
        in_parallel(self._eks.scaling.cancel_scale_to_zero, filter(None, in_parallel(self._eks.find_asg, groups)))

    def resume_launches(self, groups: Collection[str]) -> None:
        in_parallel(self._eks.scaling.resume, self._eks.asgs_of(groups).values())

    def grow(self, sizes: Mapping[str, int]) -> None:
        for group, name in self._eks.asgs_of(sizes).items():
            self._eks.grow(name, sizes[group])

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
        end = next(filter(None, map(instance_end, found)), None)
        if end is None and (cause := self._eks.scaling.why_ending(machine)):
            end = MachineEnd(why=cause)
        if end is None:
            return None
        why = next(filter(None, (self._emptied_for(each) for each in found)), "")
        return replace(end, why=why) if why else end

    def _emptied_for(self, instance: Mapping[str, Any]) -> str:
        """Return the end of the Capacity Block for which this package empties its machines; empty where it does not."""
        reservation = str(instance.get("CapacityReservationId") or "")
        if reservation not in self._pool.reservations:
            return ""
        found = read(self._clients.ec2, [reservation]).get(reservation)
        state = found.reserved(self._clients.ec2.now()) if found else None
        return state.why_not if state and state.has_ended else ""

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

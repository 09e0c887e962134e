"""GroupChanges: what a run changes in a pool's managed node groups: those that it creates, updates and recreates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_gpu_provider.clouds.answers import has_code
from airflow_gpu_provider.clouds.aws import node_versions
from airflow_gpu_provider.clouds.aws import spec as eks_spec
from airflow_gpu_provider.clouds.aws.cluster import EksCluster
from airflow_gpu_provider.clouds.aws.group_state import has_machines
from airflow_gpu_provider.clouds.aws.leftover_groups import LeftoverGroups
from airflow_gpu_provider.clouds.aws.node_groups import asg_name
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.clouds.aws.refused_groups import WRONG
from airflow_gpu_provider.clouds.aws.spec import GROUP_QUOTA, GROUP_QUOTA_CODE, GroupSpec
from airflow_gpu_provider.clouds.base import Report
from airflow_gpu_provider.clouds.group_checks import by_reason
from airflow_gpu_provider.errors import CloudError, GpuError, GroupFailed, PoolSpecError, QuotaExceeded
from airflow_gpu_provider.pools import Candidate

_READY = ("ACTIVE", "DEGRADED", "UPDATING")
"""The states in which a group can have machines."""


@dataclass
class _Useless:
    """The groups of no use now: why each failed, what EKS refused to create, and what it has no room for."""

    failed: dict[str, str] = field(default_factory=dict)
    refused: dict[str, GpuError] = field(default_factory=dict)
    without: list[Candidate] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        return {*self.failed, *self.refused, *(candidate.group for candidate in self.without)}


class GroupChanges:
    """Of one pool."""

    def __init__(self, eks: EksCluster, left_over: LeftoverGroups) -> None:
        self._eks = eks
        self._pool = eks.pool
        self._left_over = left_over

    def make(
        self,
        specs: Sequence[GroupSpec],
        groups: Mapping[str, Mapping[str, Any]],
        wanted: Collection[str],
        report: Report,
    ) -> None:
        """Create and repair those that are wanted; the pool does without one that cannot be, while others are usable.

        Args:
            specs: Of all groups of the pool, the most preferred first.
            groups: DescribeNodegroup's answers, by name.

        Raises:
            GroupFailed, QuotaExceeded: No group is usable.
            CloudError: There is no room for one yet; see `LeftoverGroups.make_room`.
            CloudError, RequestRejected, PoolSpecError: EKS refuses one; see `RefusedGroups.judge`.
        """
        useless = _Useless()
        for spec in specs:
            if spec.candidate.group in wanted:
                self._try(spec, groups.get(spec.candidate.group), report, useless)
        if useless.without:
            self._left_over.make_room(len(useless.without), groups, report)
            report(
                f"cluster {self._pool.cluster_name} has as many managed node groups as EKS allows: the pool does"
                f" without {', '.join(map(str, useless.without))}"
            )
        usable = {spec.candidate.group for spec in specs if spec.candidate.group in {*groups, *wanted}} - useless.names
        if useless.refused:
            self._judge(useless.refused, groups, usable, report)
        if not usable:
            raise no_usable(self._pool, useless.failed)

    def _try(self, spec: GroupSpec, group: Mapping[str, Any] | None, report: Report, useless: _Useless) -> None:
        try:
            useless.failed |= self._apply_one(spec, group, report)
        except QuotaExceeded as error:
            if not has_code(error, "ResourceLimitExceededException"):
                raise
            useless.without.append(spec.candidate)
        except (CloudError, PoolSpecError) as error:
            if group is not None or not (isinstance(error, PoolSpecError) or has_code(error, *WRONG)):
                raise
            useless.refused[spec.candidate.group] = error

    def _judge(
        self,
        refused: Mapping[str, GpuError],
        groups: Mapping[str, Mapping[str, Any]],
        usable: Collection[str],
        report: Report,
    ) -> None:
        ready = [name for name in usable if name in groups and groups[name]["status"] in _READY]
        self._eks.groups.refused.judge(refused, self._eks.clients.eks.now(), ready=ready, usable=usable)
        for name, error in refused.items():
            report(f"the pool does without {name}: {error.what}")

    def _apply_one(self, spec: GroupSpec, group: Mapping[str, Any] | None, report: Report) -> dict[str, str]:
        """Create or repair one group. Returns why the group is of no use now, if so, by its name."""
        name = spec.candidate.group
        if group is None:
            self._eks.groups.create(spec, report, self._eks.templates.ensure(spec, report))
            return {}
        if group["status"] in ("CREATE_FAILED", "DEGRADED"):
            return self._replace(spec, group, report)
        if group["status"] == "DELETE_FAILED":
            why = eks_spec.trouble(group)
            report(f"EKS could not delete {name}: {why}")
            self._eks.groups.delete(name, report)
            return {name: f"EKS could not delete it: {why}; deleting it again"}
        if group["status"] in eks_spec.GONE_SOON:
            report(f"{name} is still being deleted")
            return {name: "is still being deleted"}
        self._update(spec, group, report)
        return {}

    def _replace(self, spec: GroupSpec, group: Mapping[str, Any], report: Report) -> dict[str, str]:
        """Delete a group that EKS does not update, where its fields need one and it has no machine.

        EKS does not update a group that is DEGRADED, and one whose last launch failed stays so until another works, at
        size 0 too (aws/containers-roadmap#2326); it can be sized all the same.
        """
        name, why = spec.candidate.group, eks_spec.trouble(group)
        if group["status"] == "CREATE_FAILED":
            report(f"EKS could not create {name}: {why}")
        elif not (spec.update_request(group) or self._is_to_be_recreated(spec, group)):
            self._update(spec, group, report)
            return {}
        elif self._has_machines(group):
            report(f"{name} is DEGRADED ({why}). EKS cannot update it; it will be recreated once it is empty")
            return {}
        else:
            report(f"{name} is DEGRADED ({why}). EKS cannot update it; it is recreated")
        self._eks.groups.delete(name, report)
        return {name: why}

    def _is_to_be_recreated(self, spec: GroupSpec, group: Mapping[str, Any]) -> bool:
        is_old = node_versions.is_to_be_recreated(group, self._eks.description["version"])
        return is_old or bool(self._eks.templates.differences([(spec, group)]))

    def _has_machines(self, group: Mapping[str, Any]) -> bool:
        return has_machines(self._eks.scaling.groups([name]).get(name, {}) if (name := asg_name(group)) else {})

    def _update(self, spec: GroupSpec, group: Mapping[str, Any], report: Report) -> None:
        self._eks.groups.update(spec, group, report)
        if asg := asg_name(group):
            self._eks.write_autoscaler_tags(asg, spec.candidate.instance_type)


def no_usable(pool: EksGpuPool, failed: Mapping[str, str]) -> GpuError:
    if failed:
        return GroupFailed(
            f"Pool {pool.name} has no usable node group: {by_reason(failed)}.",
            "Correct what EKS reports. The groups are being deleted; the next retry recreates them.",
            groups=sorted(failed),
        )
    return QuotaExceeded(
        f"Pool {pool.name} has no node group, and cluster {pool.cluster_name} has as many as EKS allows (quota"
        f" {GROUP_QUOTA}).",
        "Request a higher quota in Service Quotas (aws service-quotas request-service-quota-increase --service-code"
        f" eks --quota-code {GROUP_QUOTA_CODE} --desired-value ...), or delete unused groups.",
        pool=pool.name,
        quota=GROUP_QUOTA,
    )

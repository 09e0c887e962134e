"""LeftoverGroups: node groups of a pool from which it has no machine any more, and their way out.

Each Capacity Block has a group of its own, and so has each candidate that the spec once named. EKS counts them all
against the cluster's quota, and each is read at each look.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow_gpu_provider.clouds.aws.cluster import EksCluster
from airflow_gpu_provider.clouds.aws.group_state import has_machines
from airflow_gpu_provider.clouds.aws.node_groups import asg_name
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.clouds.aws.spec import GONE_SOON, OWNER_TAG
from airflow_gpu_provider.clouds.base import Group, GroupChange, Report
from airflow_gpu_provider.errors import CloudError, PermissionDenied

KEPT_FOR = timedelta(days=1)
"""How long after it was made a group stays that the spec no longer names: a run of today may still have that spec."""


def why_left_over(pool: EksGpuPool, group: Group) -> str:
    """Return why a pool gets no more machines from a group of its own, for people; empty where it may. Pure."""
    if group.reserved is not None and group.reserved.is_over:
        return f"no machine comes from {group.reserved.id} any more"
    return "" if pool.preferences.include(group.candidate) else "the spec no longer names what it is for"


def changes(
    pool: EksGpuPool, owner: str, groups: Iterable[Group], raw: Mapping[str, Mapping[str, Any]], now: datetime
) -> tuple[GroupChange, ...]:
    """Return which groups a run deletes: empty ones, whatever spec they are of where their reservation is over.

    Another writer's, and one of today, stay where the spec alone tells that they are left over. Pure.

    Args:
        owner: Who deletes them, in the words of OWNER_TAG.
        raw: DescribeNodegroup's answers, by name.
    """
    found = []
    for group in groups:
        why, described = why_left_over(pool, group), raw[group.name]
        is_over = group.reserved is not None and group.reserved.is_over
        is_ours = described.get("tags", {}).get(OWNER_TAG, owner) == owner
        made_at = described.get("createdAt") or now
        if why and is_empty(group, described) and (is_over or (is_ours and now - made_at >= KEPT_FOR)):
            found.append(GroupChange(action="delete", group=group.name, detail=f"{why}, and it has no machine"))
    return tuple(found)


def is_empty(group: Group, raw: Mapping[str, Any]) -> bool:
    """Return True if a group has no machine, is to have none, and is not on its way out already. Pure."""
    return not (group.desired or group.machines or group.launching or group.keeps) and raw["status"] not in GONE_SOON


class LeftoverGroups:
    """Of one pool."""

    def __init__(self, eks: EksCluster, observe: Callable[[], Sequence[Group]]) -> None:
        self._eks = eks
        self._observe = observe

    def delete(self, names: Collection[str], groups: Mapping[str, Mapping[str, Any]], report: Report) -> None:
        """Start to delete those that still have no machine, and what is left of others: launch templates.

        Args:
            groups: DescribeNodegroup's answers for all groups of the pool, by name.
        """
        asgs = {name: asg for name in names if name in groups and (asg := asg_name(groups[name]))}
        there = self._eks.scaling.groups(asgs.values())
        for name in names:
            if name in groups and not has_machines(there.get(asgs.get(name, ""), {})):
                report(f"{name} is left over, and empty")
                self._eks.groups.delete(name, report)
        try:
            self._eks.templates.delete_all_but(groups, report)
        except (CloudError, PermissionDenied) as error:
            report(f"launch templates of groups that are gone stay for now: {error.what}")

    def make_room(self, wanted: int, groups: Mapping[str, Mapping[str, Any]], report: Report) -> None:
        """Delete as many of them, the least wanted first, as there are groups that EKS has no room for.

        Raises:
            CloudError: Some are being deleted: there is room when they are gone. A wait tolerates it.
        """
        pool = self._eks.pool
        left = [group for group in self._observe() if group.name in groups and why_left_over(pool, group)]
        going = [group.name for group in left if groups[group.name]["status"] == "DELETING"]
        empty = [group.name for group in reversed(left) if is_empty(group, groups[group.name])]
        doomed = empty[: max(0, wanted - len(going))]
        self.delete(doomed, groups, report)
        if going or doomed:
            raise CloudError(
                f"Pool {pool.name}: cluster {pool.cluster_name} has as many managed node groups as EKS allows, and"
                f" {', '.join((*going, *doomed))}, which the pool no longer needs, are being deleted.",
                "It is tried again: there is room once they are gone.",
                pool=pool.name,
            )

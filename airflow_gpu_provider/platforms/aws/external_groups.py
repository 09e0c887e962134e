"""EksExternalPlatform: a pool on Amazon EKS in groups that Terraform or eksctl owns; it sets sizes, nothing else."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import (
    AutoscalerTagsMissing,
    GroupNotFound,
    PoolSpecError,
)
from airflow_gpu_provider.platforms.aws.autoscaler_tags import missing_tags, tag_command
from airflow_gpu_provider.platforms.aws.autoscaling import AutoScaling
from airflow_gpu_provider.platforms.aws.base import STATUS, EksBase
from airflow_gpu_provider.platforms.aws.clients import in_parallel
from airflow_gpu_provider.platforms.aws.group_state import failures, is_launching, last_end, launch_failure, machines
from airflow_gpu_provider.platforms.aws.launch_templates import template_data
from airflow_gpu_provider.platforms.aws.named_group import candidate, read_group, template_of
from airflow_gpu_provider.platforms.aws.node_groups import asg_name
from airflow_gpu_provider.platforms.aws.plan import issues
from airflow_gpu_provider.platforms.aws.quota import quota_code
from airflow_gpu_provider.platforms.aws.suspensions import LeaseMarks
from airflow_gpu_provider.platforms.base import Group, Plan, Say
from airflow_gpu_provider.platforms.growth_notes import growth_notes
from airflow_gpu_provider.platforms.named_groups import candidates_with_room, check
from airflow_gpu_provider.pools import Candidate, EksGpuPool

if TYPE_CHECKING:
    from kubernetes.client import ApiClient


@dataclass(frozen=True, kw_only=True)
class _Named:
    """One of the pool's groups, as AWS describes it; `node_group` is None for a self-managed Auto Scaling group."""

    name: str
    asg: Mapping[str, Any]
    node_group: Mapping[str, Any] | None


class EksExternalPlatform(EksBase):
    """A pool of managed node groups and Auto Scaling groups that exist already: `manage="scale"`.

    Args:
        pool: The rendered spec.
        owner: Not used: this package does not tag external groups.
    """

    def __init__(self, pool: EksGpuPool, owner: str = "") -> None:
        super().__init__(pool)
        self._templates: dict[frozenset[tuple[str, str]], Mapping[str, Any]] = {}

    @cached_property
    def _api(self) -> ApiClient:
        return self.cluster_access().api_client()

    @cached_property
    def _scaling(self) -> AutoScaling:
        return AutoScaling(self._clients.autoscaling, LeaseMarks(self._api))

    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(candidate(n.name, n.asg, n.node_group, self._template(n.asg)) for n in self._read())

    # -- plan and apply --------------------------------------------------------------------------------------

    def plan(self, nodes: int) -> Plan:
        """Say what would grow; the groups themselves are never changed.

        Raises:
            GroupNotFound: A group that the pool names does not exist.
            PoolDrift, PoolSpecError: A group cannot serve the pool as it is.
            AutoscalerTagsMissing: cluster-autoscaler is to add nodes, and does not know a group or what nodes it has.
        """
        self._check_node_groups(self._existing)
        named = self._read()
        self._check_there(named)
        self._check_once(named)
        read = [read_group(n.name, n.asg, n.node_group, self._template(n.asg)) for n in named]
        notes = check(self._pool, nodes, read, known_types=self._pool.instance_types)
        self._check_tags(named)
        groups = self._observe(named)
        grow = growth_notes(self._pool, nodes, candidates_with_room(groups), groups, datetime.now(UTC))
        return Plan(pool=self._pool.name, grow=grow, notes=notes)

    def apply(self, plan: Plan, say: Say, over_quota: Collection[str] = ()) -> None:
        """Do nothing: others own the groups."""

    def delete(self, say: Say) -> None:
        """Delete nothing: others own the groups."""
        for name in (*self._pool.node_groups, *self._pool.asg_names):
            say(f"{name} is left as it is: this package did not create it")

    def _check_node_groups(self, found: Collection[str]) -> None:
        pool = self._pool
        groups = [name for name in pool.node_groups if name not in found]
        if groups:
            there = ", ".join(sorted(self._groups.names())) or "none"
            raise GroupNotFound(
                f"Pool {pool.name}: cluster {pool.cluster_name} has no node group {', '.join(groups)}; it has {there}.",
                "Correct node_groups, or create the group where it is defined: this package creates none of them.",
                groups=groups,
            )

    def _check_there(self, named: Sequence[_Named]) -> None:
        found = {each.name for each in named}
        self._check_node_groups(found)
        pool = self._pool
        asgs = [name for name in pool.asg_names if name not in found]
        if asgs:
            raise GroupNotFound(
                f"Pool {pool.name}: there is no Auto Scaling group {', '.join(asgs)} in {pool.region}.",
                "Correct asg_names, or create the group where it is defined: this package creates none of them.",
                groups=asgs,
            )

    def _check_once(self, named: Sequence[_Named]) -> None:
        """Refuse an Auto Scaling group that is named by itself, and by the node group in front of it."""
        managed = {each.asg["AutoScalingGroupName"]: each.name for each in named if each.node_group}
        for name in self._pool.asg_names:
            if name in managed:
                raise PoolSpecError(
                    f"Pool {self._pool.name}: the Auto Scaling group {name} is that of node group {managed[name]}.",
                    "Leave it out of asg_names.",
                    pool=self._pool.name,
                )

    def _check_tags(self, named: Sequence[_Named]) -> None:
        if not self._pool.is_autoscaled:
            return
        lacking = {}
        for each in named:
            place = candidate(each.name, each.asg, each.node_group, self._template(each.asg))
            tags = missing_tags(self._pool, place.instance_type, each.asg)
            if tags:
                lacking[each.asg["AutoScalingGroupName"]] = (each.name, tags)
        if lacking:
            names = [name for name, _ in lacking.values()]
            commands = [tag_command(asg, tags, self._pool.region) for asg, (_, tags) in lacking.items()]
            raise AutoscalerTagsMissing(
                f"Pool {self._pool.name}: cluster-autoscaler cannot scale {', '.join(names)} from zero: tags are"
                " missing, and this package does not tag external groups.",
                f"Define them where the group is defined, or run: {' && '.join(commands)}",
                groups=names,
                tags={asg: tags for asg, (_, tags) in lacking.items()},
            )

    # -- what there is ---------------------------------------------------------------------------------------

    def observe(self) -> tuple[Group, ...]:
        return self._observe(self._read())

    @cached_property
    def _existing(self) -> list[str]:
        """The managed node groups that the pool names and the cluster has.

        No other is asked for: a policy that is limited to the pool's groups, misspelt in the one place and not in the
        other, makes AWS answer AccessDenied, whether or not there is one.
        """
        if not self._pool.node_groups:
            return []
        there = set(self._groups.names())
        return [name for name in self._pool.node_groups if name in there]

    def _read(self) -> list[_Named]:
        """Return the groups that exist and have an Auto Scaling group, in the spec's order."""
        described = in_parallel(self._groups.describe, self._existing)
        managed = {raw["nodegroupName"]: raw for raw in described if raw}
        behind = {name: found for name, raw in managed.items() if (found := asg_name(raw))}
        self._behind = dict(behind)
        behind |= {name: name for name in self._pool.asg_names}
        asgs = self._scaling.groups(behind.values())
        return [
            _Named(name=name, asg=asgs[asg], node_group=managed.get(name))
            for name, asg in behind.items()
            if asg in asgs
        ]

    def _observe(self, named: Sequence[_Named]) -> tuple[Group, ...]:
        asg_names = [each.asg["AutoScalingGroupName"] for each in named]
        # Activities before instances: a launch is then seen in the one or in the other.
        activities = self._scaling.activities(asg_names)
        asgs = self._scaling.groups(asg_names)
        switches = self._scaling.switches() if named else {}
        suspended = self._scaling.left_suspended(asgs.values())
        return tuple(
            replace(
                self._group(each, asgs[name], activities[name], switches.get(name)), left_suspended=name in suspended
            )
            for each, name in zip(named, asg_names, strict=True)
            if name in asgs
        )

    def _group(
        self,
        named: _Named,
        asg: Mapping[str, Any],
        activities: Sequence[Mapping[str, Any]],
        switch_at: datetime | None,
    ) -> Group:
        members = machines(named.name, asg, activities)
        raw = named.node_group
        place = candidate(named.name, asg, raw, self._template(asg))
        quota = quota_code(place.instance_type, place.market)
        return Group(
            name=named.name,
            candidate=place,
            status=STATUS[raw["status"]] if raw else ("deleting" if asg.get("Status") else "active"),
            desired=int(asg["DesiredCapacity"]),
            keeps=int(asg["MinSize"]),
            autoscaler_name=asg["AutoScalingGroupName"],
            max_size=int(asg["MaxSize"]),
            machines=members,
            switch_at=switch_at,
            launch_failure=launch_failure(activities, quota),
            failures=failures(activities, quota),
            last_end=last_end(activities),
            launching=is_launching(activities, members),
            issues=issues(raw) if raw else (),
            owned=False,
        )

    def _template(self, asg: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the data of a group's launch template; a version of one never changes, so it is read once."""
        reference = template_of(asg)
        if reference is None:
            return {}
        key = frozenset(reference.items())
        if key not in self._templates:
            # Without it the types, which are for people, and for the quota, are not known.
            self._templates[key] = template_data(self._clients.ec2, reference)
        return self._templates[key]

    # -- sizes and the switch --------------------------------------------------------------------------------

    def set_switch(self, groups: Collection[str], at: datetime) -> None:
        """Set the groups to their own smallest sizes at `at`: below that AWS does not go."""
        behind = self._asgs_of(groups).values()
        asgs = self._scaling.groups(behind)
        in_parallel(lambda name: self._scaling.set_switch(name, at, size=int(asgs[name]["MinSize"])), behind)

    def _asg_of(self, group: str) -> str:
        return group if group in self._pool.asg_names else super()._asg_of(group)

"""ExternalEksPlatform: groups on EKS that Terraform or eksctl owns, and a pool names; only their sizes are set."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from airflow_gpu_provider.clouds.aws import reservations
from airflow_gpu_provider.clouds.aws.autoscaler_tags import has_gpus_tag, missing_tags, offered_notes, tag_command
from airflow_gpu_provider.clouds.aws.autoscaling import LeaseMarks
from airflow_gpu_provider.clouds.aws.cluster import AsgState, group_of
from airflow_gpu_provider.clouds.aws.external_groups import candidate, read_group, template_of
from airflow_gpu_provider.clouds.aws.instance_types import require_visible_gpus
from airflow_gpu_provider.clouds.aws.launch_templates import template_data
from airflow_gpu_provider.clouds.aws.node_groups import asg_name
from airflow_gpu_provider.clouds.aws.platform import EksPlatform
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.clouds.aws.reservations import Reservation, target_of
from airflow_gpu_provider.clouds.backoff import growth_notes
from airflow_gpu_provider.clouds.base import Group, Plan, Report
from airflow_gpu_provider.clouds.group_checks import candidates_with_room, check_named
from airflow_gpu_provider.errors import AutoscalerTagsMissing, GroupNotFound, PermissionDenied, PoolSpecError
from airflow_gpu_provider.pools import Candidate

_UNREAD = "capacity reservations are not read: ec2:DescribeCapacityReservations is not allowed (docs/iam.md)"


@dataclass(frozen=True, kw_only=True)
class _Named:
    """One of the pool's groups, as AWS describes it; `node_group` is None for a self-managed Auto Scaling group.

    `template` is the data of its launch template; empty where that is not known.
    """

    name: str
    node_group: Mapping[str, Any] | None
    state: AsgState
    template: Mapping[str, Any]

    @property
    def asg(self) -> Mapping[str, Any]:
        return self.state.asg

    @property
    def candidate(self) -> Candidate:
        return candidate(self.name, self.asg, self.node_group, self.template)


class ExternalEksPlatform(EksPlatform):
    """A pool of managed node groups and Auto Scaling groups that it names: `manage="scale"`.

    Args:
        pool: The rendered spec.
        owner: Not used: external groups carry no spec of ours.
    """

    def __init__(self, pool: EksGpuPool, owner: str = "") -> None:
        super().__init__(pool, marks=lambda access: LeaseMarks(access.api_client()))  # external groups are not tagged
        self._known: list[str] = []
        self._templates: dict[frozenset[tuple[str, str]], Mapping[str, Any]] = {}
        self._targets: dict[str, str] = {}
        """The reservation that each group's template targets, by group, as last seen."""

    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(each.candidate for each in self._read())

    # -- plan and apply --------------------------------------------------------------------------------------

    def _plan(self, nodes: int, left_out: Collection[str] = ()) -> Plan:
        """Say what would grow; the groups themselves are never changed.

        Raises:
            GroupNotFound: A group that the pool names does not exist.
            PoolDrift, PoolSpecError: A group cannot serve the pool as it is.
            AutoscalerTagsMissing: cluster-autoscaler is to add nodes, and does not know a group or what nodes it has.
        """
        self._check_node_groups(self._existing())
        named = self._read()
        self._check_there(named)
        self._check_once(named)
        read = [read_group(each.name, each.asg, each.node_group, each.template) for each in named]
        notes = check_named(self._pool, nodes, read, known_types=self._pool.instance_types)
        self._check_tags(named)
        self._targets = _targets_of(named)
        reserved = self._read_reservations()
        groups = self._judged(named, reserved)
        affordable = candidates_with_room([group for group in groups if group.name not in left_out])
        grow = growth_notes(self._pool, nodes, affordable, groups, datetime.now(UTC))
        notes = (*notes, *offered_notes(self._pool, {each.name: each.asg for each in named}))
        if reserved is None:
            return Plan(pool=self._pool.name, grow=grow, notes=notes, unread=(_UNREAD,), groups=groups)
        at = self._eks.scaling.now()
        notes = (*notes, *reservations.notes(self._targets.values(), reserved, at))
        order = tuple(group for group in groups if group.name not in left_out) if self._targets else ()
        return Plan(pool=self._pool.name, grow=grow, notes=notes, groups=groups, order=order, read_at=at)

    def apply(self, plan: Plan, report: Report, over_quota: Collection[str] = ()) -> None:
        """Do nothing: others own the groups."""

    def delete(self, report: Report) -> None:
        """Delete nothing: others own the groups."""
        for name in (*self._pool.node_groups, *self._pool.asg_names):
            report(f"{name} is left as it is: this package did not create it")

    def _check_node_groups(self, found: Collection[str]) -> None:
        pool = self._pool
        groups = [name for name in pool.node_groups if name not in found]
        if groups:
            there = ", ".join(sorted(self._eks.groups.names())) or "none"
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
        untagged = [each.candidate.instance_type for each in named if not has_gpus_tag(each.asg)]
        require_visible_gpus(self._eks.clients.ec2, self._pool, untagged)
        for each in named:
            if tags := missing_tags(self._pool, each.candidate.instance_type, each.asg):
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
        # Reservations before groups: an instance that is launched in between is not missed in both.
        before, known = self._targets, self._read_reservations()
        named = self._read()
        self._targets = _targets_of(named)
        return self._judged(named, known if before == self._targets else self._read_reservations())

    def _read_reservations(self) -> dict[str, Reservation] | None:
        """Return the reservations that groups target; None where the account may not read them: EC2 then says no."""
        try:
            return reservations.read(self._eks.clients.ec2, set(self._targets.values()))
        except PermissionDenied:
            return None

    def _judged(self, named: Sequence[_Named], found: Mapping[str, Reservation] | None) -> tuple[Group, ...]:
        groups = tuple(replace(group_of(each.candidate, each.node_group, each.state), owned=False) for each in named)
        return groups if found is None else reservations.judge(groups, self._targets, found, self._eks.scaling.now())

    def _switch_sizes(self, asgs: Collection[str]) -> dict[str, int]:
        """Return the groups' own smallest sizes, by name: below those AWS does not go."""
        return {name: int(asg["MinSize"]) for name, asg in self._eks.scaling.groups(asgs).items()}

    def _existing(self) -> list[str]:
        """Return the managed node groups that the pool names and the cluster has.

        No other is asked for: a policy that is limited to the pool's groups, misspelt in the one place and not in the
        other, makes AWS answer AccessDenied, whether or not there is one. While one is missing, it is looked for.
        """
        if len(self._known) < len(self._pool.node_groups):
            there = set(self._eks.groups.names())
            self._known = [name for name in self._pool.node_groups if name in there]
        return self._known

    def _read(self) -> list[_Named]:
        """Return the groups that exist and have an Auto Scaling group, in the spec's order."""
        managed, states = self._eks.look(self._existing(), besides=self._pool.asg_names)
        behind = {name: found for name, raw in managed.items() if (found := asg_name(raw))}
        behind |= {name: name for name in self._pool.asg_names}
        return [
            _Named(name=name, node_group=managed.get(name), state=states[asg], template=self._template(states[asg].asg))
            for name, asg in behind.items()
            if states[asg].asg
        ]

    def _template(self, asg: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the data of a group's launch template; a version of one never changes, so it is read once."""
        reference = template_of(asg)
        if reference is None:
            return {}
        key = frozenset(reference.items())
        if key not in self._templates:
            # Without it the types, which are for people, and for the quota, are not known.
            self._templates[key] = template_data(self._eks.clients.ec2, reference)
        return self._templates[key]


def _targets_of(named: Iterable[_Named]) -> dict[str, str]:
    found = {each.name: target_of(each.template) for each in named}
    return {group: id_ for group, id_ in found.items() if id_}

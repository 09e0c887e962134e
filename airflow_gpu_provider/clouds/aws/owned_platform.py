"""OwnedEksPlatform: the managed node groups that this package creates for a pool on EKS, one for each candidate."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from airflow_gpu_provider.clouds.aws import launch_templates as eks_launch_templates
from airflow_gpu_provider.clouds.aws import leftover_groups, node_releases, node_versions, vpc_cni
from airflow_gpu_provider.clouds.aws import spec as eks_spec
from airflow_gpu_provider.clouds.aws.autoscaler_tags import reported, tag_change
from airflow_gpu_provider.clouds.aws.cluster import AsgState, group_of
from airflow_gpu_provider.clouds.aws.group_changes import GroupChanges, no_usable
from airflow_gpu_provider.clouds.aws.group_state import has_machines
from airflow_gpu_provider.clouds.aws.instance_types import (
    Fabric,
    read_fabric,
    require_visible_gpus,
    type_notes,
)
from airflow_gpu_provider.clouds.aws.leftover_groups import LeftoverGroups
from airflow_gpu_provider.clouds.aws.network import check_subnets, security_notes, subnet_notes
from airflow_gpu_provider.clouds.aws.node_groups import asg_name, is_owned
from airflow_gpu_provider.clouds.aws.node_versions import Newest
from airflow_gpu_provider.clouds.aws.owned_candidates import OwnedCandidates, ReservedNow
from airflow_gpu_provider.clouds.aws.platform import EksPlatform
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.clouds.aws.reservations import market_of, reservation_of, types_of
from airflow_gpu_provider.clouds.aws.spec import ZONE_TAG, GroupSpec
from airflow_gpu_provider.clouds.aws.template_data import template_data
from airflow_gpu_provider.clouds.backoff import growth_notes
from airflow_gpu_provider.clouds.base import Group, GroupChange, Plan, Report
from airflow_gpu_provider.clouds.group_checks import ordered
from airflow_gpu_provider.pools import Candidate

_LATE_TAINTS = (
    "with ami_type=CUSTOM EKS adds labels and taints only after a node has joined, and another pod may be there before"
    " them: have the template's user data register the kubelet with them (docs/node-images.md)"
)


class OwnedEksPlatform(EksPlatform):
    """A pool whose managed node groups this package creates, tags and deletes.

    Args:
        pool: The rendered spec.
        owner: Who writes the groups, for the tag that a PoolDrift names: "installation/dag id".
    """

    def __init__(self, pool: EksGpuPool, owner: str = "") -> None:
        super().__init__(pool)
        self._places = OwnedCandidates(self._eks)
        self._order: tuple[str, ...] = ()  # of the groups, as last observed
        self._owner = re.sub(r"[^\w .:/=+@-]", "_", owner)[:256]  # what a tag's value may hold

    # -- where its groups can be -----------------------------------------------------------------------------

    @cached_property
    def _fabric(self) -> Fabric | None:
        return read_fabric(self._eks.clients.ec2, self._pool, self._eks.description)

    def candidates(self) -> tuple[Candidate, ...]:
        return self._places.all()

    # -- plan and apply --------------------------------------------------------------------------------------

    def _plan(self, nodes: int, left_out: Collection[str] = ()) -> Plan:
        names = self._eks.groups.names()
        groups = self._eks.groups.read(names)
        reserved = self._places.reserved_now()
        observed = self._observe({name: g for name, g in groups.items() if is_owned(g, self._pool)}, reserved)
        candidates = [each for each in self._places.useful(reserved, groups) if each.group not in left_out]
        stale_tags = {group.name: reported(group.stale_tags) for group in observed}
        specs = self._specs(candidates, groups)
        changes = eks_spec.changes(specs, groups, stale_tags)
        to_know = self._check_creation() if any(change.action == "create" for change in changes) else ()
        grow = growth_notes(self._pool, nodes, reserved.open(candidates), observed, datetime.now(UTC))
        left_over = self._left_over(observed, groups, changes)
        going = {change.group for change in left_over}
        staying = [group for group in observed if group.name not in going]
        newest, upgrades, behind = self._compare_versions(specs, groups, staying)
        return Plan(
            pool=self._pool.name,
            changes=(*left_over, *(change for change in changes if change.group not in going), *upgrades),
            grow=grow,
            notes=(
                *reserved.notes,
                *self._notes(candidates, groups),
                *behind,
                *to_know,
                *eks_spec.limit_notes(names, changes),
            ),
            unread=newest.unread,
            groups=observed,
            order=reserved.order(candidates, observed),
            read_at=reserved.at,
        )

    def _left_over(
        self, observed: Sequence[Group], groups: Mapping[str, Mapping[str, Any]], changes: Sequence[GroupChange]
    ) -> tuple[GroupChange, ...]:
        """Return which groups go; none where the pool has no other: by them a run tells why it has no node."""
        found = leftover_groups.changes(self._pool, self._owner, observed, groups, self._eks.clients.eks.now())
        stays = len(found) < len(observed) or any(change.action == "create" for change in changes)
        return found if stays else ()

    def _compare_versions(
        self, specs: Sequence[GroupSpec], groups: Mapping[str, Mapping[str, Any]], observed: Sequence[Group]
    ) -> tuple[Newest, tuple[GroupChange, ...], tuple[str, ...]]:
        """Return what new groups would be made from, which groups would be brought to that, and which stay behind."""
        owned = [groups[group.name] for group in observed]
        newest = self._newest(specs, owned)
        busy = {group.name for group in observed if group.desired or group.machines}
        empty = [raw for raw in owned if raw["nodegroupName"] not in busy]
        late = [raw for raw in empty if node_versions.behind(self._pool, raw, newest)]
        failed = {raw["nodegroupName"]: why for raw in late if (why := self._eks.groups.failed_upgrade(raw))}
        changes = node_versions.changes(self._pool, empty, newest, failed)
        return newest, changes, node_versions.notes(self._pool, owned, newest, busy)

    def _newest(self, specs: Sequence[GroupSpec], groups: Sequence[Mapping[str, Any]]) -> Newest:
        clients = self._eks.clients
        version = self._eks.description["version"]
        newest = node_versions.read_newest(self._pool, version, groups, ssm=clients.ssm, ec2=clients.ec2)
        own, unread = self._eks.templates.compare(specs, groups)
        return replace(newest, own=own, unread=(*newest.unread, *unread))

    def _check_creation(self) -> tuple[str, ...]:
        """Refuse what EKS would refuse to create a group of. Returns what to know of that."""
        eks_spec.check_image(self._pool, self._eks.description["version"])
        if self._fabric:
            check_subnets(self._fabric, [*self._places.subnets.values()], self._pool)
        require_visible_gpus(self._eks.clients.ec2, self._pool, self._pool.instance_types)
        return eks_launch_templates.check(self._eks.clients.ec2, self._pool)

    def apply(self, plan: Plan, report: Report, over_quota: Collection[str] = ()) -> None:
        changes = [each for each in plan.changes if each.action in ("create", "update")]
        wanted = {each.group for each in changes if each.action != "create" or each.group not in over_quota}
        doomed = {each.group for each in plan.changes if each.action == "delete"}
        if not (wanted or doomed):
            return
        groups = self._eks.groups.read()
        left_over = LeftoverGroups(self._eks, self.observe)
        if doomed:
            left_over.delete(doomed, groups, report)
        if wanted:
            changed = GroupChanges(self._eks, left_over)
            changed.make(self._specs(self.candidates(), groups, are_made=True), groups, wanted, report)

    def _specs(
        self, candidates: Sequence[Candidate], groups: Mapping[str, Any], *, are_made: bool = False
    ) -> tuple[GroupSpec, ...]:
        to_create = any(candidate.group not in groups for candidate in candidates)
        role = self._node_role() if to_create else None
        release = self._release_of_new() if to_create and are_made else ""
        return tuple(
            GroupSpec(
                pool=self._pool,
                owner=self._owner,
                candidate=candidate,
                subnet=self._places.subnets[candidate.zone].id,
                node_role=role,
                release=release,
                fabric=self._fabric,
                placement_group=self._places.placement_group(candidate),
                min_size=self._pool.min_nodes if self._pool.is_autoscaled and candidate == candidates[0] else 0,
            )
            for candidate in candidates
        )

    def _node_role(self) -> str:
        return self._eks.groups.node_role()

    def _release_of_new(self) -> str:
        return node_releases.of_new_groups(self._eks.clients.ssm, self._pool, self._eks.description["version"])

    def _notes(self, candidates: Sequence[Candidate], groups: Mapping[str, Any]) -> tuple[str, ...]:
        to_come = {candidate.zone for candidate in candidates if candidate.group not in groups}
        subnets = [subnet for zone, subnet in self._places.subnets.items() if zone in to_come]
        return (
            *subnet_notes(subnets, self._pool),
            *self._security_notes(),
            *self._places.notes,
            *type_notes(self._pool),
            *(vpc_cni.check(self._eks.access, self._pool, self._fabric) if self._fabric else ()),
            *((_LATE_TAINTS,) if self._pool.ami_type == "CUSTOM" else ()),
            *self._disk_notes(candidates),
        )

    def _disk_notes(self, candidates: Sequence[Candidate]) -> tuple[str, ...]:
        if self._pool.launch_template or not candidates:
            return ()
        return eks_launch_templates.disk_notes(self._pool, template_data(self._pool, candidates[0]) or {})

    def _security_notes(self) -> tuple[str, ...]:
        cluster_group = self._eks.description["resourcesVpcConfig"].get("clusterSecurityGroupId")
        if self._pool.launch_template or not cluster_group:
            return ()
        return security_notes(self._eks.clients.ec2, self._eks.groups.neighbours, cluster_group)

    def upgrade(self, report: Report, check: Callable[[], None]) -> tuple[str, ...]:
        groups = self._eks.groups.owned()
        existing = [each for each in self.candidates() if each.group in groups]
        specs = {each.candidate.group: each for each in self._specs(existing, groups)}
        newest = self._newest([*specs.values()], [*groups.values()])
        asgs = self._eks.scaling.groups([asg for raw in groups.values() if (asg := asg_name(raw))])
        begun, recreated = list[str](), dict[str, str]()
        for name, raw in groups.items():
            request = node_versions.update_request(self._pool, raw, newest)
            if not request or raw["status"] in eks_spec.GONE_SOON or has_machines(asgs.get(asg_name(raw) or "", {})):
                continue
            if why := node_versions.why_recreated(self._pool, raw, newest):
                recreated[name] = node_versions.fixed_in_words(self._pool, raw, newest)
                report(f"{name}: {recreated[name]}. {why}; it is recreated")
                check()
                self._eks.groups.delete(name, report)
                continue
            if not node_versions.can_be_updated(raw):
                report(f"{name} is {raw['status']}; the next run upgrades it")
                continue
            check()
            if name in newest.own:
                request["launchTemplate"] = self._eks.templates.ensure(specs[name], report, raw)
                check()
            if self._eks.groups.upgrade(raw, request, report):
                begun.append(name)
        usable = [each for each in existing if groups[each.group]["status"] not in eks_spec.GONE_SOON]
        if recreated and all(each.group in recreated for each in usable):
            raise no_usable(self._pool, recreated)
        return tuple(begun)

    def update_autoscaler_tags(self, groups: Collection[str]) -> None:
        for name, raw in self._eks.groups.owned().items():
            if name in groups and (asg := asg_name(raw)):
                self._eks.write_autoscaler_tags(asg, types_of(raw)[0])

    # -- what there is ---------------------------------------------------------------------------------------

    def observe(self) -> tuple[Group, ...]:
        order = {name: number for number, name in enumerate(self._order)}
        names = sorted(self._eks.groups.of_pool(), key=lambda name: order.get(name, len(order)))
        reserved = self._places.reserved_now()  # before groups: an instance launched in between is not missed in both
        groups, states = self._eks.look(names)
        owned = {name: raw for name, raw in groups.items() if is_owned(raw, self._pool)}
        return self._observe(owned, reserved, states)

    def _observe(
        self,
        groups: Mapping[str, Mapping[str, Any]],
        reserved: ReservedNow,
        states: Mapping[str, AsgState] | None = None,
    ) -> tuple[Group, ...]:
        """Return node groups with their Auto Scaling side, which is read where it is not given."""
        states = self._eks.states_behind(groups) if states is None else states
        read = (self._group(raw, states.get(asg_name(raw) or "", AsgState())) for raw in groups.values())
        found = ordered(self._pool, read)
        self._order = tuple(group.name for group in found)
        return reserved.judge(found)

    def _group(self, raw: Mapping[str, Any], state: AsgState) -> Group:
        asg, pool = state.asg, self._pool
        candidate = Candidate(
            group=raw["nodegroupName"],
            zone=raw["tags"].get(ZONE_TAG) or next(iter(asg.get("AvailabilityZones", [])), ""),
            instance_type=next(iter(types_of(raw)), ""),
            market=market_of(raw),
            reservation=reservation_of(raw),
        )
        group = group_of(candidate, raw, state)
        is_wanted = pool.preferences.include(candidate)
        keeps = group.keeps if pool.is_autoscaled else 0
        return replace(
            group,
            keeps=keeps,
            has_switch=not keeps,  # AWS sets no group below its minimum
            stale_tags=tag_change(pool, candidate.instance_type, asg).words if asg and is_wanted else (),
        )

    def _switch_sizes(self, asgs: Collection[str]) -> dict[str, int]:
        return dict.fromkeys(asgs, 0)

    def delete(self, report: Report) -> None:
        for name in self._eks.groups.owned():
            self._eks.groups.delete(name, report)

    def delete_remains(self, report: Report) -> None:
        self._eks.templates.delete_all_but(self._eks.groups.owned(), report)

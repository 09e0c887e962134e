"""Gangs: demand for several nodes of one zone, and which machines and groups each of them gets. Pure.

A gang's nodes are in one group if one can have them all, otherwise in several groups of one zone. If no zone can have
them, after failed launches or because groups are full, it gets nothing; machines that came for it serve others, or are
released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_gpu_provider.clouds.backoff import OFF_LIMITS, losses_there, passed_over, preferred
from airflow_gpu_provider.errors import GpuError, PoolSpecError
from airflow_gpu_provider.money.prices import UNKNOWN_PRICE, equally_cheap
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.decide.other_specs import is_one_of
from airflow_gpu_provider.scaling.decide.snapshot import (
    MachineStatus,
    PoolSnapshot,
    can_grow,
    unleased_wanted,
)
from airflow_gpu_provider.scaling.state.demand import DemandLease, TaskNodes

if TYPE_CHECKING:
    from airflow_gpu_provider.clouds.base import Group
    from airflow_gpu_provider.cluster.model.node import Node


@dataclass(frozen=True, kw_only=True)
class GangPlacement:
    """Where a gang's nodes are, or are to come from.

    Attributes:
        zone: The gang's single zone.
        placed: How many are missing, by the group that is to add them; none while older machines leave no room.
    """

    zone: str
    machines: tuple[MachineStatus, ...]
    placed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GangPlacements:
    """The gangs of a pool.

    Attributes:
        by_key: The seat of each gang that has one, oldest first; by a task's own key that of one whose nodes have to be
            of one type or market.
        anywhere: How many other nodes are wanted, in any zone.
        near: How many of these belong to a run with a gang, by that gang's zone: the run's next gang can use them
            there.
    """

    by_key: Mapping[DemandKey, GangPlacement]
    nodes: int
    anywhere: int
    near: Mapping[str, int] = field(default_factory=dict)

    @property
    def wanted(self) -> int:
        """How many nodes the pool should have now."""
        return self.nodes + self.anywhere

    @cached_property
    def kept(self) -> frozenset[str]:
        return _ids(self.by_key.values())

    @property
    def placed(self) -> Counter[str]:
        """How many machines are missing for gangs, by group."""
        return sum((Counter(seat.placed) for seat in self.by_key.values()), Counter[str]())


def gang_placements(snapshot: PoolSnapshot, machines: tuple[MachineStatus, ...]) -> GangPlacements:
    """Return the seats of the pool's gangs, each served before younger ones.

    A gang for which `max_nodes` leaves no room beside older demand has no seat: it waits for those nodes. The same
    holds for external nodes, all of which stay.
    """
    found: dict[DemandKey, GangPlacement] = {}
    near = Counter[str]()
    older, gang_nodes, placed = unleased_wanted(snapshot), 0, Counter[str]()
    anywhere = older
    for lease in snapshot.live_leases:
        shares = [] if snapshot.pool.is_autoscaled else [*_shares(lease)]
        others = lease.nodes - sum(share.size for share in shares)
        anywhere += others
        before = older
        for share in shares:
            before += share.size
            if before <= snapshot.pool.max_nodes:
                room = snapshot.pool.max_nodes - len(machines) - placed.total()
                free = _free(_that_serve(snapshot, machines, share), share, _ids(found.values()))
                seat = _existing(snapshot, share, free) or _growing(snapshot, share, free, placed, room)
                if seat:
                    found[share.key] = seat
                    gang_nodes += share.size
                    placed.update(seat.placed)
                    near[seat.zone] += 0 if share.of_task else others
            if share.key not in found and not can_grow(snapshot):
                anywhere += share.size
        older += lease.nodes
    anywhere = max(anywhere, snapshot.pool.min_nodes - gang_nodes)
    anywhere = min(snapshot.pool.max_nodes - gang_nodes, anywhere)
    return GangPlacements(by_key=found, nodes=gang_nodes, anywhere=anywhere, near=near)


@dataclass(frozen=True, kw_only=True)
class _Share:
    """Nodes of a run's demand that come together: a gang's, or those that a task needs of one type or market.

    Attributes:
        run: The hash of the demand's, which the pods have.
        of_task: What they have to be; None where any machine of the pool serves.
    """

    key: DemandKey
    run: str
    size: int
    of_task: TaskNodes | None = None

    def is_served_by(self, instance_type: str, market: str) -> bool:
        return self.of_task is None or self.of_task.are_served_by(instance_type, market)


def _shares(lease: DemandLease) -> Iterator[_Share]:
    left = lease.nodes
    for each in lease.task_nodes:
        if each.nodes <= left:
            left -= each.nodes
            key = lease.key.of_task(each.task_id, each.map_index, each.iteration)
            yield _Share(key=key, run=lease.key.hash, size=each.nodes, of_task=each)
    if size := gang_of(lease):
        yield _gang_share(lease, size)


def _gang_share(lease: DemandLease, size: int) -> _Share:
    return _Share(key=lease.key, run=lease.key.hash, size=size)


def gang_of(lease: DemandLease) -> int:
    """Return how many of its wanted nodes must be in one zone; 0 if each may be anywhere."""
    others = sum(each.nodes for each in lease.task_nodes)
    return lease.gang if 1 < lease.gang <= lease.nodes - others else 0


def usable_by_zone(snapshot: PoolSnapshot, lease: DemandLease, nodes: Iterable[Node]) -> dict[str, int]:
    """Return how many of these usable nodes a gang can count on, by zone, the zone with the most first.

    This excludes the nodes of older gangs, and those that other runs' pods use, unless the pool cannot have more: then
    runs wait for each other.
    """
    machines, names = snapshot.supply, {node.name for node in nodes}
    usable = [each for each in machines if each.node and each.node.name in names]
    if not _must_share(snapshot, lease):
        found = gang_placements(snapshot, machines).by_key
        before = [each.key for each in snapshot.live_leases]
        older = [found[key] for key in before[: before.index(lease.key)] if key in found]
        usable = _free(usable, _gang_share(lease, lease.gang), _ids(older))
    counts = Counter(zone_of(each, snapshot.groups) for each in usable)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def zones_in_words(by_zone: Mapping[str, int]) -> str:
    """Return how many nodes each zone has: "eu-west-1a has 1, eu-west-1b has 1"."""
    return ", ".join(f"{zone or 'the cluster'} has {number}" for zone, number in by_zone.items()) or "no zone has any"


def zone_of(each: MachineStatus, groups: Iterable[Group]) -> str:
    """Return a machine's zone: its node's, else its group's."""
    if each.node:
        return each.node.zone
    return next((group.candidate.zone for group in groups if group.name == each.machine.group), "")


def _must_share(snapshot: PoolSnapshot, lease: DemandLease) -> bool:
    live = snapshot.live_leases
    older = sum(each.nodes for each in live[: live.index(lease)]) + unleased_wanted(snapshot)
    return not can_grow(snapshot) or older + gang_of(lease) > snapshot.pool.max_nodes


def _that_serve(snapshot: PoolSnapshot, machines: Iterable[MachineStatus], share: _Share) -> Iterable[MachineStatus]:
    return [each for each in machines if share.is_served_by(*snapshot.type_and_market(each))]


def _free(machines: Iterable[MachineStatus], share: _Share, taken: frozenset[str]) -> list[MachineStatus]:
    """Return the machines that no older gang has and no other run's pod uses."""
    return [
        each
        for each in machines
        if each.counts and each.machine.id not in taken and (not each.holders or _is_own(each, share))
    ]


def _is_own(each: MachineStatus, share: _Share) -> bool:
    return any(pod.run == share.run for pod in each.holders)


def _existing(snapshot: PoolSnapshot, share: _Share, free: Sequence[MachineStatus]) -> GangPlacement | None:
    """Return a zone with all of a gang's machines: the one with its pods, otherwise with the most usable ones."""
    by_zone: dict[str, list[MachineStatus]] = {}
    for each in sorted(free, key=lambda each: (not _is_own(each, share), each.state != "usable")):
        by_zone.setdefault(zone_of(each, snapshot.groups), []).append(each)
    own = _own_zones(snapshot, share)
    order = list(dict.fromkeys(group.candidate.zone for group in snapshot.groups))

    def rank(zone: str) -> tuple[int, int, int, str]:
        usable = sum(each.state == "usable" for each in by_zone[zone][: share.size])
        return -own[zone], -usable, order.index(zone) if zone in order else len(order), zone

    whole = [zone for zone, there in by_zone.items() if len(there) >= share.size]
    best = min(whole, key=rank, default=None)
    return None if best is None else GangPlacement(zone=best, machines=tuple(by_zone[best][: share.size]))


def _own_zones(snapshot: PoolSnapshot, share: _Share) -> Counter[str]:
    """Return the zones in which the run's pods are, or are about to be."""
    zones = {node.name: node.zone for node in snapshot.nodes}
    mine = [pod for pod in snapshot.pods if pod.run == share.run and not pod.finished]
    found = (zones.get(pod.node) if pod.node else pod.zone for pod in mine)
    return Counter(zone for zone in found if zone is not None)


def _growing(
    snapshot: PoolSnapshot, share: _Share, free: Sequence[MachineStatus], placed: Counter[str], room: int
) -> GangPlacement | None:
    """Return the source of a gang's missing machines: where most of them already exist or are requested.

    While there is no room for them, none is requested for this gang, and what is requested is other demand's.
    """

    def under_way(option: _Option) -> int:
        there, by_group, _, asked = option
        return asked if sum(by_group.values()) <= room else len(there)

    def cost(option: _Option) -> float:
        there, by_group, _, _ = option
        nodes = Counter(each.machine.group for each in there) + Counter(by_group)
        return sum(number * costs.get(name, UNKNOWN_PRICE) for name, number in nodes.items())

    costs = snapshot.node_costs
    over, types = passed_over(snapshot.groups, snapshot.now), snapshot.types_in_demand
    can_come = [
        group
        for group in snapshot.groups_by_cost
        if group.when_idle == "remove"
        and group.status not in OFF_LIMITS
        and group.name not in over
        and group.candidate.is_of_one_zone
        and share.is_served_by(group.candidate.instance_type, group.candidate.market)
        and is_one_of(types, group.candidate.instance_type)
    ]
    losses = losses_there(snapshot.groups, snapshot.now)
    calm = [group for group in can_come if group.name not in losses or not losses[group.name].is_repeated]
    candidates = {group.name: group.candidate for group in can_come}
    for choices in ([[group] for group in calm], _zonewise(calm), [[group] for group in can_come], _zonewise(can_come)):
        options = [option for groups in choices if (option := _option(groups, share.size, free, placed))]
        if options:
            most = max(map(under_way, options))
            best = [each for each in options if under_way(each) == most]
            best = preferred(best, losses, lambda option: candidates[_groups_of(option)[0]])
            there, by_group, zone, _ = equally_cheap(best, cost)[0]
            return GangPlacement(zone=zone, machines=there, placed=by_group if sum(by_group.values()) <= room else {})
    return None


def _groups_of(option: _Option) -> list[str]:
    there, by_group, _, _ = option
    return [*by_group, *(each.machine.group for each in there)]


def _zonewise(groups: Iterable[Group]) -> Iterator[list[Group]]:
    by_zone: dict[str, list[Group]] = {}
    for group in groups:
        by_zone.setdefault(group.candidate.zone, []).append(group)
    yield from (several for several in by_zone.values() if len(several) > 1)


_Option = tuple[tuple[MachineStatus, ...], dict[str, int], str, int]


def _option(groups: Sequence[Group], size: int, free: Sequence[MachineStatus], placed: Counter[str]) -> _Option | None:
    """Return what a gang would get from these groups, and how much of it is under way; None if too little."""
    zone, names = groups[0].candidate.zone, {group.name for group in groups}
    there = [each for each in free if each.machine.group in names and (not each.node or each.node.zone == zone)][:size]
    by_group: dict[str, int] = {}
    asked = len(there)
    for group in groups:
        left = size - len(there) - sum(by_group.values())
        number = min(left, group.max_size - len(group.live) - placed[group.name])
        if number > 0:
            by_group[group.name] = number
            asked += min(number, max(0, group.unfilled - placed[group.name]))
    return (tuple(there), by_group, zone, asked) if len(there) + sum(by_group.values()) == size else None


def _ids(found: Iterable[GangPlacement]) -> frozenset[str]:
    return frozenset(each.machine.id for seat in found for each in seat.machines)


@dataclass(frozen=True, kw_only=True)
class GangNodes:
    """What a demand's gang has of the nodes that must be in one zone.

    Attributes:
        missing: How many the best zone lacks.
        have: How many each zone has, as text; empty if nothing is missing.
        error: Why they cannot come in one zone at all.
    """

    missing: int = 0
    have: str = ""
    error: GpuError | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        return (self.have,) if self.have else ()

    @classmethod
    def of(cls, snapshot: PoolSnapshot, lease: DemandLease, nodes: Sequence[Node]) -> GangNodes:
        size = gang_of(lease)
        if not size:
            return NO_GANG
        by_zone = usable_by_zone(snapshot, lease, nodes)
        missing = max(0, size - max(by_zone.values(), default=0))
        if not missing:
            return NO_GANG
        have = f"{size} nodes of one zone are wanted, {zones_in_words(by_zone)}"
        return cls(missing=missing, have=have, error=_over_several_zones(snapshot))


NO_GANG = GangNodes()


def _over_several_zones(snapshot: PoolSnapshot) -> GpuError | None:
    """Return an error if all groups that can grow span several zones: the cloud then chooses each machine's zone."""
    groups = [group for group in snapshot.groups if group.when_idle == "remove" and not group.provisioner]
    if snapshot.pool.is_autoscaled or not can_grow(snapshot) or any(g.candidate.is_of_one_zone for g in groups):
        return None
    if not groups:
        return None
    names = ", ".join(f"{group.name} ({group.candidate.zone})" for group in groups)
    return PoolSpecError(
        f"Pool {snapshot.pool.name}: its groups are over several zones, {names}, and the nodes have to be in one.",
        "Give the pool groups of one zone each, or name that zone's group alone.",
        pool=snapshot.pool.name,
    )

"""Gangs: demand for several nodes of one zone, and which machines and groups each of them gets. Pure.

A gang's nodes are of one group where one can have them all, else of several groups of one zone. Where no zone can have
them, after failed launches or as groups are full, it gets nothing; machines that came for it serve others, or go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_gpu_provider.cluster.demand import DemandKey, DemandLease
from airflow_gpu_provider.cluster.nodes import ZONE_LABEL, Node
from airflow_gpu_provider.platforms.backoff import OFF_LIMITS, passed_over
from airflow_gpu_provider.platforms.base import Group
from airflow_gpu_provider.scaling.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.supply import Supply, supply
from airflow_gpu_provider.scaling.wanted import can_grow, live_leases, unleased_wanted


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a gang's nodes are, or are to come from.

    Attributes:
        zone: The one zone.
        machines: Those that are there for it.
        placed: How many are missing, by the group that is to have them; none while older machines leave no room.
    """

    zone: str
    machines: tuple[Supply, ...]
    placed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Seats:
    """The gangs of a pool.

    Attributes:
        by_key: The seat of each gang that has one, oldest first.
        anywhere: How many nodes are wanted besides theirs, in any zone.
    """

    by_key: Mapping[DemandKey, Seat]
    nodes: int
    anywhere: int

    @property
    def wanted(self) -> int:
        """How many nodes the pool should have now."""
        return self.nodes + self.anywhere

    @property
    def kept(self) -> frozenset[str]:
        """The machines that gangs have."""
        return _ids(self.by_key.values())

    @property
    def placed(self) -> Counter[str]:
        """How many machines are missing for gangs, by group."""
        return sum((Counter(seat.placed) for seat in self.by_key.values()), Counter[str]())


def seats(snapshot: PoolSnapshot, machines: tuple[Supply, ...]) -> Seats:
    """Return where the pool's gangs are, each served before those that are younger.

    A gang for which `max_nodes` leaves no room besides older demand has no seat: it waits for those nodes. So it does
    for nodes that are external, all of which stay.
    """
    found: dict[DemandKey, Seat] = {}
    older, gang_nodes, placed = unleased_wanted(snapshot), 0, Counter[str]()
    anywhere = older
    for lease in live_leases(snapshot):
        size = 0 if snapshot.pool.is_autoscaled else gang_of(lease)
        anywhere += lease.nodes - size
        if size and older + size <= snapshot.pool.max_nodes:
            room = snapshot.pool.max_nodes - len(machines) - placed.total()
            free = _free(machines, lease, _ids(found.values()))
            seat = _existing(snapshot, lease, free) or _growing(snapshot, lease, free, placed, room)
            if seat:
                found[lease.key] = seat
                gang_nodes += size
                placed.update(seat.placed)
        if lease.key not in found and not can_grow(snapshot):
            anywhere += size
        older += lease.nodes
    anywhere = max(anywhere, snapshot.pool.min_nodes - gang_nodes)
    return Seats(by_key=found, nodes=gang_nodes, anywhere=min(snapshot.pool.max_nodes - gang_nodes, anywhere))


def gang_of(lease: DemandLease) -> int:
    """Return how many of the nodes that it wants now have to be in one zone; 0 where each may be anywhere."""
    return lease.gang if 1 < lease.gang <= lease.nodes else 0


def usable_by_zone(snapshot: PoolSnapshot, lease: DemandLease, nodes: Iterable[Node]) -> dict[str, int]:
    """Return how many of these usable nodes each zone has that a gang may count on, the zone with most of them first.

    Not the nodes of older gangs, nor those that other runs' pods use, unless the pool cannot have more: then runs wait
    for each other.
    """
    machines, names = supply(snapshot), {node.name for node in nodes}
    usable = [each for each in machines if each.node and each.node.name in names]
    if not _must_share(snapshot, lease):
        found = seats(snapshot, machines).by_key
        before = [each.key for each in live_leases(snapshot)]
        older = [found[key] for key in before[: before.index(lease.key)] if key in found]
        usable = _free(usable, lease, _ids(older))
    counts = Counter(zone_of(each, snapshot.groups) for each in usable)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def zones_in_words(by_zone: Mapping[str, int]) -> str:
    """Return how many nodes each zone has: "eu-west-1a has 1, eu-west-1b has 1"."""
    return ", ".join(f"{zone or 'the cluster'} has {number}" for zone, number in by_zone.items()) or "no zone has any"


def zone_of(each: Supply, groups: Iterable[Group]) -> str:
    """Return a machine's zone: its node's, else its group's."""
    if each.node:
        return each.node.zone
    return next((group.candidate.zone for group in groups if group.name == each.machine.group), "")


def _must_share(snapshot: PoolSnapshot, lease: DemandLease) -> bool:
    live = live_leases(snapshot)
    older = sum(each.nodes for each in live[: live.index(lease)]) + unleased_wanted(snapshot)
    return not can_grow(snapshot) or older + gang_of(lease) > snapshot.pool.max_nodes


def _free(machines: Iterable[Supply], lease: DemandLease, taken: frozenset[str]) -> list[Supply]:
    """Return the machines that no older gang has, and that no other run's pod uses."""
    return [
        each
        for each in machines
        if each.counts and each.machine.id not in taken and (not each.holders or _is_own(each, lease))
    ]


def _is_own(each: Supply, lease: DemandLease) -> bool:
    return any(pod.run == lease.key.hash for pod in each.holders)


def _existing(snapshot: PoolSnapshot, lease: DemandLease, free: Sequence[Supply]) -> Seat | None:
    """Return a zone that has all of a gang's machines: the one where its pods are, else where most are usable."""
    by_zone: dict[str, list[Supply]] = {}
    for each in sorted(free, key=lambda each: (not _is_own(each, lease), each.state != "usable")):
        by_zone.setdefault(zone_of(each, snapshot.groups), []).append(each)
    own = _own_zones(snapshot, lease)
    order = _zones_in_order(snapshot)

    def rank(zone: str) -> tuple[int, int, int, str]:
        usable = sum(each.state == "usable" for each in by_zone[zone][: lease.gang])
        return -own[zone], -usable, order.index(zone) if zone in order else len(order), zone

    whole = [zone for zone, there in by_zone.items() if len(there) >= lease.gang]
    best = min(whole, key=rank, default=None)
    return None if best is None else Seat(zone=best, machines=tuple(by_zone[best][: lease.gang]))


def _own_zones(snapshot: PoolSnapshot, lease: DemandLease) -> Counter[str]:
    """Return where the run's pods are, or are about to be."""
    zones = {node.name: node.zone for node in snapshot.nodes}
    mine = [pod for pod in snapshot.pods if pod.run == lease.key.hash and not (pod.placeholder or pod.finished)]
    found = (zones.get(pod.node) if pod.node else dict(pod.node_selector).get(ZONE_LABEL) for pod in mine)
    return Counter(zone for zone in found if zone is not None)


def _growing(
    snapshot: PoolSnapshot, lease: DemandLease, free: Sequence[Supply], placed: Counter[str], room: int
) -> Seat | None:
    """Return where a gang's missing machines are to come from: where most of them are or are asked for already."""
    over = passed_over(snapshot.groups, snapshot.now)
    can_come = [
        group
        for group in snapshot.groups
        if group.when_idle == "remove"
        and group.status not in OFF_LIMITS
        and group.name not in over
        and group.candidate.is_of_one_zone
    ]
    choices = [*([group] for group in can_come), *_zonewise(can_come)]
    for single in (True, False):
        options = [
            option
            for groups in choices
            if (len(groups) == 1) is single and (option := _option(groups, lease.gang, free, placed, single))
        ]
        if options:
            there, by_group, zone, _ = max(options, key=lambda option: option[3])
            return Seat(zone=zone, machines=there, placed=by_group if sum(by_group.values()) <= room else {})
    return None


def _zonewise(groups: Iterable[Group]) -> Iterator[list[Group]]:
    by_zone: dict[str, list[Group]] = {}
    for group in groups:
        by_zone.setdefault(group.candidate.zone, []).append(group)
    yield from (several for several in by_zone.values() if len(several) > 1)


_Option = tuple[tuple[Supply, ...], dict[str, int], str, int]


def _option(
    groups: Sequence[Group], size: int, free: Sequence[Supply], placed: Counter[str], is_single: bool
) -> _Option | None:
    """Return what a gang would have of these groups, and how much of it is under way; None if that is too little."""
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


def _zones_in_order(snapshot: PoolSnapshot) -> list[str]:
    return list(dict.fromkeys(group.candidate.zone for group in snapshot.groups))


def _ids(found: Iterable[Seat]) -> frozenset[str]:
    return frozenset(each.machine.id for seat in found for each in seat.machines)

"""decide: what to do about a pool now, from everything that was read at one moment. Pure and total.

A decision is a few small steps towards what is wanted, not the end state: it is made again on every change and every
few seconds, each time from the actual state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_gpu_provider.clouds.backoff import losses_there
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.switch import COLLECT_WITHIN, SWITCH_SLACK
from airflow_gpu_provider.scaling import deadlines
from airflow_gpu_provider.scaling.decide.decision_notes import notes
from airflow_gpu_provider.scaling.decide.gangs import GangPlacements, gang_placements
from airflow_gpu_provider.scaling.decide.other_specs import is_one_of
from airflow_gpu_provider.scaling.decide.placement import place_machines, scalable
from airflow_gpu_provider.scaling.decide.snapshot import (
    READY_WITHIN,
    MachineStatus,
    PoolSnapshot,
    pending_nodes,
    wanted_nodes,
    wanted_until,
)

if TYPE_CHECKING:
    from airflow_gpu_provider.clouds.base import Group, Machine

FORGET_AFTER = timedelta(days=1)
"""How long an expired lease that was never released is kept, for inspection."""

_SWITCH_LEAD = timedelta(seconds=30)  # no cloud takes a switch for a moment that has passed when it reads it


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do, in the order of the fields.

    Attributes:
        resume: Groups whose launches a process had suspended for a moment when it died.
        switch: When the cloud is to scale these groups to zero by itself.
        clear_switch: Groups whose switch is to be removed: their nodes stay indefinitely, by min_nodes; or they are
            empty, and external, or an autoscaler may add nodes to them without notice.
        label: Nodes of external groups that get the pool's labels.
        uncordon: Nodes with a cordon of this package that are to stay.
        update_tags: Groups whose tags for an autoscaler are to be corrected.
        shrink: Groups that are to stop requesting machines that do not exist.
        grow: New absolute sizes, each at least the number of existing machines.
        cordon: Nodes of `release` that are not cordoned yet, and idle ones that stay but are to be cordoned.
        later: Machines to remove once their group has been updated; nothing is done about them now.
        notes: Why, as text, for the task's log.
    """

    resume: tuple[str, ...] = ()
    switch: Mapping[str, datetime] = field(default_factory=dict)
    clear_switch: tuple[str, ...] = ()
    label: tuple[str, ...] = ()
    uncordon: tuple[str, ...] = ()
    update_tags: tuple[str, ...] = ()
    shrink: tuple[str, ...] = ()
    grow: Mapping[str, int] = field(default_factory=dict)
    cordon: tuple[str, ...] = ()
    release: tuple[Machine, ...] = ()
    later: tuple[Machine, ...] = ()
    delete_demand: tuple[DemandKey, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return replace(self, later=(), notes=()) == Decision()


def decide(snapshot: PoolSnapshot) -> Decision:
    machines = snapshot.supply
    gangs = gang_placements(snapshot, machines)
    placed, grow, shrink = _sizes(snapshot, machines, gangs)
    to_go = _release(snapshot, machines, gangs, grow)
    updated = {group.name for group in snapshot.groups if group.status == "updating"}
    release = tuple(each for each in to_go if each.machine.group not in updated)
    later = tuple(each for each in to_go if each not in release)
    idle = _to_cordon(snapshot, machines, gangs)
    switch, clear_switch = _switches(snapshot, machines, grow)
    return Decision(
        resume=tuple(group.name for group in snapshot.groups if group.left_suspended),
        label=tuple(each.node.name for each in machines if each.node and each.is_new and each not in to_go),
        uncordon=_uncordon(machines, (*to_go, *idle)),
        switch=switch,
        clear_switch=clear_switch,
        update_tags=_with_stale_tags(snapshot),
        shrink=shrink,
        grow=grow,
        cordon=tuple(each.node.name for each in (*release, *idle) if each.node and not each.node.cordoned),
        release=tuple(each.machine for each in release),
        later=tuple(each.machine for each in later),
        delete_demand=_expired_demand(snapshot),
        notes=notes(
            snapshot,
            machines,
            wanted=wanted_nodes(snapshot),
            placed=placed,
            grow=grow,
            shrink=shrink,
            release=release,
            later=later,
        ),
    )


def heeding_losses(snapshot: PoolSnapshot) -> PoolSnapshot:
    """Return it with the idle machines shunned that a cloud launches where it takes one after the other.

    EKS puts another machine in the place of one that is reclaimed, in the same zone. Only if all of them can come
    elsewhere: otherwise they would be requested there again.
    """
    losses = {name: each for name, each in losses_there(snapshot.groups, snapshot.now).items() if each.is_repeated}
    groups = {group.name for group in snapshot.groups if group.when_idle == "remove"} & losses.keys()
    idle = (each.machine for each in snapshot.supply if each.counts and each.may_go and each.machine.group in groups)
    shunned = frozenset(
        machine.id
        for machine in idle
        if machine.launched_at and machine.launched_at > losses[machine.group].last.at - READY_WITHIN
    )
    if not shunned or snapshot.pool.is_autoscaled:
        return snapshot
    after = replace(snapshot, groups=tuple(_without(group, shunned) for group in snapshot.groups))
    (seats, lacking, _), (seats_after, lacking_after, placed) = _lacking(snapshot), _lacking(after)
    comes_elsewhere = seats_after >= seats and lacking_after <= lacking and not losses.keys() & +Counter(placed)
    return replace(snapshot, shunned=shunned) if comes_elsewhere else snapshot


def _without(group: Group, machines: frozenset[str]) -> Group:
    left = tuple(each for each in group.machines if each.id not in machines)
    return replace(group, machines=left, desired=max(0, group.desired - len(group.machines) + len(left)))


def _lacking(snapshot: PoolSnapshot) -> tuple[int, int, Mapping[str, int]]:
    """Return how many gangs have seats, how many nodes neither exist nor can be placed, and where they are placed."""
    machines = snapshot.supply
    gangs = gang_placements(snapshot, machines)
    placed, _, _ = _sizes(snapshot, machines, gangs)
    there = sum(each.counts for each in machines)
    return len(gangs.by_key), wanted_nodes(snapshot) - there - sum(placed.values()), placed


def left_to_provisioner(snapshot: PoolSnapshot) -> tuple[MachineStatus, ...]:
    """Return the machines that no run wants any more, and that their provisioner is to remove."""
    groups = {group.name for group in snapshot.groups if group.provisioner}
    machines = snapshot.supply
    empty = [each for each in machines if each.machine.group in groups and not each.holders]
    idle = sorted((each for each in empty if each.counts), key=_release_order(snapshot))
    surplus = sum(each.counts for each in machines) - wanted_nodes(snapshot)
    return (*(each for each in empty if not each.counts), *idle[: max(0, surplus)])


def switch_time(snapshot: PoolSnapshot) -> datetime | None:
    """Return when the cloud has to scale the pool to zero by itself; None if nothing is wanted."""
    until = wanted_until(snapshot)
    return None if until is None else deadlines.switch_at(until)


def _sizes(
    snapshot: PoolSnapshot, machines: tuple[MachineStatus, ...], gangs: GangPlacements
) -> tuple[Mapping[str, int], dict[str, int], tuple[str, ...]]:
    """Return where missing nodes are to come from, which groups grow, and which shrink.

    Sizes that an autoscaler sets are left to it: it would undo a change that it does not understand.
    """
    if snapshot.pool.is_autoscaled:
        return {}, {}, ()
    missing = _missing(snapshot, machines, gangs)
    types = snapshot.types_in_demand
    groups = [group for group in snapshot.groups if is_one_of(types, group.candidate.instance_type)]
    placed = place_machines(groups, missing, snapshot.now, gangs.placed, gangs.near, snapshot.node_costs)
    return placed, _grow(snapshot, machines, placed, gangs.wanted), _shrink(snapshot, placed)


def _with_stale_tags(snapshot: PoolSnapshot) -> tuple[str, ...]:
    if snapshot.pool.manage != "full":
        return ()
    return tuple(group.name for group in filter(scalable, snapshot.groups) if group.stale_tags)


def _missing(snapshot: PoolSnapshot, machines: tuple[MachineStatus, ...], gangs: GangPlacements) -> int:
    """Return how many wanted nodes neither exist nor are being launched, limited by max_nodes; without the gangs'."""
    short = gangs.anywhere - len(_besides(gangs, machines))
    room = snapshot.pool.max_nodes - len(machines) - gangs.placed.total()
    return max(0, min(short, room))


def _besides(gangs: GangPlacements, machines: tuple[MachineStatus, ...]) -> list[MachineStatus]:
    """Return the machines that count and belong to no gang."""
    return [each for each in machines if each.counts and each.machine.id not in gangs.kept]


def _grow(
    snapshot: PoolSnapshot, machines: tuple[MachineStatus, ...], placed: Mapping[str, int], wanted: int
) -> dict[str, int]:
    """Return new sizes: the existing machines and those missing there.

    A group whose size is below the number of its machines is about to lose machines of the cloud's choice; if any
    machine is needed, its size is set to that number.
    """
    held = {each.machine.group for each in machines if each.holders}
    replacing = _replacing(snapshot, machines, wanted)
    grow = {}
    for group in filter(scalable, snapshot.groups):
        missing = placed.get(group.name, 0)
        size = min(len(group.live) + missing, group.max_size)
        if group.name not in replacing and size > group.desired and (missing or wanted or group.name in held):
            grow[group.name] = size
    return grow


def _replacing(snapshot: PoolSnapshot, machines: tuple[MachineStatus, ...], wanted: int) -> set[str]:
    """Return the groups in which the cloud launches a machine before it ends one at risk, as EKS does for spot.

    Such a group has more machines than its size for a while, and is left alone until then. It counts as one only if
    its size, without the excess, covers all that is needed.
    """
    good = Counter(each.machine.group for each in machines if each.counts)
    held = Counter(each.machine.group for each in machines if each.holders)
    if sum(min(group.desired, good[group.name]) for group in snapshot.groups) < wanted:
        return set()
    spot = (group for group in snapshot.groups if group.candidate.market == "SPOT")
    return {group.name for group in spot if max(held[group.name], 1) <= group.desired < len(group.live)}


def _shrink(snapshot: PoolSnapshot, placed: Mapping[str, int]) -> tuple[str, ...]:
    """Return the groups with more unfilled size than is placed there; a later decision requests what is wanted."""
    groups = filter(scalable, snapshot.groups)
    return tuple(g.name for g in groups if min(g.unfilled, g.desired - g.keeps) > placed.get(g.name, 0))


def _release(
    snapshot: PoolSnapshot, machines: tuple[MachineStatus, ...], gangs: GangPlacements, grow: Mapping[str, int]
) -> tuple[MachineStatus, ...]:
    """Return the machines to release: the useless ones, and of the others the surplus.

    If a group's size is below the number of its machines, the cloud is already removing some; one more would be too
    many. While a group is updated, they stay: a surplus may have been added so that others can be replaced.
    """
    kept = {g.name for g in snapshot.groups if g.when_idle != "remove"}
    leaving = {g.name for g in snapshot.groups if g.desired < len(g.live) and g.name not in grow}
    free = [each for each in machines if each.may_go and each.machine.group not in leaving | kept]
    useless = [each for each in free if not each.counts]
    besides = _besides(gangs, machines)
    idle = sorted(
        (each for each in free if each.counts and each.machine.id not in gangs.kept), key=_release_order(snapshot)
    )
    going = sum(len(group.live) - group.desired for group in snapshot.groups if group.name in leaving)
    surplus = len(besides) - going - max(gangs.anywhere, _in_demand(snapshot, machines))
    room = Counter({group.name: len(group.live) - group.keeps for group in snapshot.groups})
    useless = _as_far_as(room, useless, len(useless))
    return (*useless, *_as_far_as(room, idle, surplus))


def _as_far_as(room: Counter[str], machines: Sequence[MachineStatus], number: int) -> list[MachineStatus]:
    """Return the first `number` machines that leave each group its minimum size: below that the cloud refuses.

    Subtracts them from `room`.
    """
    taken: list[MachineStatus] = []
    for each in machines:
        if len(taken) < number and room[each.machine.group] > 0:
            room[each.machine.group] -= 1
            taken.append(each)
    return taken


def _in_demand(snapshot: PoolSnapshot, machines: tuple[MachineStatus, ...]) -> int:
    """Return how many machines pods use or wait for, if an autoscaler adds them.

    Otherwise a machine that it added for a pod would be released before the pod is bound, and added again.
    """
    if not snapshot.pool.is_autoscaled:
        return 0
    return sum(bool(each.holders) for each in machines) + pending_nodes(snapshot)


def _to_cordon(
    snapshot: PoolSnapshot, machines: tuple[MachineStatus, ...], gangs: GangPlacements
) -> tuple[MachineStatus, ...]:
    """Return the machines that stay and are to be cordoned, because they are surplus and no pod uses them."""
    groups = {group.name for group in snapshot.groups if group.when_idle == "cordon"}
    besides = _besides(gangs, machines)
    idle = [each for each in besides if each.node and each.may_go and each.machine.group in groups]
    surplus = len(besides) - gangs.anywhere
    return tuple(sorted(idle, key=_release_order(snapshot))[: max(0, surplus)])


def _release_order(snapshot: PoolSnapshot) -> Callable[[MachineStatus], tuple[int, float, float]]:
    """Without a node first, then not Ready, then those that a dead holder cordoned; of these the dearest, if the pool
    prefers by price, and then the newest.
    """

    def order(each: MachineStatus) -> tuple[int, float, float]:
        newest_first = -each.since.timestamp() if each.since else 0.0
        dearest_first = -snapshot.node_costs.get(each.machine.group, 0.0)
        if each.node is None:
            return 0, dearest_first, newest_first
        if each.state != "usable":
            return 1, dearest_first, newest_first
        return (2 if each.node.cordoned else 3), dearest_first, newest_first

    return order


def _switches(
    snapshot: PoolSnapshot, machines: tuple[MachineStatus, ...], grow: Mapping[str, int]
) -> tuple[dict[str, datetime], tuple[str, ...]]:
    at = switch_time(snapshot)
    groups = [group for group in snapshot.groups if scalable(group) and group.has_switch]
    if at is None:
        stays = snapshot.pool.min_nodes > 0
        others_grow = snapshot.pool.is_autoscaled
        left = [group for group in groups if stays or ((others_grow or not group.owned) and _is_left(group))]
        # No run wants nodes, but a terminating pod holds a machine that the last switch was about to end.
        held = [group.name for group in groups if group.name in grow and not (group.switch_at or stays)]
        uncollected = (pod.collect_within for pod in snapshot.pods if pod.awaits_collection(snapshot.now))
        at_last = deadlines.switch_at(snapshot.now + max(uncollected, default=COLLECT_WITHIN))
        sooner = {} if stays or others_grow else _sooner(groups, machines, snapshot.now)
        return {**sooner, **dict.fromkeys(held, at_last)}, tuple(group.name for group in left if group.switch_at)
    # An autoscaler may grow any of them, even when no process looks at the pool.
    in_use = [g for g in groups if g.desired or g.live or g.name in grow or snapshot.pool.is_autoscaled]
    wanted = {group.name: _no_later_than_reserved(group, at, snapshot.now) for group in in_use}
    return {g.name: wanted[g.name] for g in in_use if not _is_right(g.switch_at, wanted[g.name])}, ()


def _no_later_than_reserved(group: Group, at: datetime, now: datetime) -> datetime:
    """Return when the cloud is to scale a group to zero: at `at`, or sooner, when what is reserved for it ends.

    The cloud drains its nodes then, with time for their pods to save what they have; a training goes on elsewhere.
    """
    reserved = group.reserved
    if reserved is None or reserved.ends_at is None or at <= reserved.ends_at:
        return at
    if not reserved.has_ended:
        return reserved.ends_at.replace(second=0, microsecond=0)
    soon = deadlines.next_minute(now + _SWITCH_LEAD)
    return group.switch_at if group.switch_at and now < group.switch_at <= soon else soon


def _sooner(groups: Sequence[Group], machines: tuple[MachineStatus, ...], now: datetime) -> dict[str, datetime]:
    """Return the groups whose last machines cannot be released at once, and the new times of their switch.

    No run wants them: pods are terminating there, or machines are being launched or requested, which AWS does not end
    before they exist, or the group is being updated. The waiting process removes the machines afterwards; if it has
    died, the switch does.
    """
    sooner = {}
    for group in groups:
        mine = [each for each in machines if each.machine.group == group.name]
        ends = [pod.lets_go_at for each in mine for pod in each.holders]
        ends += [now for each in mine if each.machine.state == "pending" or group.status == "updating"]
        ends += [now] if min(group.unfilled, group.desired - group.keeps) > 0 else []
        if not ends or None in ends or any(each.state == "taken" for each in mine):
            continue
        at = deadlines.switch_at(max(end for end in ends if end))
        if group.switch_at is None or group.switch_at > at + SWITCH_SLACK:
            sooner[group.name] = at
    return sooner


def _is_left(group: Group) -> bool:
    """Return True if a group is back to its minimum size."""
    return max(group.desired, len(group.live)) <= group.keeps


def _is_right(now: datetime | None, wanted: datetime) -> bool:
    return now is not None and wanted <= now <= wanted + SWITCH_SLACK


def _uncordon(machines: tuple[MachineStatus, ...], release: tuple[MachineStatus, ...]) -> tuple[str, ...]:
    """Return the nodes with our mark that are to stay; a mark without a cordon is removed too.

    A node whose machine is terminating stays cordoned to its end.
    """
    going = {each.machine.id for each in release}
    marked = (each for each in machines if each.node and each.node.cordon_mark)
    return tuple(each.node.name for each in marked if each.node and each.machine.id not in going)


def _expired_demand(snapshot: PoolSnapshot) -> tuple[DemandKey, ...]:
    """Return the demand that ended long ago. While its pods exist it stays, or they would seem to belong to no run."""
    runs = {pod.run for pod in snapshot.pods}
    old = (lease.key for lease in snapshot.leases if snapshot.now - lease.until > FORGET_AFTER)
    return tuple(key for key in old if key.hash not in runs)

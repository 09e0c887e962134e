"""The log lines for a decision: each states one step and its reason, so that a task's log can have it once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_gpu_provider.clouds.backoff import COMING, SHOWN_AFTER, losses_there, passed_over
from airflow_gpu_provider.scaling.decide.placement import memory_of
from airflow_gpu_provider.scaling.decide.snapshot import (
    READY_WITHIN,
    SLOW,
    MachineStatus,
    PoolSnapshot,
    wanted_by,
)

if TYPE_CHECKING:
    from airflow_gpu_provider.cluster.model.pool_pod import Pod

_CAME_ALONE = "its run wants several nodes of one zone, and not all of them are there"


def notes(
    snapshot: PoolSnapshot,
    machines: tuple[MachineStatus, ...],
    *,
    wanted: int,
    placed: Mapping[str, int],
    grow: Mapping[str, int],
    shrink: tuple[str, ...],
    release: tuple[MachineStatus, ...],
    later: tuple[MachineStatus, ...],
) -> tuple[str, ...]:
    """Return the lines for one decision; the arguments are its parts."""
    counting = sum(each.counts for each in machines)
    short = wanted - counting - sum(placed.values())
    lines = [str(each) for lease in snapshot.leases for each in lease.unreadable]
    lines += [*_passed_over(snapshot, placed, short), *_sizes(snapshot, grow, shrink), *_waits(snapshot, placed)]
    lines += _not_reserved(snapshot, is_short=bool(placed) or short > 0)
    if wanted and not snapshot.groups and _long_wanted(snapshot):
        lines.append(
            f"pool {snapshot.pool.name} has no node group: EnsureGpuPoolOperator, or a gpu_nodes block, creates them"
        )
    if wanted > sum(each.counts and each.is_there for each in machines):
        lines += _refusals_of_provisioners(snapshot, machines)
    lines += [*_late(snapshot, machines), *_late_of_provisioners(snapshot, machines)]
    lines += [f"{each} gets the labels of pool {snapshot.pool.name}" for each in machines if each.is_new]
    why = {
        each: _why_others_come(snapshot) if each.counts and counting <= wanted else why_released(each)
        for each in (*release, *later)
    }
    lines += [f"releasing {each}: {why[each]}" for each in release]
    lines += [f"{each} is released when its group has been updated: {why[each]}" for each in later]
    if counting > wanted:
        lines += [f"{each} is kept: pod {each.holders[0]} holds it" for each in machines if each.holders]
    lines += [_stuck(pod) for pod in snapshot.pods if pod.is_stuck(snapshot.now)]
    lines += [f"{each} is neither used nor removed: {_who_took(each)}" for each in machines if each.state == "taken"]
    if short > 0 and len(machines) >= snapshot.pool.max_nodes:
        lines.append(f"{short} more wanted, but max_nodes={snapshot.pool.max_nodes} machines exist")
    return tuple(lines)


def _why_others_come(snapshot: PoolSnapshot) -> str:
    """Return why a machine goes that counts, though no fewer are wanted than there are."""
    there = [snapshot.type_and_market(each) for each in snapshot.supply if each.node]
    for nodes in (each for lease in snapshot.live_leases for each in lease.task_nodes):
        if sum(nodes.are_served_by(*each) for each in there) < nodes.nodes:
            a_type = memory_of(snapshot.pool, nodes.instance_type) if nodes.instance_type else "a machine"
            return f"the next try of {nodes.task_id} needs {a_type}{' on demand' if nodes.market else ''}"
    return _CAME_ALONE


def _long_wanted(snapshot: PoolSnapshot) -> bool:
    """Return True if groups created by a live run's Ensure would be visible by now."""
    return any(snapshot.now - lease.created_at > SHOWN_AFTER for lease in snapshot.live_leases)


def _passed_over(snapshot: PoolSnapshot, placed: Mapping[str, int], short: int) -> Iterator[str]:
    """Yield which candidates had no machine, and what is tried instead; nothing if no node is missing."""
    if snapshot.pool.is_autoscaled or (not placed and short <= 0):
        return
    candidates = {group.name: str(group.candidate) for group in snapshot.groups}
    over = passed_over(snapshot.groups, snapshot.now)
    losses = losses_there(snapshot.groups, snapshot.now)
    yield from (f"{candidates[name]}: {each}" for name, each in losses.items())
    yield from (f"no {candidates[name]} ({each})" for name, each in over.items())
    if over and placed:
        yield f"trying {', '.join(candidates[name] for name in candidates if name in placed)}"
    elif over:
        name, first = min(over.items(), key=lambda item: item[1].until)
        yield f"nothing is left to try; {candidates[name]} is next, at {first.until:%H:%M}Z"


def _not_reserved(snapshot: PoolSnapshot, *, is_short: bool) -> Iterator[str]:
    """Yield why reservations give no machine, where nodes are missing, and where their machines are to be empty."""
    for group in snapshot.groups:
        if group.reserved and group.live and group.reserved.has_ended:
            yield f"{group.name} is emptied, and nodes come elsewhere: {group.reserved.why_not}"
        elif group.reserved and group.reserved.why_not and is_short:
            yield f"no {group.candidate}: {group.reserved.why_not}"


def _refusals_of_provisioners(snapshot: PoolSnapshot, machines: tuple[MachineStatus, ...]) -> Iterator[str]:
    """Yield what keeps provisioners from bringing a machine now; what has failed before is told to who waited then."""
    for group in snapshot.groups:
        if group.provisioner:
            yield from (f"{group.provisioner}: {issue}" for issue in group.issues)
            mine = (each.machine for each in machines if each.machine.group == group.name and not each.is_there)
            yield from (f"{group.provisioner} got no machine: {machine.lacks}" for machine in mine if machine.lacks)


def _sizes(snapshot: PoolSnapshot, grow: Mapping[str, int], shrink: tuple[str, ...]) -> Iterator[str]:
    for group in snapshot.groups:
        if group.name in grow:
            yield f"{group.name} {group.desired}->{grow[group.name]}, wanted by {wanted_by(snapshot)}"
        if group.name in shrink:
            yield f"{group.name} {group.desired}->{len(group.live)}: no longer requests machines that have not come"


def _waits(snapshot: PoolSnapshot, placed: Mapping[str, int]) -> Iterator[str]:
    for group in snapshot.groups:
        if placed.get(group.name) and group.status in COMING:
            done = "created" if group.status == "creating" else "updated"
            yield f"{group.name} grows to {placed[group.name]} when it has been {done}"


def _late(snapshot: PoolSnapshot, machines: tuple[MachineStatus, ...]) -> Iterator[str]:
    """Yield, for each machine that is slow to become usable, until when to wait for it."""
    replaced = {group.name for group in snapshot.groups if group.when_idle == "remove"}
    for each in machines:
        since = each.coming_since
        if each.machine.group in replaced and since is not None and snapshot.now - since > SLOW:
            from_when = f"since {since:%H:%M:%S}Z"
            # Its node may have been there, and gone: from here the two look alike.
            what = f"is not Ready {from_when}" if each.node else f"has no node in the cluster; it runs {from_when}"
            at = since + READY_WITHIN
            yield f"{each} {what}; it is replaced if it is not usable by {at:%H:%M:%S}Z"


def _late_of_provisioners(snapshot: PoolSnapshot, machines: tuple[MachineStatus, ...]) -> Iterator[str]:
    """Yield what each machine lacks that is slow to become usable, in its provisioner's words."""
    who = {group.name: group.provisioner for group in snapshot.groups}
    for each in machines:
        if each.since and each.lacks_for_long(snapshot.now):
            reason = f"{who[each.machine.group]}: {each.machine.lacks}"
            yield f"{each} was launched at {each.since:%H:%M:%S}Z, and pods cannot use it yet: {reason}"


def why_released(each: MachineStatus) -> str:
    if each.overdue:
        return f"the time of its run is over; pod {each.overdue[0]} ends with it"
    if each.is_ending:
        return "what is reserved for it ends"
    if each.is_shunned:
        return "its zone loses one machine after the other, and others come elsewhere"
    if each.node and each.node.bad_gpu:
        return f"no pod is to use its GPUs ({each.node.bad_gpu})"
    if each.state == "broken" and each.node:
        return f"it has not become Ready in time ({each.node.not_ready_reason})"
    if each.state == "broken":
        return f"it has no node in the cluster {READY_WITHIN / timedelta(minutes=1):.0f} minutes after its launch"
    return "no run wants it, and no pod holds it"


def _stuck(pod: Pod) -> str:
    return (
        f"pod {pod} has ended and is deleted, but its finalizer {', '.join(pod.finalizers)} keeps it in the cluster:"
        " see to the controller that takes it off. It holds no node"
    )


def _who_took(each: MachineStatus) -> str:
    if each.node and each.node.autoscaler_deleting:
        return "cluster-autoscaler is about to remove it"
    if each.node and each.node.other_pool:
        return f"it is in pool {each.node.other_pool}"
    return "it was cordoned externally"

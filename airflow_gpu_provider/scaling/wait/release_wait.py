"""ReleaseWait: waits until everything that only one run wanted is released."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_gpu_provider.clouds.answers import GroupUpdate
from airflow_gpu_provider.errors import GpuError, PoolNotReleased
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.apply.writes import Outcome
from airflow_gpu_provider.scaling.decide.decisions import Decision, decide, left_to_provisioner
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot, plural, wanted_nodes
from airflow_gpu_provider.scaling.wait.records import Progress, Record
from airflow_gpu_provider.times import format_seconds, format_time

_GOES_ON = "The next try continues where this one stopped; if it repeats,"


@dataclass(kw_only=True)
class ReleaseWait(Record):
    """ScaleDownSensor's wait: until everything that only this run wanted is released.

    Attributes:
        started, deadline: By this machine's clock until `release` has succeeded, and by the cluster's from then on.
    """

    key: DemandKey
    started: datetime
    deadline: datetime
    begun: bool = False

    def release(self, reconciler: Reconciler) -> Outcome:
        """Release what the run wanted; idempotent."""
        outcome = reconciler.release(self.key)
        if not self.begun:
            self.started, self.deadline = map(reconciler.clock.of_local, (self.started, self.deadline))
            self.begun = True
        return outcome

    def step(self, snapshot: PoolSnapshot) -> Progress:
        decision = decide(snapshot)
        pending = tuple(self._pending(snapshot, decision))
        kept = tuple(_kept_lines(snapshot))
        if not pending:
            return Progress(done=True, lines=kept, result=self._result(snapshot, kept))
        error = self._late(snapshot, decision, pending) if snapshot.now >= self.deadline else None
        return Progress(lines=(*pending, *kept), error=error)

    def _pending(self, snapshot: PoolSnapshot, decision: Decision) -> list[str]:
        """Return what is still to be released, as text."""
        lines = []
        shared = any(lease.live(snapshot.now) for lease in snapshot.leases if lease.key != self.key)
        for pod in snapshot.pods:
            if pod.run == self.key.hash and pod.holds_node(snapshot.now):
                state = "is ending" if pod.deleting else "has a result or log not collected yet"
                lines.append(f"waiting for pod {pod.namespace}/{pod.name}: it {state}")
            elif pod.deleting and pod.run is None and pod.holds_node(snapshot.now) and not shared:
                # For example, of a Deployment that the run has just deleted: nothing else would release its node.
                lines.append(f"waiting for pod {pod.namespace}/{pod.name}: it is ending")
        lines += [f"machine {machine.id} of {machine.group} is to be released" for machine in decision.release]
        lines += _after_updates(snapshot, decision)
        released = {machine.id for machine in decision.release}
        kept = (node for node in snapshot.nodes if node.name in decision.cordon and node.machine not in released)
        lines += [f"node {node.name} is to be cordoned: it is idle" for node in kept]
        lines += self._left_to_provisioners(snapshot)
        lines += [f"{group} is to stop requesting machines that do not come" for group in decision.shrink]
        lines += [f"the switch of {group} is to be removed" for group in decision.clear_switch]
        if snapshot.pool.is_autoscaled:
            going = (node.name for node in snapshot.nodes if node.autoscaler_deleting)
            lines += [f"waiting for cluster-autoscaler to finish removing node {name}" for name in going]
        live = {machine.id for group in snapshot.groups for machine in group.live}
        for group in snapshot.groups:
            for machine in group.machines:
                if machine.state == "terminating":
                    lines.append(f"waiting for machine {machine.id} of {group.name} to end")
        gone = [node for node in snapshot.nodes if node.machine not in live]
        lines += [f"waiting for node {node.name} to leave the cluster" for node in gone]
        return lines

    def _left_to_provisioners(self, snapshot: PoolSnapshot) -> Iterator[str]:
        """Yield what its provisioner is to remove, and why it keeps it, if it has said so since the wait began."""
        names = {group.name: group.provisioner for group in snapshot.groups}
        since = self.started.replace(microsecond=0)
        for each in left_to_provisioner(snapshot):
            who, kept = names[each.machine.group], snapshot.kept.get(each.machine.id)
            is_recent = kept is not None and (kept.reported_at is None or kept.reported_at >= since)
            why = f" ({who}: {kept.why})" if kept is not None and kept.why and is_recent else ""
            yield f"{each}: waiting for {who} to remove it, no run wants it{why}"

    def _late(self, snapshot: PoolSnapshot, decision: Decision, pending: tuple[str, ...]) -> GpuError:
        waited = format_seconds(snapshot.now - self.started)
        updates = _updates_waited_for(snapshot, decision).values()
        return PoolNotReleased(
            f"Pool {snapshot.pool.name} is not back to its size after {waited}: {'; '.join(pending)}.",
            " ".join((_what_to_do(snapshot), *(update.what_to_do for update in updates))),
            pool=snapshot.pool.name,
        )

    def _result(self, snapshot: PoolSnapshot, kept: tuple[str, ...]) -> dict[str, Any]:
        return {
            "pool": snapshot.pool.name,
            "nodes": len(snapshot.nodes),
            "desired": sum(group.desired for group in snapshot.groups),
            "kept": list(kept),
            "at": format_time(snapshot.now),
            "seconds": round((snapshot.now - self.started).total_seconds(), 1),
        }


def _what_to_do(snapshot: PoolSnapshot) -> str:
    claims = sorted(kept.claim for kept in snapshot.kept.values())
    if claims:
        return f"{_GOES_ON} have them removed: kubectl delete nodeclaim {' '.join(claims)}."
    return f"{_GOES_ON} end these machines in the cloud's console."


def _after_updates(snapshot: PoolSnapshot, decision: Decision) -> Iterator[str]:
    """Yield which machines stay until their group has been updated, and what to do if that takes long."""
    updates = _updates_waited_for(snapshot, decision)
    for each in decision.later:
        what = f" ({updates[each.group]})" if each.group in updates else ""
        yield f"machine {each.id} is to be released when {each.group} has been updated{what}"
    for name, update in updates.items():
        if update.is_long(snapshot.now):
            takes = format_seconds(update.takes)
            yield f"{name} is being updated for more than {takes} ({update}). {update.what_to_do}"


def _updates_waited_for(snapshot: PoolSnapshot, decision: Decision) -> dict[str, GroupUpdate]:
    """Return the updates that keep machines that no run wants, as far as the cloud reports them, by group."""
    waiting = {machine.group for machine in decision.later}
    return {group.name: group.update for group in snapshot.groups if group.update and group.name in waiting}


def _kept_lines(snapshot: PoolSnapshot) -> list[str]:
    lines: list[str] = []
    live = [machine for group in snapshot.groups for machine in group.live]
    if not live:
        return lines
    for lease in snapshot.leases:
        if lease.live(snapshot.now):
            lines.append(f"kept for {lease.key}: {plural(lease.nodes, 'node')} until {lease.until:%Y-%m-%d %H:%M}Z")
    leased = {lease.key.hash for lease in snapshot.leases if lease.live(snapshot.now)}
    for pod in snapshot.pods:
        if pod.run not in leased and not pod.deleting and pod.holds_node(snapshot.now):
            lines.append(f"kept for pod {pod.namespace}/{pod.name} on {pod.node or 'no node yet'}")
    lines += [f"kept: {group.name} has a minimum size of {group.keeps}" for group in snapshot.groups if group.keeps]
    if snapshot.pool.min_nodes and wanted_nodes(snapshot) == snapshot.pool.min_nodes:
        lines.append(f"kept: min_nodes={snapshot.pool.min_nodes}")
    return lines

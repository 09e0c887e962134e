"""Whether a wait for a pool is over: pure steps over a snapshot.

Each wait is a small record with `step(snapshot)`. It says done, or why not yet in words, or which error ends the wait.
The blocking operator, the sensor's poke and the trigger all drive the same step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, Self

from airflow_gpu_provider.cluster.clock import Clock
from airflow_gpu_provider.cluster.demand import DemandKey, DemandLease
from airflow_gpu_provider.cluster.nodes import Node
from airflow_gpu_provider.errors import (
    GpuError,
    GpusNotAllocatable,
    GroupFailed,
    NodesNotReady,
    PoolNotReleased,
)
from airflow_gpu_provider.platforms.base import GroupUpdate
from airflow_gpu_provider.records import Record
from airflow_gpu_provider.scaling import hard_to_get
from airflow_gpu_provider.scaling.autoscaling import autoscaler_lines, told
from airflow_gpu_provider.scaling.decisions import Decision, decide, left_to_provisioner, usable_needed, wanted_nodes
from airflow_gpu_provider.scaling.hard_to_get import Ask
from airflow_gpu_provider.scaling.shortage import launches_refused, no_capacity, quota_exceeded
from airflow_gpu_provider.scaling.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.supply import usable_nodes
from airflow_gpu_provider.scaling.wanted import own_lease

WaitFor = Literal["ready", "gpus", "groups"]

_GOES_ON = "The next try continues where this one stopped; if it repeats, end these machines in the cloud's console."


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a wait stands.

    Attributes:
        done: There is nothing left to wait for.
        lines: The present state, in words; the waiting process logs each line when it is new.
        error: The error that ends the wait.
        ask: What the run wants from now on; the waiting process writes it, and steps again.
        result: What the task returns, once done.
    """

    done: bool = False
    lines: tuple[str, ...] = ()
    error: GpuError | None = None
    ask: Ask | None = None
    result: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class NodesWait(Record):
    """EnsureGpuPoolOperator's wait: until the run's share of the pool's nodes is Ready, or has allocatable GPUs.

    Attributes:
        key: Whose demand it is.
        wait_for: "ready": nodes are Ready; "gpus": nvidia.com/gpu is allocatable on them too. "groups": an autoscaler
            can use the node groups; nodes come when pods are pending.
        started: When the wait began.
        deadline: When it fails.
        nodes: How many nodes the run wants; None in a record of the first release: as many as its lease says.
        at_least: How few nodes suffice when the others do not come. None: no fewer.
        all_or_nothing: Release the nodes that came when not all come together, and try again later.
        patience: How long one attempt takes at most. None: until the deadline.
        latest: When Airflow ends the run in any case; no demand outlasts that. None: never.
    """

    key: DemandKey
    wait_for: WaitFor
    started: datetime
    deadline: datetime
    nodes: int | None = None
    at_least: int | None = None
    all_or_nothing: bool = False
    patience: timedelta | None = None
    latest: datetime | None = None

    def step(self, snapshot: PoolSnapshot) -> Progress:
        if self.wait_for == "groups":
            return self._groups_step(snapshot)
        lease = own_lease(snapshot, self.key)
        if lease.resume_at:
            return self._rest(snapshot, lease, lease.resume_at)
        needed = usable_needed(snapshot, self.key)
        usable = [node for node in usable_nodes(snapshot) if self.wait_for == "ready" or node.gpus > 0]
        lines = (*_group_lines(snapshot), *self._node_lines(snapshot), *autoscaler_lines(snapshot, self.started))
        if len(usable) >= needed:
            return Progress(done=True, lines=lines, result=self._result(snapshot, usable))
        missing = needed - len(usable)
        ask, error = self._ask(snapshot, lease, missing), _failed_groups(snapshot)
        fewer_will_do = ask is not None and ask.after.nodes > 0
        if error is None and not fewer_will_do:
            error = self._hopeless(snapshot, missing)
        is_last = ask is not None and ask.after.resume_at is not None and ask.after.resume_at >= self.deadline
        if error is None and (is_last or (ask is None and snapshot.now >= self.deadline)):
            error = self._late(snapshot, needed, len(usable))
        return Progress(lines=lines, error=error, ask=None if error else ask)

    def _ask(self, snapshot: PoolSnapshot, lease: DemandLease, missing: int) -> Ask | None:
        """Return what to want from now on, where not all nodes come."""
        got = max(0, lease.nodes - missing)
        patience = self.patience or self.deadline - self.started
        is_over = hard_to_get.is_over(snapshot, lease, self.started, patience)
        if is_over or hard_to_get.nothing_can_come(snapshot, missing):
            if self.at_least is not None and got >= self.at_least:
                return hard_to_get.fewer(lease, got)
            if self.all_or_nothing and snapshot.now < self.deadline:
                return hard_to_get.let_go(snapshot, lease, got)
        if not self._keeps_trying or snapshot.now >= self.deadline:
            return None
        return hard_to_get.more_time(snapshot, lease, self.latest)

    def _rest(self, snapshot: PoolSnapshot, lease: DemandLease, resume_at: datetime) -> Progress:
        """Return where the wait stands between two attempts."""
        nodes = self.nodes or 1
        if snapshot.now >= self.deadline:
            return Progress(error=self._late(snapshot, nodes, 0))
        if snapshot.now >= resume_at:
            return Progress(ask=hard_to_get.try_again(snapshot, lease, nodes, self.latest))
        times = f"{lease.attempts} attempt{'s' * (lease.attempts > 1)}"
        return Progress(lines=(f"not all {nodes} nodes came in {times}; the next begins at {resume_at:%H:%M:%S}Z",))

    @property
    def _keeps_trying(self) -> bool:
        return self.patience is not None and self.deadline - self.started > self.patience

    def _hopeless(self, snapshot: PoolSnapshot, missing: int) -> GpuError | None:
        """Return an error if waiting is useless: each launch would be refused again, or exceeds a quota.

        A quota is waited for if the user asked for it, and while machines of the pool itself are terminating.
        """
        found = hard_to_get.tried(snapshot, self.started)
        kinds = {each.kind for each in found}
        is_met = any(each.times for each in found) and kinds <= {"quota", "refused"}
        if not is_met or not hard_to_get.nothing_can_come(snapshot, missing):
            return None
        if "quota" not in kinds:
            return launches_refused(snapshot, found)
        is_leaving = any(machine.state == "terminating" for group in snapshot.groups for machine in group.machines)
        return None if self._keeps_trying or is_leaving else quota_exceeded(snapshot, found)

    def _groups_step(self, snapshot: PoolSnapshot) -> Progress:
        lines = tuple(_group_lines(snapshot))
        if told(snapshot):
            return Progress(done=True, lines=lines, result=self.as_it_is(snapshot))
        error = _failed_groups(snapshot)
        if error is None and snapshot.now >= self.deadline:
            error = GroupFailed(
                f"Pool {snapshot.pool.name}: its node groups are not ready for an autoscaler after"
                f" {format_seconds(snapshot.now - self.started)} ({'; '.join(lines) or 'they do not exist'}).",
                "See the node groups' health in the console, or raise the timeout.",
                pool=snapshot.pool.name,
            )
        return Progress(lines=lines, error=error)

    def _node_lines(self, snapshot: PoolSnapshot) -> list[str]:
        lines = []
        for node in snapshot.nodes:
            if not node.ready:
                lines.append(f"node {node.name} joined, not Ready yet{_because(node.not_ready_reason)}")
            elif node.cordoned:
                lines.append(f"node {node.name} is cordoned")
            elif node.gpus == 0:
                lines.append(f"node {node.name} is Ready, no allocatable GPUs yet")
            else:
                lines.append(f"node {node.name} is Ready, nvidia.com/gpu allocatable: {node.gpus}")
        return lines

    def _late(self, snapshot: PoolSnapshot, needed: int, usable: int) -> GpuError:
        pool = snapshot.pool.name
        waited = format_seconds(snapshot.now - self.started)
        have = f"Pool {pool}: {usable} of {needed} nodes after {waited}."
        failures = [group.launch_failure for group in snapshot.groups if group.launch_failure]
        found = hard_to_get.tried(snapshot, self.started)
        machines = [machine for group in snapshot.groups for machine in group.live]
        joined = {node.machine for node in snapshot.nodes}
        without_gpus = [node.name for node in snapshot.nodes if node.usable and node.gpus == 0]
        if without_gpus and self.wait_for == "gpus":
            return GpusNotAllocatable(
                f"{have} nvidia.com/gpu is not allocatable on {', '.join(without_gpus)}.",
                "Look at the device plugin's pods on these nodes; is InstallDevicePluginOperator in the DAG?",
                pool=pool,
            )
        missing = [machine.id for machine in machines if machine.id not in joined]
        not_ready = [f"{node.name}{_because(node.not_ready_reason)}" for node in snapshot.nodes if not node.ready]
        if missing or not_ready:
            return NodesNotReady(
                f"{have} Not joined: {', '.join(missing) or 'none'}; not Ready: {', '.join(not_ready) or 'none'}.",
                "Check the node role's permissions, the subnets' way to the API server, and the machines' console.",
                pool=pool,
            )
        if snapshot.groups and all(group.when_idle != "remove" for group in snapshot.groups):
            there = ", ".join(f"{node.name}{' (cordoned)' * node.cordoned}" for node in snapshot.nodes) or "none"
            return NodesNotReady(
                f"{have} The external nodes that have joined: {there}.",
                "Let the missing nodes join, uncordon them, or want fewer.",
                pool=pool,
            )
        if error := no_capacity(snapshot, found, have=have, more_time_by="give_up_after"):
            return error
        reasons = [*(failure.message for failure in failures), *autoscaler_lines(snapshot, self.started)]
        said = "; ".join(reasons) or "the cloud gives no reason"
        return NodesNotReady(
            f"{have} No machine came: {said}.", "See the node groups' health in the console.", pool=pool
        )

    def as_it_is(self, snapshot: PoolSnapshot) -> dict[str, Any]:
        """Return the result without a wait: the nodes that are usable now."""
        return {**self._result(snapshot, list(usable_nodes(snapshot))), "timeline": []}

    def _result(self, snapshot: PoolSnapshot, usable: list[Node]) -> dict[str, Any]:
        got = own_lease(snapshot, self.key).nodes
        market = {g.name: g.candidate.market for g in snapshot.groups}
        group_of = {m.id: g for g in snapshot.groups for m in g.machines}
        nodes = []
        for node in usable:
            group = group_of.get(node.machine)
            nodes.append(
                {
                    "name": node.name,
                    "machine": node.machine,
                    "group": group.name if group else None,
                    "zone": node.zone,
                    "instance_type": node.instance_type,
                    "capacity_type": market[group.name] if group else None,
                    "gpus": node.gpus,
                }
            )
        return {
            "pool": snapshot.pool.name,
            "nodes": nodes,
            "gpus": sum(node.gpus for node in usable),
            "wanted": self.nodes or got,
            "got": got,
            "tried": [each.to_result() for each in hard_to_get.tried(snapshot, self.started) if each.times],
            "timeline": self._timeline(snapshot, usable),
        }

    def _timeline(self, snapshot: PoolSnapshot, usable: list[Node]) -> list[dict[str, Any]]:
        """Return the phases, in seconds, in which the newest machine joined; an existing node has none."""
        launched = {m.id: m.launched_at for g in snapshot.groups for m in g.machines}
        new = [node for node in usable if node.created_at >= self.started]
        if not new:
            return [{"phase": "nodes were there", "seconds": _seconds(snapshot.now - self.started)}]
        last = max(new, key=lambda node: node.created_at)
        launch = launched.get(last.machine) or last.created_at
        ends = (("machine launched", launch), ("node joined", last.created_at), ("node ready", snapshot.now))
        phases, start = [], self.started
        for phase, end in ends:
            phases.append({"phase": phase, "seconds": _seconds(max(end, start) - start)})
            start = max(end, start)
        return phases


@dataclass(frozen=True, kw_only=True)
class ReleaseWait(Record):
    """ScaleDownSensor's wait: until everything that only this run wanted is released."""

    key: DemandKey
    started: datetime
    deadline: datetime

    def step(self, snapshot: PoolSnapshot) -> Progress:
        decision = decide(snapshot)
        pending = tuple(self._pending(snapshot, decision))
        kept = tuple(_kept_lines(snapshot))
        if not pending:
            return Progress(done=True, lines=kept, result=self._result(snapshot, kept))
        error = self._late(snapshot, decision, pending) if snapshot.now >= self.deadline else None
        return Progress(lines=(*pending, *kept), error=error)

    def _pending(self, snapshot: PoolSnapshot, decision: Decision) -> list[str]:
        """Return what is still to be released, in words."""
        lines = []
        shared = any(lease.live(snapshot.now) for lease in snapshot.leases if lease.key != self.key)
        for pod in snapshot.pods:
            if pod.run == self.key.hash and pod.holds_node(snapshot.now):
                state = "is ending" if pod.deleting else "has a result or log not collected yet"
                lines.append(f"waiting for pod {pod.namespace}/{pod.name}: it {state}")
            elif pod.deleting and pod.run is None and pod.holds_node(snapshot.now) and not shared:
                # A Deployment's, say, that the run has just deleted: nothing else would release its node.
                lines.append(f"waiting for pod {pod.namespace}/{pod.name}: it is ending")
        lines += [f"machine {machine.id} of {machine.group} is to be released" for machine in decision.release]
        lines += _after_updates(snapshot, decision)
        released = {machine.id for machine in decision.release}
        kept = (node for node in snapshot.nodes if node.name in decision.cordon and node.machine not in released)
        lines += [f"node {node.name} is to be cordoned: it is idle" for node in kept]
        who = {group.name: group.provisioner for group in snapshot.groups}
        for each in left_to_provisioner(snapshot):
            lines.append(f"{each}: waiting for {who[each.machine.group]} to remove it, no run wants it")
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

    def by(self, clock: Clock) -> Self:
        """Return the wait with its times converted from this machine's clock to the cluster's."""
        return replace(self, started=clock.of_local(self.started), deadline=clock.of_local(self.deadline))

    def _late(self, snapshot: PoolSnapshot, decision: Decision, pending: tuple[str, ...]) -> GpuError:
        waited = format_seconds(snapshot.now - self.started)
        return PoolNotReleased(
            f"Pool {snapshot.pool.name} is not back to its size after {waited}: {'; '.join(pending)}.",
            " ".join((_GOES_ON, *(update.what_to_do for update in _updates_waited_for(snapshot, decision).values()))),
            pool=snapshot.pool.name,
        )

    def _result(self, snapshot: PoolSnapshot, kept: tuple[str, ...]) -> dict[str, Any]:
        return {
            "pool": snapshot.pool.name,
            "nodes": len(snapshot.nodes),
            "desired": sum(group.desired for group in snapshot.groups),
            "kept": list(kept),
            "seconds": _seconds(snapshot.now - self.started),
        }


def _after_updates(snapshot: PoolSnapshot, decision: Decision) -> Iterator[str]:
    """Yield which machines stay until their group has been updated, and what to do where that takes long."""
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


def _group_lines(snapshot: PoolSnapshot) -> list[str]:
    lines = []
    for group in snapshot.groups:
        if group.status == "creating":
            lines.append(f"node group {group.name} is being created")
        if group.unfilled and group.launch_failure:
            lines.append(f"no {group.candidate}: {group.launch_failure.message}")
        lines += [
            f"machine {machine.id} of {group.name} is {'starting' if machine.state == 'pending' else 'running'}"
            for machine in group.live
            if machine.id not in {node.machine for node in snapshot.nodes}
        ]
    return lines


def _kept_lines(snapshot: PoolSnapshot) -> list[str]:
    lines: list[str] = []
    live = [machine for group in snapshot.groups for machine in group.live]
    if not live:
        return lines
    for lease in snapshot.leases:
        if lease.live(snapshot.now):
            lines.append(f"kept for {lease.key}: {lease.nodes} nodes until {lease.until:%Y-%m-%d %H:%M}Z")
    leased = {lease.key.hash for lease in snapshot.leases if lease.live(snapshot.now)}
    for pod in snapshot.pods:
        if pod.run not in leased and not pod.deleting and pod.holds_node(snapshot.now):
            lines.append(f"kept for pod {pod.namespace}/{pod.name} on {pod.node or 'no node yet'}")
    lines += [f"kept: {group.name} has a minimum size of {group.keeps}" for group in snapshot.groups if group.keeps]
    if snapshot.pool.min_nodes and wanted_nodes(snapshot) == snapshot.pool.min_nodes:
        lines.append(f"kept: min_nodes={snapshot.pool.min_nodes}")
    return lines


def _failed_groups(snapshot: PoolSnapshot) -> GpuError | None:
    """Return an error if no group can ever provide a node: one that works is enough to continue."""
    failed = [group for group in snapshot.groups if group.status == "failed"]
    if not failed or len(failed) < len(snapshot.groups):
        return None
    issues = "; ".join(f"{group.name}: {', '.join(group.issues) or 'no reason given'}" for group in failed)
    return GroupFailed(
        f"Pool {snapshot.pool.name}: its node groups failed ({issues}).",
        "Correct what the issues name, delete the failed groups, and run the task again.",
        pool=snapshot.pool.name,
    )


def format_seconds(duration: timedelta) -> str:
    """Return a duration in readable form: 42 s, 3 min 10 s, 2 h 5 min."""
    seconds = round(duration.total_seconds())
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""


def _seconds(duration: timedelta) -> float:
    return round(duration.total_seconds(), 1)

"""NodesWait: waits until the run's share of a pool's nodes is up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from airflow_gpu_provider.clouds.backoff import OFF_LIMITS, passed_over
from airflow_gpu_provider.clouds.group_checks import by_reason
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.errors import GpuError, GpusNotAllocatable, GroupFailed, NodesNotReady
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.decide import scarce_capacity
from airflow_gpu_provider.scaling.decide.gangs import NO_GANG, GangNodes
from airflow_gpu_provider.scaling.decide.scarce_capacity import DemandChange
from airflow_gpu_provider.scaling.decide.shortage import (
    groups_are_ready,
    launches_refused,
    no_capacity,
    quota_exceeded,
)
from airflow_gpu_provider.scaling.decide.snapshot import (
    PoolSnapshot,
    check_money,
    own_lease,
    usable_needed,
    usable_nodes,
)
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.wait.records import Progress, Record, phase
from airflow_gpu_provider.times import format_seconds

WaitFor = Literal["ready", "gpus", "groups"]


@dataclass(frozen=True, kw_only=True)
class NodesWait(Record):
    """EnsureGpuPoolOperator's wait: until the run's share of the pool's nodes is Ready, or has allocatable GPUs.

    Attributes:
        key: Whose demand it is.
        wait_for: "ready": nodes are Ready; "gpus": nvidia.com/gpu is allocatable on them too. "groups": an autoscaler
            can use the node groups; nodes come when pods are pending. So it is of groups that are only prepared.
        nodes: How many nodes the run wants; None: as many as its Lease says. 0: none, and it has no Lease.
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
        check_money(snapshot, self.key)
        if self.wait_for == "groups":
            return self._groups_step(snapshot)
        lease = own_lease(snapshot, self.key)
        if lease.resume_at:
            return self._rest(snapshot, lease, lease.resume_at)
        needed = usable_needed(snapshot, self.key)
        usable = [node for node in usable_nodes(snapshot) if self.wait_for == "ready" or node.gpus > 0]
        lines = (
            *_group_lines(snapshot),
            *self._node_lines(snapshot),
            *scarce_capacity.reservation_ends(snapshot, lease),
        )
        gang = GangNodes.of(snapshot, lease, usable)
        if len(usable) >= needed and gang.missing == 0:
            return Progress(done=True, lines=lines, result=self._result(snapshot, usable))
        lines = (*lines, *gang.lines, *self._ends_before_next_try(snapshot))
        missing = max(needed - len(usable), gang.missing)
        ask, error = self._ask(snapshot, lease, missing), _failed_groups(snapshot) or gang.error
        fewer_will_do = ask is not None and ask.after.nodes > 0
        if error is None and not fewer_will_do:
            error = self._hopeless(snapshot, lease, missing)
        is_last = ask is not None and ask.after.resume_at is not None and ask.after.resume_at >= self.deadline
        if error is None and (is_last or (ask is None and snapshot.now >= self.deadline)):
            error = self._late(snapshot, needed, len(usable), gang)
        return Progress(lines=lines, error=error, ask=None if error else ask)

    def _ends_before_next_try(self, snapshot: PoolSnapshot) -> list[str]:
        """Return that no group is tried again within this wait, if all are passed over for longer."""
        over = {} if snapshot.pool.is_autoscaled else passed_over(snapshot.groups, snapshot.now)
        with_room = [each.name for each in snapshot.groups if each.status not in OFF_LIMITS and each.has_room]
        if not with_room or any(name not in over for name in with_room):
            return []
        next_try = min(over[name].until for name in with_room)
        if next_try < self.deadline:
            return []
        return [f"this wait ends at {self.deadline:%H:%M:%S}Z, before the next try at {next_try:%H:%M:%S}Z"]

    def _ask(self, snapshot: PoolSnapshot, lease: DemandLease, missing: int) -> DemandChange | None:
        """Return what to want from now on if not all nodes come."""
        got = max(0, lease.nodes - missing)
        patience = self.patience or self.deadline - self.started
        is_over = scarce_capacity.is_over(snapshot, lease, self.started, patience)
        if is_over or scarce_capacity.nothing_can_come(snapshot, lease, missing):
            if self.at_least is not None and got >= self.at_least:
                return scarce_capacity.fewer(lease, got)
            if self.all_or_nothing and snapshot.now < self.deadline:
                return scarce_capacity.back_off(snapshot, lease, got)
        if not self._keeps_trying or snapshot.now >= self.deadline:
            return None
        return scarce_capacity.more_time(snapshot, lease, self.latest)

    def _rest(self, snapshot: PoolSnapshot, lease: DemandLease, resume_at: datetime) -> Progress:
        """Return the state of the wait between two attempts, or for a reservation that is to begin."""
        nodes = self.nodes or 1
        if snapshot.now >= self.deadline:
            return Progress(error=self._late(snapshot, nodes, 0, NO_GANG))
        if not lease.attempts and (group := scarce_capacity.awaited(snapshot.groups, self.deadline)):
            return Progress(lines=(scarce_capacity.why_awaited(group),))
        if snapshot.now >= resume_at or not lease.attempts:
            return Progress(ask=scarce_capacity.try_again(snapshot, lease, nodes, self.latest))
        times = f"{lease.attempts} attempt{'s' * (lease.attempts > 1)}"
        return Progress(lines=(f"not all {nodes} nodes came in {times}; the next begins at {resume_at:%H:%M:%S}Z",))

    @property
    def _keeps_trying(self) -> bool:
        return self.patience is not None and self.deadline - self.started > self.patience

    def _hopeless(self, snapshot: PoolSnapshot, lease: DemandLease, missing: int) -> GpuError | None:
        """Return an error if waiting is useless: each launch would be refused again, or exceeds a quota.

        A quota is waited for if the user asked for it, and while machines of the pool itself are terminating.
        """
        found = scarce_capacity.tried(snapshot, self.started)
        kinds = {each.kind for each in found} - {"reserved"}
        is_met = any(each.times for each in found) and kinds <= {"quota", "refused"}
        if not is_met or not scarce_capacity.nothing_can_come(snapshot, lease, missing):
            return None
        if "quota" not in kinds:
            return launches_refused(snapshot, found)
        is_leaving = any(machine.state == "terminating" for group in snapshot.groups for machine in group.machines)
        return None if self._keeps_trying or is_leaving else quota_exceeded(snapshot, found)

    def _groups_step(self, snapshot: PoolSnapshot) -> Progress:
        lines = tuple(_group_lines(snapshot))
        error = _failed_groups(snapshot)
        if error is None and groups_are_ready(snapshot):
            return Progress(done=True, lines=lines, result=self.as_it_is(snapshot))
        if error is None and snapshot.now >= self.deadline:
            error = GroupFailed(
                f"Pool {snapshot.pool.name}: its node groups are not ready after"
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
            elif node.leaving:
                lines.append(f"node {node.name} is being removed: {node.leaving}")
            elif node.cordoned:
                lines.append(f"node {node.name} is cordoned")
            elif node.gpus == 0:
                lines.append(f"node {node.name} is Ready, no allocatable GPUs yet")
            else:
                lines.append(f"node {node.name} is Ready, nvidia.com/gpu allocatable: {node.gpus}")
        return lines

    def _late(self, snapshot: PoolSnapshot, needed: int, usable: int, gang: GangNodes) -> GpuError:
        pool = snapshot.pool.name
        waited = format_seconds(snapshot.now - self.started)
        have = f"Pool {pool}: {gang.have or f'{usable} of {needed} nodes'} after {waited}."
        failures = [group.launch_failure for group in snapshot.groups if group.launch_failure]
        found = scarce_capacity.tried(snapshot, self.started)
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
        reasons = "; ".join(failure.message for failure in failures) or "the cloud gives no reason"
        return NodesNotReady(
            f"{have} No machine came: {reasons}.", "See the node groups' health in the console.", pool=pool
        )

    def as_it_is(self, snapshot: PoolSnapshot) -> dict[str, Any]:
        """Return the result without a wait: the nodes that are usable now."""
        usable = [] if self.nodes == 0 else list(usable_nodes(snapshot))
        return {**self._result(snapshot, usable), "timeline": []}

    def _result(self, snapshot: PoolSnapshot, usable: list[Node]) -> dict[str, Any]:
        got = 0 if self.nodes == 0 else own_lease(snapshot, self.key).nodes
        found = scarce_capacity.tried(snapshot, self.started)
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
            "tried": [
                *(each.to_result() for each in found if each.times or each.is_reserved),
                *scarce_capacity.less_preferred(snapshot),
            ],
            "timeline": self._timeline(snapshot, usable),
        }

    def _timeline(self, snapshot: PoolSnapshot, usable: list[Node]) -> list[dict[str, Any]]:
        """Return the phases, in seconds, in which the newest machine joined; an existing node has none."""
        launched = {m.id: (m.launched_at, g.reserved) for g in snapshot.groups for m in g.machines}
        new = [node for node in usable if node.created_at >= self.started]
        if not new:
            return [phase("nodes were there", self.started, snapshot.now)]
        last = max(new, key=lambda node: node.created_at)
        launch, reserved = launched.get(last.machine, (None, None))
        ends = [("machine launched", launch or last.created_at), ("node joined", last.created_at)]
        if reserved and reserved.began_at and reserved.began_at > self.started:
            ends.insert(0, ("reservation began", reserved.began_at))
        ends.append(("node ready", snapshot.now))
        phases, start = [], self.started
        for name, end in ends:
            phases.append(phase(name, start, max(end, start)))
            start = max(end, start)
        return phases


def _group_lines(snapshot: PoolSnapshot) -> list[str]:
    lines, joined = [], {node.machine for node in snapshot.nodes}
    for group in snapshot.groups:
        if group.status == "creating":
            lines.append(f"node group {group.name} is being created")
        if group.status == "upgrading":
            lines.append(f"node group {group.name} is being updated, and has no machines until then")
        if group.unfilled and group.launch_failure:
            lines.append(f"no {group.candidate}: {group.launch_failure.message}")
        lines += [
            f"machine {machine.id} of {group.name} is {'starting' if machine.state == 'pending' else 'running'}"
            for machine in group.live
            if machine.id not in joined
        ]
    return lines


def _failed_groups(snapshot: PoolSnapshot) -> GpuError | None:
    """Return an error if no group can ever provide a node: one that works is enough to continue."""
    failed = [group for group in snapshot.groups if group.status == "failed"]
    if not failed or len(failed) < len(snapshot.groups):
        return None
    why = by_reason({group.name: ", ".join(group.issues) or "no reason given" for group in failed})
    return GroupFailed(
        f"Pool {snapshot.pool.name}: its node groups failed ({why}).",
        "Correct what the issues name, delete the failed groups, and run the task again.",
        pool=snapshot.pool.name,
    )


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""

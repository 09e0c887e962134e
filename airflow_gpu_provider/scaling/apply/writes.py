"""The writes of one decision, and what they did; the pool's lock is checked before each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

from airflow_gpu_provider.clouds.base import Machine, Platform
from airflow_gpu_provider.cluster.api.clock import Clock
from airflow_gpu_provider.cluster.api.nodes import (
    cordon,
    label_node,
    list_nodes,
    list_unlabelled_nodes,
    read_nodes,
    uncordon,
)
from airflow_gpu_provider.cluster.api.pods import list_pods_on
from airflow_gpu_provider.cluster.api.rest import ApiClient
from airflow_gpu_provider.cluster.api.threads import AT_ONCE, batches, in_parallel
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.cluster.model.pool_pod import Pod
from airflow_gpu_provider.cluster.model.refusals import ObjectNotFound
from airflow_gpu_provider.ledger.ledger import Ledger
from airflow_gpu_provider.scaling.apply.admission import GangUpdate
from airflow_gpu_provider.scaling.decide.decisions import Decision
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot, is_overdue
from airflow_gpu_provider.scaling.state.demand_leases import delete_demand
from airflow_gpu_provider.scaling.state.lock import PoolLock
from airflow_gpu_provider.scaling.state.recent_writes import RecentWrites

CORDON_TO_RECHECK = timedelta(seconds=1)
"""How long to wait for a binding that the scheduler had decided before it saw the cordon.

cluster-autoscaler waits too, for 5 seconds (--node-delete-delay-after-taint). Without volumes to attach, as on idle
nodes, a binding takes milliseconds.
"""

FRESH = timedelta(seconds=5)
"""How old the last check of a machine may be when it is removed."""

RELEASE_FOR = timedelta(seconds=20)
"""For how long one decision removes machines; the next one removes the rest, so that other processes get the lock."""

_BETWEEN_CHECKS = 64  # writes, several at a time, between two checks of the lock

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a reconcile saw, decided, and did.

    Attributes:
        snapshot: The pool as it was read, before the writes; with the demand that the call itself wrote or deleted.
        log_lines: What was done and why, for the task's log.
        gangs: The update for waits for gangs; None if gangs were not checked.
        uncollected: Pods that had succeeded, and were deleted although nobody had read their log and result.
    """

    snapshot: PoolSnapshot
    decision: Decision
    log_lines: tuple[str, ...]
    gangs: GangUpdate | None = None
    uncollected: tuple[str, ...] = ()


def do_nothing() -> None:
    return


@dataclass(kw_only=True)
class Writes:
    """Carries out one decision, step by step in the order of its fields, and keeps the lines to log.

    Args:
        holder: Who cordons nodes, for people.
        at_once: How many nodes are written to at the same time.
    """

    lock: PoolLock
    snapshot: PoolSnapshot
    decision: Decision
    platform: Platform
    api: ApiClient
    clock: Clock
    ledger: Ledger
    holder: str
    at_once: int

    def __post_init__(self) -> None:
        self._pool = self.snapshot.pool
        self._nodes = {node.name: node for node in self.snapshot.nodes}
        self._log_lines = list(self.decision.notes)
        self._recent = RecentWrites.parse(self.lock.memo)

    def carry_out(self, write_demand: Callable[[], None] = do_nothing) -> Outcome:
        """Write the decision, and the demand that it serves before the sizes: never demand without its switch."""
        self._prepare_groups()
        write_demand()
        self._each(self._label, [self._nodes[name] for name in self.decision.label])
        self._uncordon([self._nodes[name] for name in self.decision.uncordon])
        self._grow(self._shrink())
        self.ledger.machines(self.snapshot.groups, self.snapshot.nodes, self.snapshot.now)
        self._release()
        for key in self.decision.delete_demand:
            self.ledger.end(key, self.snapshot.now)
            self.lock.check()
            delete_demand(self.api, key)
        return Outcome(snapshot=self.snapshot, decision=self.decision, log_lines=tuple(self._log_lines))

    def _prepare_groups(self) -> None:
        """Write to the groups what has to precede demand: launches allowed, the switch, the tags."""
        platform, decision = self.platform, self.decision
        if decision.resume:
            self.lock.check()
            platform.resume_launches(decision.resume)
            self._log_lines.append(
                f"resumed launches of {', '.join(decision.resume)}: the process that suspended them died"
            )
        for group, at in decision.switch.items():
            self.lock.check()
            platform.schedule_scale_to_zero([group], at)
        if decision.clear_switch:
            self.lock.check()
            platform.cancel_scale_to_zero(decision.clear_switch)
        if decision.update_tags:
            self.lock.check()
            platform.update_autoscaler_tags(decision.update_tags)
            if self.snapshot.pool.is_autoscaled:
                self._log_lines.append(f"set cluster-autoscaler's tags on {', '.join(decision.update_tags)}")

    def _shrink(self) -> bool:
        """Return True if all groups that were to be shrunk are: a launch in progress can prevent it."""
        refused = []
        for group in self.decision.shrink:
            self.lock.check()
            sizes = self.platform.shrink_unfilled([group])
            for name, size in sizes.items():
                self._keep(self._recent.with_size(name, size, self.clock.now()))
            if group not in sizes:
                refused.append(group)
                self._log_lines.append(f"left {group} as it is: its missing machines have come, or are being launched")
        return not refused

    def _grow(self, with_new_machines: bool) -> None:
        groups = {group.name: group for group in self.snapshot.groups}
        for name, size in self.decision.grow.items():
            # Another group may still get a machine, which could be one too many: growth waits for the next check.
            size = size if with_new_machines else len(groups[name].live)
            if size > groups[name].desired:
                self.lock.check()
                self.platform.grow({name: size})
                self._keep(self._recent.with_size(name, size, self.clock.now()))

    def _keep(self, recent: RecentWrites) -> None:
        """Record the writes for the next holder, to whom the cloud may still show the old state."""
        self._recent = recent
        self.lock.memo = recent.dump()

    def _each(self, write: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """Write for each item, several at a time, and return the results; the lock is checked in between."""
        done: list[_R] = []
        for some in batches(items, _BETWEEN_CHECKS):
            self.lock.check()
            done += in_parallel(write, some, at_once=self.at_once)
        return done

    def _label(self, node: Node) -> None:
        with suppress(ObjectNotFound):  # it was just deleted; the next look sees what is left
            # External groups have taints of their own.
            taints = self._pool.parsed_taints if self._pool.manage == "full" else ()
            label_node(self.api, node, self._pool.labels, taints)

    def _cordon(self, node: Node) -> bool:
        try:
            return cordon(self.api, node, by=f"{self.holder} at {self.clock.now():%Y-%m-%dT%H:%M:%SZ}")
        except ObjectNotFound:
            return False  # it was just deleted; the next look sees what is left

    def _uncordon(self, nodes: Sequence[Node]) -> None:
        def undo(node: Node) -> bool:
            try:
                uncordon(self.api, node)
            except ObjectNotFound:
                return False
            return True

        done = zip(nodes, self._each(undo, nodes), strict=True)
        self._log_lines += [f"uncordoned node {node.name}: it stays" for node, is_there in done if is_there]

    # -- releasing machines ----------------------------------------------------------------------------------

    def _release(self) -> None:
        to_sign = [self._nodes[name] for name in self.decision.cordon]
        done = zip(to_sign, self._each(self._cordon, to_sign), strict=True)
        signed = {node.name for node, is_ours in done if is_ours}
        if signed:
            self.clock.sleep(CORDON_TO_RECHECK.total_seconds())
        by_machine = {node.machine: node for node in self.snapshot.nodes}
        without = [machine for machine in self.decision.release if machine.id not in by_machine]
        pairs = [(machine, by_machine[machine.id]) for machine in self.decision.release if machine.id in by_machine]
        until = self.clock.monotonic() + RELEASE_FOR.total_seconds()
        self._release_all(without, self._not_joined, until)
        closed = {machine.id: node for machine, node in pairs if node.cordoned or node.name in signed}
        is_closed = [machine for machine, _ in pairs if machine.id in closed]
        self._release_all(is_closed, lambda some: self._still_idle(some, closed), until)

    def _release_all(
        self, machines: Sequence[Machine], look: Callable[[Sequence[Machine]], list[Machine]], until: float
    ) -> None:
        """Remove machines, after each check as many as possible before it is outdated.

        `look` returns those that may be removed. If checking all of them takes too long to remove any, it checks a few;
        the next decision removes the rest.
        """
        clock, at_a_look = self.clock, len(machines)
        while machines and clock.monotonic() < until:
            looked_at = clock.monotonic()
            some, later = machines[:at_a_look], machines[at_a_look:]
            fit = look(some)
            gone = self._remove_while_fresh(fit, looked_at)
            if fit and not gone:
                if at_a_look == AT_ONCE:
                    return
                at_a_look = AT_ONCE
            machines = [*fit[gone:], *later]

    def _remove_while_fresh(self, machines: Sequence[Machine], looked_at: float) -> int:
        """Return how many were handled. A process that stalled after its check leaves them to the next one."""
        if machines:
            self.lock.check()
        gone = 0
        for few in batches(machines, self.platform.releases_at_once or AT_ONCE):
            if self.clock.monotonic() - looked_at >= FRESH.total_seconds():
                break
            busy = self.platform.release(few)
            ended = [machine for machine in few if machine not in busy]
            # An autoscaler sets the size of its groups itself.
            groups = () if self._pool.is_autoscaled else self.snapshot.groups
            self._keep(self._recent.with_released(ended, groups, self.clock.now()))
            self._log_lines += [
                f"machine {each.id} of {each.group} cannot be ended yet: it is still being launched, or changed"
                for each in busy
            ]
            gone += len(few)
        return gone

    def _not_joined(self, machines: Sequence[Machine]) -> list[Machine]:
        ids = {machine.id for machine in machines}
        nodes = list_nodes(self.api, self._pool.node_selector)
        if self._pool.nodes_join_unlabelled:
            nodes += list_unlabelled_nodes(self.api, self._pool.name, ids)
        joined = ids & {node.machine for node in nodes}
        self._log_lines += [f"kept machine {id_}: it has joined the cluster meanwhile" for id_ in sorted(joined)]
        return [machine for machine in machines if machine.id not in joined]

    def _still_idle(self, machines: Sequence[Machine], nodes: Mapping[str, Node]) -> list[Machine]:
        """Return those whose nodes are still unused; log why the others stay."""
        looked_at = [nodes[machine.id] for machine in machines]
        now = replace(self.snapshot, now=self.clock.now())
        holders: dict[str | None, Pod] = {}
        for pod in list_pods_on(self.api, looked_at, at_once=self.at_once):
            if pod.holds_node(now.now) and not is_overdue(now, pod):
                holders.setdefault(pod.node, pod)
        were_unready = {node.name for node in looked_at if not node.ready}
        ready = {node.name for node in read_nodes(self.api, were_unready) if node.ready}
        why = {name: f"node {name} has become Ready" for name in ready}
        busy = (node.name for node in looked_at if node.name in holders)
        why |= {name: f"pod {holders[name]} was bound to node {name}" for name in busy}
        self._log_lines += why.values()
        self._uncordon([node for node in looked_at if node.name in why])
        return [machine for machine in machines if nodes[machine.id].name not in why]

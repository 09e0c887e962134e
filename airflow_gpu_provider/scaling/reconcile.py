"""Reconciler: reads a pool, decides, and writes - under the pool's lock, with the lock checked before each write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.autoscaler_status import read_status
from airflow_gpu_provider.cluster.clock import Clock, ServerClock
from airflow_gpu_provider.cluster.demand import DemandKey, DemandLease, give_up, list_demand, write_demand
from airflow_gpu_provider.cluster.joined_nodes import label, list_joined
from airflow_gpu_provider.cluster.lock import PoolLock, Sighting
from airflow_gpu_provider.cluster.nodes import Node, cordon, list_nodes, read_node, uncordon
from airflow_gpu_provider.cluster.placeholders import create_placeholder, delete_placeholder, list_placeholder_events
from airflow_gpu_provider.cluster.pods import Pod, delete_pod, list_node_pods, list_pool_pods, list_run_pods
from airflow_gpu_provider.platforms.base import Machine, Platform, Say
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.claims import check_claims, claimed
from airflow_gpu_provider.scaling.decisions import Decision, decide
from airflow_gpu_provider.scaling.hard_to_get import Ask
from airflow_gpu_provider.scaling.ledger import Ledger
from airflow_gpu_provider.scaling.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.wanted import is_overdue, live_leases
from airflow_gpu_provider.workload_placement import tolerations_of

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

SETTLE = timedelta(seconds=1)
"""How long a binding that the scheduler had decided before it saw the cordon is given to show.

cluster-autoscaler waits too, for 5 seconds (--node-delete-delay-after-taint). Without volumes to attach, as on nodes
that are idle, a binding takes milliseconds.
"""

FRESH = timedelta(seconds=5)
"""How old the last look at a machine may be when it is removed."""

PATIENCE = timedelta(seconds=60)
"""How long to wait for the pool's lock: longer than a dead holder has it."""

PATIENCE_IN_A_LOOP = timedelta(seconds=1)
"""The same where an event loop comes again: between two tries it waits without a thread."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a reconcile saw, decided, and did.

    Attributes:
        snapshot: The pool as it was read, before the writes; with the demand that the call itself wrote or deleted.
        decision: What was decided on it.
        said: What was done and why, for the task's log.
    """

    snapshot: PoolSnapshot
    decision: Decision
    said: tuple[str, ...]


class Reconciler:
    """One pool, as one task changes it. Not for several threads at once.

    Args:
        pool: The (rendered) spec.
        platform: The pool's cloud.
        api: The client of the pool's cluster.
        holder: Who this is, for people who look at the lock: dag/run/task/try, host and pid.
        say: Takes a line at once: that the lock is waited for. All others are in the outcome.
        clock: The time that all who change the pool go by. Default: the API server's.

    Attributes:
        patience: How long it waits for the pool's lock before DemandLockBusy.
    """

    def __init__(
        self,
        pool: GpuPool,
        platform: Platform,
        api: ApiClient,
        *,
        holder: str,
        say: Say,
        clock: Clock | None = None,
    ) -> None:
        self.pool = pool
        self.platform = platform
        self.api = api
        self.holder = holder
        self._say = say
        self.clock: Clock = clock or ServerClock(api)
        self.ledger = Ledger(api, pool, say)
        self.patience = PATIENCE
        self._seen_of_lock = Sighting()

    def snapshot(self) -> PoolSnapshot:
        """Read everything that a decision looks at."""
        leases = list_demand(self.api, self.pool.name)
        nodes = list_nodes(self.api, self.pool.node_selector)
        pods = list_pool_pods(self.api, self.pool.node_selector, nodes)
        groups = self.platform.observe()
        now = self.clock.now()
        seen = PoolSnapshot(now=now, pool=self.pool, leases=leases, nodes=nodes, pods=pods, groups=groups)
        seen = self._of_others(seen) if self.pool.manage == "scale" else seen
        return self._with_autoscaler(seen) if self.pool.is_autoscaled else seen

    def _of_others(self, seen: PoolSnapshot) -> PoolSnapshot:
        """Leave out groups that another pool had first, and add the nodes that joined and are not in the pool yet."""
        taken = claimed(self.pool, seen.groups, list_demand(self.api), seen.now)
        groups = tuple(group for group in seen.groups if group.name not in taken)
        machines = {machine.id for group in groups for machine in group.live}
        new = machines - {node.machine for node in seen.nodes}
        joined = list_joined(self.api, self.pool.name, new) if new else ()
        pods = {pod.uid: pod for pod in (*seen.pods, *(pod for node in joined for pod in self._pods_now(node)))}
        return replace(seen, groups=groups, claimed=taken, nodes=(*seen.nodes, *joined), pods=tuple(pods.values()))

    def _with_autoscaler(self, snapshot: PoolSnapshot) -> PoolSnapshot:
        """Add what explains the wait for nodes that pods, placeholders among them, are to bring."""
        warm = [lease for lease in live_leases(snapshot) if lease.warm]
        if not warm and not any(pod.node is None for pod in snapshot.pods):
            return snapshot
        status = read_status(self.api) if self.pool.needs_cluster_autoscaler else None
        events = list_placeholder_events(self.api, warm) if warm else ()
        return replace(snapshot, autoscaler=status, placeholder_events=events)

    def want(self, key: DemandKey, nodes: int, until: datetime, *, warm: str = "") -> Outcome:
        """Write the run's demand, in place of what it wanted before, and bring the pool closer to it.

        `warm` is the image of the placeholders that make an autoscaler bring the nodes at once; empty: none. The
        switch is moved before the demand is written: whoever sees demand can rely on it.

        Raises:
            PoolDrift: Another pool's runs use a group that others own and this pool names.
            DemandLockBusy, DemandLockLost: Nothing was decided; another try helps.
            GpuError: What the cluster or the cloud said.
        """
        with self._lock() as lock:
            before = self.snapshot()
            check_claims(before)
            lease = replace(_lease(before, key, nodes, until), warm=warm)
            others = tuple(each for each in before.leases if each.key != key)
            snapshot = replace(before, leases=(*others, lease))
            decision = decide(snapshot)
            writes = _Writes(self, lock, snapshot, decision)
            writes.set_switch()
            write_demand(self.api, lease, check=lock.check)
            self.ledger.begin(key, before.now, until)
            return writes.outcome()

    def reconcile(self) -> Outcome:
        """Bring the pool closer to what is wanted now. Takes the lock only where there is something to do."""
        snapshot = self.snapshot()
        decision = decide(snapshot)
        if decision.is_empty:
            return Outcome(snapshot=snapshot, decision=decision, said=decision.notes)
        with self._lock() as lock:
            snapshot = self.snapshot()
            writes = _Writes(self, lock, snapshot, decide(snapshot))
            writes.set_switch()
            return writes.outcome()

    def amend(self, ask: Ask) -> Outcome:
        """Write what a run wants from now on, if it still wants what it did when it asked; bring the pool closer to it.

        A run that has given its demand up meanwhile does not get it back.
        """
        with self._lock() as lock:
            before = self.snapshot()
            if ask.before not in before.leases:
                writes = _Writes(self, lock, before, decide(before))
                writes.set_switch()
                return writes.outcome()
            leases = tuple(ask.after if lease == ask.before else lease for lease in before.leases)
            snapshot = replace(before, leases=leases)
            writes = _Writes(self, lock, snapshot, decide(snapshot), said=[ask.why])
            writes.set_switch()
            write_demand(self.api, ask.after, check=lock.check)
            return writes.outcome()

    def give_up(self, key: DemandKey) -> Outcome:
        """Delete the run's demand, and bring the pool closer to what is wanted without it. May be repeated."""
        if all(lease.key != key for lease in list_demand(self.api, self.pool.name)):
            return self.reconcile()
        with self._lock() as lock:
            self.ledger.end(key, self.clock.now())
            lock.check()
            give_up(self.api, key)
            snapshot = self.snapshot()
            writes = _Writes(self, lock, snapshot, decide(snapshot))
            writes.set_switch()
            return writes.outcome()

    def drop(self, lease: DemandLease) -> bool:
        """Delete a run's demand if it is still what was read; False where it is gone or the run has written it anew."""
        with self._lock() as lock:
            if lease not in list_demand(self.api, self.pool.name):
                return False
            self.ledger.end(lease.key, self.clock.now())
            lock.check()
            return give_up(self.api, lease.key)

    def delete_pods(self, pods: Iterable[Pod]) -> list[str]:
        """Delete exactly these pods, and return the names of those that were there, as namespace/name."""
        leaving = tuple(pods)
        self.ledger.pods(leaving, self.clock.now())
        return [str(pod) for pod in leaving if not pod.deleting and delete_pod(self.api, pod)]

    def delete_run_pods(self, key: DemandKey) -> list[str]:
        """Delete the pods that the run left on this pool, and return their names as namespace/name."""
        return self.delete_pods(list_run_pods(self.api, self.pool.node_selector, key.hash))

    def note_machines(self) -> None:
        """Write down which machines the pool has now, for the bills of its runs."""
        self.ledger.machines(self.snapshot())

    # -- one write each, the caller has checked the lock -----------------------------------------------------

    def _lock(self) -> PoolLock:
        spec = self.pool.serialize()
        return PoolLock(
            self.api,
            self.pool.name,
            self.holder,
            timeout=self.patience,
            clock=self.clock,
            say=self._say,
            spec=spec,
            seen=self._seen_of_lock,
        )

    def _mark(self) -> str:
        return f"{self.holder} at {self.clock.now():%Y-%m-%dT%H:%M:%SZ}"

    def _remove(self, machine: Machine) -> None:
        self.platform.release([machine])

    def has_joined(self, machine: Machine) -> bool:
        """Say whether there is a node of the machine by now, in the pool or not."""
        nodes = list_nodes(self.api, self.pool.node_selector)
        if self.pool.manage == "scale":
            nodes += list_joined(self.api, self.pool.name, {machine.id})
        return any(node.machine == machine.id for node in nodes)

    def _add_placeholder(self, lease: DemandLease, now: datetime) -> None:
        create_placeholder(
            self.api,
            lease,
            node_selector=self.pool.node_selector,
            tolerations=tolerations_of(self.pool),
            gpus=self.pool.gpus_per_node or 1,
            now=now,
        )

    def _pods_now(self, node: Node) -> list[Pod]:
        return list_node_pods(self.api, node.name)


class _Writes:
    """Carries one decision out, step by step in the order of its fields, and keeps what there is to say."""

    def __init__(
        self,
        reconciler: Reconciler,
        lock: PoolLock,
        snapshot: PoolSnapshot,
        decision: Decision,
        *,
        said: Sequence[str] = (),
    ) -> None:
        self._on = reconciler
        self._lock = lock
        self._snapshot = snapshot
        self._decision = decision
        self._nodes = {node.name: node for node in snapshot.nodes}
        self._said = [*said, *decision.notes]

    def set_switch(self) -> None:
        platform, decision = self._on.platform, self._decision
        if decision.resume:
            self._lock.check()
            platform.resume_launches(decision.resume)
            self._said.append(f"{', '.join(decision.resume)} may launch again: who had suspended that is dead")
        for group, at in decision.switch.items():
            self._lock.check()
            platform.set_switch([group], at)
        if decision.clear_switch:
            self._lock.check()
            platform.clear_switch(decision.clear_switch)
        if decision.tell:
            self._lock.check()
            platform.tell_autoscaler(decision.tell)
            self._said.append(f"the tags are put right on {', '.join(decision.tell)}")

    def outcome(self) -> Outcome:
        """Do all that comes after the switch."""
        for name in self._decision.label:
            self._label(self._nodes[name])
        for name in self._decision.uncordon:
            self._uncordon(self._nodes[name])
        self._warm()
        self._grow(self._shrink())
        self._on.ledger.machines(self._snapshot)
        self._release()
        for key in self._decision.forget:
            self._on.ledger.end(key, self._snapshot.now)
            self._lock.check()
            give_up(self._on.api, key)
        return Outcome(snapshot=self._snapshot, decision=self._decision, said=tuple(self._said))

    def _warm(self) -> None:
        leases = {lease.key: lease for lease in self._snapshot.leases}
        for pod in self._decision.cool:
            self._lock.check()
            delete_placeholder(self._on.api, pod.name)
        for key, number in self._decision.warm.items():
            for _ in range(number):
                self._lock.check()
                self._on._add_placeholder(leases[key], self._snapshot.now)

    def _shrink(self) -> bool:
        """Return whether all groups that were to be shrunk are: a launch under way can come in the way."""
        refused = []
        for group in self._decision.shrink:
            self._lock.check()
            if group not in self._on.platform.shrink_unfilled([group]):
                refused.append(group)
                self._said.append(f"{group} is left as it is: what it was asked for has come, or is being launched")
        return not refused

    def _grow(self, with_new_machines: bool) -> None:
        groups = {group.name: group for group in self._snapshot.groups}
        for name, size in self._decision.grow.items():
            # What another group may still get could be one machine too many: new ones wait for the next look.
            size = size if with_new_machines else len(groups[name].live)
            if size > groups[name].desired:
                self._lock.check()
                self._on.platform.grow({name: size})

    def _release(self) -> None:
        signed = {name for name in self._decision.cordon if self._cordon(self._nodes[name])}
        if signed:
            self._on.clock.sleep(SETTLE.total_seconds())
        by_machine = {node.machine: node for node in self._snapshot.nodes}
        for machine in self._decision.release:
            node = by_machine.get(machine.id)
            if node is None:
                self._release_without_node(machine)
            elif node.cordoned or node.name in signed:
                self._release_node(machine, node)

    def _label(self, node: Node) -> None:
        self._lock.check()
        try:
            label(self._on.api, node, self._on.pool.labels)
        except ObjectNotFound:
            return  # it has just gone; the next look sees what is left

    def _cordon(self, node: Node) -> bool:
        self._lock.check()
        try:
            return cordon(self._on.api, node, by=self._on._mark())
        except ObjectNotFound:
            return False  # it has just gone; the next look sees what is left

    def _uncordon(self, node: Node) -> None:
        self._lock.check()
        try:
            uncordon(self._on.api, node)
        except ObjectNotFound:
            return
        self._said.append(f"node {node.name} is uncordoned: it stays")

    def _release_node(self, machine: Machine, node: Node) -> None:
        looked_at = self._on.clock.monotonic()
        now = replace(self._snapshot, now=self._on.clock.now())
        holders = [p for p in self._on._pods_now(node) if p.holds_node(now.now) and not is_overdue(now, p)]
        if holders:
            self._said.append(f"pod {holders[0]} has come to node {node.name}")
            self._uncordon(node)
            return
        if not node.ready and self._is_ready_now(node):
            self._said.append(f"node {node.name} has become Ready")
            self._uncordon(node)
            return
        self._lock.check()
        self._remove_if_fresh(machine, looked_at)

    def _is_ready_now(self, node: Node) -> bool:
        try:
            return read_node(self._on.api, node.name).ready
        except ObjectNotFound:
            return False

    def _release_without_node(self, machine: Machine) -> None:
        looked_at = self._on.clock.monotonic()
        if self._on.has_joined(machine):
            self._said.append(f"machine {machine.id} has joined the cluster meanwhile")
            return
        self._lock.check()
        self._remove_if_fresh(machine, looked_at)

    def _remove_if_fresh(self, machine: Machine, looked_at: float) -> None:
        """A process that was stalled after its look leaves the machine to the next one."""
        if self._on.clock.monotonic() - looked_at < FRESH.total_seconds():
            self._on._remove(machine)


def _lease(before: PoolSnapshot, key: DemandKey, nodes: int, until: datetime) -> DemandLease:
    """Return the run's new demand; while it is live it keeps its place in the queue."""
    old = next((lease for lease in before.leases if lease.key == key and lease.live(before.now)), None)
    groups = tuple(group.name for group in before.groups if not group.owned)
    return DemandLease(
        key=key, nodes=nodes, until=until, created_at=old.created_at if old else before.now, groups=groups
    )

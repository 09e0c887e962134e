"""Reconciler: reads a pool, decides, and writes - under the pool's lock, with the lock checked before each write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.autoscaler_status import read_status
from airflow_gpu_provider.cluster.clock import Clock, ServerClock
from airflow_gpu_provider.cluster.demand import DemandKey, DemandLease, give_up, list_demand, write_demand
from airflow_gpu_provider.cluster.lock import PoolLock, Sighting, read_memo
from airflow_gpu_provider.cluster.nodes import Node, cordon, list_nodes, read_nodes, uncordon
from airflow_gpu_provider.cluster.placeholders import create_placeholder, delete_placeholder, list_placeholder_events
from airflow_gpu_provider.cluster.pods import Pod, delete_pod, list_pods_on, list_pool_pods, list_run_pods
from airflow_gpu_provider.cluster.threads import AT_ONCE, all_in_parallel, batches, in_parallel
from airflow_gpu_provider.cluster.unlabelled_nodes import label_node, list_unlabelled_nodes
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.platforms.base import Machine, Platform, Say
from airflow_gpu_provider.platforms.quota import without_room
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.decisions import Decision, decide
from airflow_gpu_provider.scaling.group_claims import check_group_claims, claimed
from airflow_gpu_provider.scaling.hard_to_get import Ask
from airflow_gpu_provider.scaling.ledger import Ledger
from airflow_gpu_provider.scaling.recent_writes import RecentWrites
from airflow_gpu_provider.scaling.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.wanted import is_overdue, live_leases
from airflow_gpu_provider.workload_placement import tolerations_of

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

SETTLE = timedelta(seconds=1)
"""How long to wait for a binding that the scheduler had decided before it saw the cordon.

cluster-autoscaler waits too, for 5 seconds (--node-delete-delay-after-taint). Without volumes to attach, as on idle
nodes, a binding takes milliseconds.
"""

FRESH = timedelta(seconds=5)
"""How old the last look at a machine may be when it is removed."""

RELEASE_FOR = timedelta(seconds=20)
"""For how long one decision removes machines; the next one removes the rest, so that other processes get the lock."""

PATIENCE = timedelta(seconds=60)
"""How long to wait for the pool's lock: longer than a dead holder has it."""

PATIENCE_IN_A_LOOP = timedelta(seconds=1)
"""The same in an event loop, which tries again: between two tries it waits without a thread."""

_BETWEEN_CHECKS = 64  # writes, several at a time, between two checks of the lock

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a reconcile saw, decided, and did.

    Attributes:
        snapshot: The pool as it was read, before the writes; with the demand that the call itself wrote or deleted.
        decision: What was decided from it.
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
        holder: The name to show as the lock's holder: dag/run/task/try, host and pid.
        say: Takes a line at once: that it waits for the lock. All others are in the outcome.
        clock: The time that all processes that change the pool use. Default: the API server's.
        at_once: How many requests it makes at a time.

    Attributes:
        over_quota: Groups that do not grow, as a quota has no room for more of their machines: what
            `Platform.groups_over_quota` returned, here or in the process that began the wait.
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
        at_once: int = AT_ONCE,
    ) -> None:
        self.pool = pool
        self.platform = platform
        self.api = api
        self.holder = holder
        self._say = say
        self.clock: Clock = clock or ServerClock(api)
        self.at_once = at_once
        self.ledger = Ledger(api, pool, say)
        self.over_quota: frozenset[str] = frozenset()
        self.patience = PATIENCE
        self._seen_of_lock = Sighting()

    def snapshot(self, lock: PoolLock | None = None) -> PoolSnapshot:
        """Read everything that a decision looks at; a lock that is held is kept meanwhile."""
        alive = lock.keep if lock else _nothing
        leases = list_demand(self.api, self.pool.name)
        nodes = list_nodes(self.api, self.pool.node_selector)
        alive()
        pods = list_pool_pods(self.api, self.pool.node_selector, nodes, at_once=self.at_once, alive=alive)
        shown = without_room(self.platform.observe(), self.over_quota)
        alive()
        now = self.clock.now()
        # After the look: what was written meanwhile is among it.
        memo = lock.memo if lock else read_memo(self.api, self.pool.name)
        groups = RecentWrites.parse(memo).on(shown, now)
        seen = PoolSnapshot(now=now, pool=self.pool, leases=leases, nodes=nodes, pods=pods, groups=groups)
        seen = self._without_claimed_groups(seen) if self.pool.manage == "scale" else seen
        seen = self._with_joined(seen) if self.pool.nodes_join_unlabelled else seen
        return self._with_autoscaler(seen) if self.pool.is_autoscaled else seen

    def _without_claimed_groups(self, seen: PoolSnapshot) -> PoolSnapshot:
        """Leave out external groups that another pool used first."""
        taken = claimed(self.pool, seen.groups, list_demand(self.api), seen.now)
        return replace(seen, groups=tuple(group for group in seen.groups if group.name not in taken), claimed=taken)

    def _with_joined(self, seen: PoolSnapshot) -> PoolSnapshot:
        """Add the nodes that joined without the pool's labels."""
        machines = {machine.id for group in seen.groups for machine in group.live}
        new = machines - {node.machine for node in seen.nodes}
        joined = list_unlabelled_nodes(self.api, self.pool.name, new) if new else ()
        pods = {pod.uid: pod for pod in (*seen.pods, *self._pods_now(joined))}
        return replace(seen, nodes=(*seen.nodes, *joined), pods=tuple(pods.values()))

    def _with_autoscaler(self, snapshot: PoolSnapshot) -> PoolSnapshot:
        """Add what explains the wait for nodes that an autoscaler adds for pods, placeholders included."""
        warm = [lease for lease in live_leases(snapshot) if lease.warm]
        if not warm and not any(pod.node is None for pod in snapshot.pods):
            return snapshot
        status = read_status(self.api) if self.pool.needs_cluster_autoscaler else None
        events = list_placeholder_events(self.api, warm) if warm else ()
        return replace(snapshot, autoscaler=status, placeholder_events=events)

    def want(self, key: DemandKey, nodes: int, until: datetime, *, warm: str = "") -> Outcome:
        """Write the run's demand, in place of what it wanted before, and bring the pool closer to it.

        `warm` is the image of the placeholders that make an autoscaler add the nodes at once; empty: none. The
        switch is moved before the demand is written, so that demand is never without it.

        Raises:
            PoolDrift: Another pool's runs use an external group that this pool names.
            DemandLockBusy, DemandLockLost: Nothing was decided; another try helps.
            GpuError: An error of the cluster or the cloud.
        """
        with self._lock() as lock:
            before = self.snapshot(lock)
            check_group_claims(before)
            lease = replace(_lease(before, key, nodes, until), warm=warm)
            others = tuple(each for each in before.leases if each.key != key)
            snapshot = replace(before, leases=(*others, lease))
            decision = decide(snapshot)
            writes = _Writes(self, lock, snapshot, decision)
            writes.prepare_groups()
            write_demand(self.api, lease, check=lock.check)
            self.ledger.begin(key, before.now, until)
            return writes.carry_out()

    def reconcile(self) -> Outcome:
        """Bring the pool closer to what is wanted now. Takes the lock only if there is something to do."""
        snapshot = self.snapshot()
        decision = decide(snapshot)
        if decision.is_empty:
            return Outcome(snapshot=snapshot, decision=decision, said=decision.notes)
        with self._lock() as lock:
            snapshot = self.snapshot(lock)
            writes = _Writes(self, lock, snapshot, decide(snapshot))
            writes.prepare_groups()
            return writes.carry_out()

    def amend(self, ask: Ask) -> Outcome:
        """Write what a run wants from now on, if its demand is unchanged since it asked; bring the pool closer to it.

        A run that has released its demand meanwhile does not get it back.
        """
        with self._lock() as lock:
            before = self.snapshot(lock)
            if ask.before not in before.leases:
                writes = _Writes(self, lock, before, decide(before))
                writes.prepare_groups()
                return writes.carry_out()
            leases = tuple(ask.after if lease == ask.before else lease for lease in before.leases)
            snapshot = replace(before, leases=leases)
            writes = _Writes(self, lock, snapshot, decide(snapshot), said=[ask.why])
            writes.prepare_groups()
            write_demand(self.api, ask.after, check=lock.check)
            return writes.carry_out()

    def give_up(self, key: DemandKey) -> Outcome:
        """Delete the run's demand, and bring the pool closer to what is wanted without it. Idempotent."""
        if all(lease.key != key for lease in list_demand(self.api, self.pool.name)):
            return self.reconcile()
        with self._lock() as lock:
            self.ledger.end(key, self.clock.now())
            lock.check()
            give_up(self.api, key)
            snapshot = self.snapshot(lock)
            writes = _Writes(self, lock, snapshot, decide(snapshot))
            writes.prepare_groups()
            return writes.carry_out()

    def drop(self, lease: DemandLease) -> bool:
        """Delete a run's demand if it is unchanged since it was read; return False if it is gone or has changed."""
        with self._lock() as lock:
            if lease not in list_demand(self.api, self.pool.name):
                return False
            self.ledger.end(lease.key, self.clock.now())
            lock.check()
            return give_up(self.api, lease.key)

    def delete_pods(self, pods: Iterable[Pod]) -> list[str]:
        """Delete exactly these pods, and return the names of those that were there, as namespace/name.

        Raises:
            GpuError: A pod could not be deleted; the deletion of all the others was requested.
        """
        leaving = tuple(pods)
        self.ledger.pods(leaving, self.clock.now())
        to_go = [pod for pod in leaving if not pod.deleting]
        were_there = all_in_parallel(self._delete, to_go, at_once=self.at_once)
        return [str(pod) for pod, was_there in zip(to_go, were_there, strict=True) if was_there]

    def _delete(self, pod: Pod) -> bool:
        try:
            return delete_pod(self.api, pod)
        except GpuError as error:
            what = f"Pod {pod} could not be deleted: {error.what}"
            raise type(error)(what, error.fix, **error.details) from error

    def delete_run_pods(self, key: DemandKey) -> list[str]:
        """Delete the pods that the run left on this pool, and return their names as namespace/name."""
        return self.delete_pods(list_run_pods(self.api, self.pool.node_selector, key.hash))

    def release(self, key: DemandKey) -> Outcome:
        """Delete the pods that the run left, and release its demand. Idempotent.

        Raises:
            GpuError: An error of the cluster or the cloud. If a pod cannot be deleted, the demand and the machines
                without a running pod are released all the same.
        """
        try:
            deleted = self.delete_run_pods(key)
        except GpuError:
            self.give_up(key)
            raise
        outcome = self.give_up(key)
        return replace(outcome, said=(*(f"deleted leftover pod {name}" for name in deleted), *outcome.said))

    def record_machines(self) -> None:
        """Record which machines the pool has now, for the bills of its runs."""
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

    def _remove(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        return self.platform.release(machines)

    def joined(self, machines: Collection[str]) -> set[str]:
        """Return those of the machines that have a node by now, in the pool or not."""
        nodes = list_nodes(self.api, self.pool.node_selector)
        if self.pool.nodes_join_unlabelled:
            nodes += list_unlabelled_nodes(self.api, self.pool.name, machines)
        return {node.machine for node in nodes} & set(machines)

    def _add_placeholder(self, lease: DemandLease, now: datetime) -> None:
        create_placeholder(
            self.api,
            lease,
            node_selector=self.pool.node_selector,
            tolerations=tolerations_of(self.pool),
            gpus=self.pool.gpus_per_node or 1,
            now=now,
        )

    def _pods_now(self, nodes: Iterable[Node]) -> list[Pod]:
        return list_pods_on(self.api, nodes, at_once=self.at_once)


class _Writes:
    """Carries out one decision, step by step in the order of its fields, and keeps the lines to log."""

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
        self._recent = RecentWrites.parse(lock.memo)

    def prepare_groups(self) -> None:
        """Write to the groups what has to precede demand: launches allowed, the switch, the tags."""
        platform, decision = self._on.platform, self._decision
        if decision.resume:
            self._lock.check()
            platform.resume_launches(decision.resume)
            self._said.append(f"resumed launches of {', '.join(decision.resume)}: the process that suspended them died")
        for group, at in decision.switch.items():
            self._lock.check()
            platform.schedule_scale_to_zero([group], at)
        if decision.clear_switch:
            self._lock.check()
            platform.cancel_scale_to_zero(decision.clear_switch)
        if decision.update_tags:
            self._lock.check()
            platform.update_autoscaler_tags(decision.update_tags)
            self._said.append(f"corrected the autoscaler's tags on {', '.join(decision.update_tags)}")

    def carry_out(self) -> Outcome:
        """Write the rest of the decision: nodes, placeholders, sizes, and the deletion of expired demand."""
        self._each(self._label, [self._nodes[name] for name in self._decision.label])
        self._uncordon([self._nodes[name] for name in self._decision.uncordon])
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
        self._each(lambda pod: delete_placeholder(self._on.api, pod.name), self._decision.cool)
        missing = [leases[key] for key, number in self._decision.warm.items() for _ in range(number)]
        self._each(lambda lease: self._on._add_placeholder(lease, self._snapshot.now), missing)

    def _shrink(self) -> bool:
        """Return True if all groups that were to be shrunk are: a launch in progress can prevent it."""
        refused = []
        for group in self._decision.shrink:
            self._lock.check()
            sizes = self._on.platform.shrink_unfilled([group])
            for name, size in sizes.items():
                self._keep(self._recent.with_size(name, size, self._on.clock.now()))
            if group not in sizes:
                refused.append(group)
                self._said.append(f"left {group} as it is: its missing machines have come, or are being launched")
        return not refused

    def _grow(self, with_new_machines: bool) -> None:
        groups = {group.name: group for group in self._snapshot.groups}
        for name, size in self._decision.grow.items():
            # What another group may still get could be one machine too many: growth waits for the next look.
            size = size if with_new_machines else len(groups[name].live)
            if size > groups[name].desired:
                self._lock.check()
                self._on.platform.grow({name: size})
                self._keep(self._recent.with_size(name, size, self._on.clock.now()))

    def _keep(self, recent: RecentWrites) -> None:
        """Leave what was written for the next holder, to whom the cloud may still show the old state."""
        self._recent = recent
        self._lock.memo = recent.dump()

    def _each(self, write: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """Write for each item, several at a time, and return the results; the lock is checked in between."""
        done: list[_R] = []
        for some in batches(items, _BETWEEN_CHECKS):
            self._lock.check()
            done += in_parallel(write, some, at_once=self._on.at_once)
        return done

    def _label(self, node: Node) -> None:
        with suppress(ObjectNotFound):  # it was just deleted; the next look sees what is left
            # External groups have taints of their own.
            taints = self._on.pool.parsed_taints if self._on.pool.manage == "full" else ()
            label_node(self._on.api, node, self._on.pool.labels, taints)

    def _cordon(self, node: Node) -> bool:
        try:
            return cordon(self._on.api, node, by=self._on._mark())
        except ObjectNotFound:
            return False  # it was just deleted; the next look sees what is left

    def _uncordon(self, nodes: Sequence[Node]) -> None:
        def undo(node: Node) -> bool:
            try:
                uncordon(self._on.api, node)
            except ObjectNotFound:
                return False
            return True

        done = zip(nodes, self._each(undo, nodes), strict=True)
        self._said += [f"uncordoned node {node.name}: it stays" for node, is_there in done if is_there]

    # -- releasing machines ----------------------------------------------------------------------------------

    def _release(self) -> None:
        to_sign = [self._nodes[name] for name in self._decision.cordon]
        done = zip(to_sign, self._each(self._cordon, to_sign), strict=True)
        signed = {node.name for node, is_ours in done if is_ours}
        if signed:
            self._on.clock.sleep(SETTLE.total_seconds())
        by_machine = {node.machine: node for node in self._snapshot.nodes}
        without = [machine for machine in self._decision.release if machine.id not in by_machine]
        pairs = [(machine, by_machine[machine.id]) for machine in self._decision.release if machine.id in by_machine]
        until = self._on.clock.monotonic() + RELEASE_FOR.total_seconds()
        self._release_all(without, self._not_joined, until)
        closed = {machine.id: node for machine, node in pairs if node.cordoned or node.name in signed}
        is_closed = [machine for machine, _ in pairs if machine.id in closed]
        self._release_all(is_closed, lambda some: self._still_idle(some, closed), until)

    def _release_all(
        self, machines: Sequence[Machine], look: Callable[[Sequence[Machine]], list[Machine]], until: float
    ) -> None:
        """Remove machines, after each look as many as possible before it is outdated.

        `look` returns those that may be removed. If a look at all of them takes too long to remove any, it looks at a
        few; the next decision removes the rest.
        """
        clock, at_a_look = self._on.clock, len(machines)
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
        """Return how many were dealt with. A process that stalled after its look leaves them to the next one."""
        if machines:
            self._lock.check()
        gone = 0
        for few in batches(machines, self._on.platform.releases_at_once):
            if self._on.clock.monotonic() - looked_at >= FRESH.total_seconds():
                break
            busy = self._on._remove(few)
            ended = [machine for machine in few if machine not in busy]
            # An autoscaler sets the size of its groups itself.
            groups = () if self._on.pool.is_autoscaled else self._snapshot.groups
            self._keep(self._recent.with_released(ended, groups, self._on.clock.now()))
            self._said += [
                f"machine {each.id} of {each.group} cannot be ended yet: it is still being launched, or changed"
                for each in busy
            ]
            gone += len(few)
        return gone

    def _not_joined(self, machines: Sequence[Machine]) -> list[Machine]:
        joined = self._on.joined({machine.id for machine in machines})
        self._said += [f"kept machine {id_}: it has joined the cluster meanwhile" for id_ in sorted(joined)]
        return [machine for machine in machines if machine.id not in joined]

    def _still_idle(self, machines: Sequence[Machine], nodes: Mapping[str, Node]) -> list[Machine]:
        """Return those whose nodes are still unused; log why the others stay."""
        looked_at = [nodes[machine.id] for machine in machines]
        now = replace(self._snapshot, now=self._on.clock.now())
        holders: dict[str | None, Pod] = {}
        for pod in self._on._pods_now(looked_at):
            if pod.holds_node(now.now) and not is_overdue(now, pod):
                holders.setdefault(pod.node, pod)
        were_unready = {node.name for node in looked_at if not node.ready}
        ready = {node.name for node in read_nodes(self._on.api, were_unready) if node.ready}
        why = {name: f"node {name} has become Ready" for name in ready}
        busy = (node.name for node in looked_at if node.name in holders)
        why |= {name: f"pod {holders[name]} was bound to node {name}" for name in busy}
        self._said += why.values()
        self._uncordon([node for node in looked_at if node.name in why])
        return [machine for machine in machines if nodes[machine.id].name not in why]


def _nothing() -> None:
    return


def _lease(before: PoolSnapshot, key: DemandKey, nodes: int, until: datetime) -> DemandLease:
    """Return the run's new demand; while it is live it keeps its place in the queue."""
    old = next((lease for lease in before.leases if lease.key == key and lease.live(before.now)), None)
    groups = tuple(group.name for group in before.groups if not group.owned)
    return DemandLease(
        key=key, nodes=nodes, until=until, created_at=old.created_at if old else before.now, groups=groups
    )

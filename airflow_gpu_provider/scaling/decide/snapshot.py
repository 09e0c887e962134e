"""A pool at one moment, as plain data, and what follows from it: each machine's state, and how many nodes are wanted.

PoolSnapshot is everything that a decision uses. `supply` tells which machines are usable, coming, broken or taken, and
whether they may be released; the rest is arithmetic over leases and pods: who wants nodes, and until when.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Self

from airflow_gpu_provider.errors import NodesNotReady
from airflow_gpu_provider.money.budget import money_is_used
from airflow_gpu_provider.money.prices import (
    UNKNOWN_PRICE,
    PriceRecord,
    in_words,
    node_costs,
    rate_in_words,
    tiers,
    too_dear,
)
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.deadlines import unleased_until
from airflow_gpu_provider.scaling.decide.other_specs import allowed_types, can_get_node, is_one_of
from airflow_gpu_provider.scaling.state.demand import DemandLease

if TYPE_CHECKING:
    from airflow_gpu_provider.clouds.base import Group, Machine
    from airflow_gpu_provider.cluster.model.autoscaler_status import AutoscalerStatus
    from airflow_gpu_provider.cluster.model.kept_machines import KeptMachine
    from airflow_gpu_provider.cluster.model.node import Node
    from airflow_gpu_provider.cluster.model.pool_pod import Pod

QUOTA_HOLDS = timedelta(minutes=30)
"""For how long a run's check of quotas counts: the time of one attempt. After that the cloud is asked by a launch."""


@dataclass(frozen=True, kw_only=True)
class PoolSnapshot:
    """A pool as it is at `now`.

    Attributes:
        leases: Demand for this pool, expired leases too, oldest first.
        nodes: Nodes with the labels that the pool's pods select.
        pods: Pods on those nodes, and unbound pods that select the pool.
        groups: The cloud's groups, in candidate order.
        claimed: External groups left out of `groups` because another pool's demand had them first, and that demand.
        autoscaler: What cluster-autoscaler last reported; read only while pods wait for it to add nodes.
        kept: Why Karpenter keeps machines that no run wants, by the machine; read only while there are such.
        shunned: Machines that are to serve no demand, because their zone loses one after the other.
    """

    now: datetime
    pool: GpuPool
    leases: tuple[DemandLease, ...]
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    groups: tuple[Group, ...]
    claimed: Mapping[str, DemandLease] = field(default_factory=dict)
    autoscaler: AutoscalerStatus | None = None
    kept: Mapping[str, KeptMachine] = field(default_factory=dict)
    shunned: frozenset[str] = frozenset()

    @cached_property
    def live_leases(self) -> tuple[DemandLease, ...]:
        """The demand that counts now, oldest first."""
        live = (lease for lease in self.leases if lease.live(self.now) and not _is_left(self, lease))
        return tuple(sorted(live, key=lambda lease: (lease.created_at, lease.key.hash)))

    @cached_property
    def supply(self) -> tuple[MachineStatus, ...]:
        """The pool's live machines, group by group."""
        nodes = {node.machine: node for node in self.nodes}
        pods: dict[str, list[Pod]] = {}
        for pod in self.pods:
            if pod.node and pod.holds_node(self.now):
                pods.setdefault(pod.node, []).append(pod)
        found, types = [], self.types_in_demand
        for group in self.groups:
            is_ending = group.reserved is not None and group.reserved.has_ended
            for machine in group.live:
                node = nodes.get(machine.id)
                on_node = pods.get(node.name, ()) if node else ()
                overdue = tuple(pod for pod in on_node if is_overdue(self, pod))
                found.append(
                    MachineStatus(
                        machine=machine,
                        node=node,
                        state=_state(self.now, machine, node),
                        holders=tuple(pod for pod in on_node if pod not in overdue),
                        overdue=overdue,
                        is_ending=is_ending,
                        is_shunned=machine.id in self.shunned,
                        is_of_other_type=not is_one_of(
                            types, node.instance_type if node else group.candidate.instance_type
                        ),
                    )
                )
        return tuple(found)

    @cached_property
    def types_in_demand(self) -> frozenset[str]:
        """The machine types that serve what is wanted; empty: any does."""
        waiting = (pod for pod in _unleased_gpu_pods(self) if not pod.node)
        return allowed_types(self.pool, self.live_leases, waiting)

    @property
    def prices(self) -> PriceRecord:
        """What the pool's machines cost, as far as its spec or its demand says."""
        return PriceRecord.of(self.pool, (lease.prices for lease in self.leases))

    @cached_property
    def node_costs(self) -> Mapping[str, float]:
        """What a node of each group costs, where the pool prefers by that; empty where it does not.

        By the prices in its demand, so that all tasks decide alike: another order comes only with new prices, which
        an Ensure has read.
        """
        return node_costs(self.prices, (group.candidate for group in self.groups))

    @cached_property
    def groups_by_cost(self) -> tuple[Group, ...]:
        """The groups, the equally cheap ones together and the cheapest first; in candidate order without costs."""
        by_cost = tiers(self.groups, lambda group: self.node_costs.get(group.name, UNKNOWN_PRICE))
        return tuple(group for tier in by_cost for group in tier)

    def type_and_market(self, each: MachineStatus) -> tuple[str, str]:
        """Return a machine's type, its node's own as far as it has one, and its capacity type."""
        candidate = next((group.candidate for group in self.groups if group.name == each.machine.group), None)
        its_type = each.node.instance_type if each.node else candidate.instance_type if candidate else ""
        return its_type, each.machine.market or (candidate.market if candidate else "")

    def price_of(self, group_name: str) -> float | None:
        """Return what a machine of the group costs per hour; None: unknown."""
        markets = {group.name: group.candidate.market for group in self.groups}
        return self.prices.price(group_name, markets.get(group_name, ""))

    def within_price(self) -> Self:
        """Return it with groups whose machines cost more than the pool pays limited to those that live."""
        dear = {each.candidate.group for each in too_dear(self.prices, [group.candidate for group in self.groups])}
        return replace(self, groups=without_room(self.groups, dear)) if dear else self

    def within_quota(self) -> Self:
        """Return it with groups that no quota has room for limited to their live machines.

        A group grows if one of the runs that checked has seen room for it: if there is none, the cloud refuses.
        """
        live = (lease.over_quota for lease in self.leases if lease.live(self.now) and lease.over_quota)
        checks = [frozenset(check.groups) for check in live if self.now - check.at < QUOTA_HOLDS]
        full = frozenset[str].intersection(*checks) if checks else frozenset()
        return replace(self, groups=without_room(self.groups, full)) if full else self

    def with_doubts(self) -> Self:
        """Return it with nodes that one DAG's pods avoid as broken, where nobody but that DAG wants nodes.

        Its next try gets another machine, then. What others want nodes for stays: their pods can run there.
        """
        wanted_for = {lease.key.writer for lease in self.live_leases}
        wanted_for |= {pod.owner.writer if pod.owner else "" for pod in _unleased_gpu_pods(self)}
        if len(wanted_for) != 1 or not any(group.when_idle == "remove" for group in self.groups):
            return self
        return replace(self, nodes=tuple(node.as_seen_by(*wanted_for) for node in self.nodes))


def without_room(groups: Iterable[Group], full: Collection[str]) -> tuple[Group, ...]:
    """Return the groups; those that something keeps from growing with their live machines as their limit."""
    return tuple(replace(group, max_size=len(group.live)) if group.name in full else group for group in groups)


# -- demand --------------------------------------------------------------------------------------------------


def _is_left(snapshot: PoolSnapshot, lease: DemandLease) -> bool:
    """Return True for a task's own demand whose pods have all ended, if they were not collected in time.

    A block's demand lasts without pods, between two tasks. A single task's demand is deleted by the worker that
    collects its pods, which may be killed while doing so.
    """
    pods = [pod for pod in snapshot.pods if pod.run == lease.key.hash]
    ended = [pod.finished and pod.uncollected and not pod.deleting for pod in pods]
    are_left = [is_over and not pod.awaits_collection(snapshot.now) for pod, is_over in zip(pods, ended, strict=True)]
    return lease.key.is_of_task and bool(pods) and all(are_left)


def wanted_nodes(snapshot: PoolSnapshot) -> int:
    """Return how many nodes the pool should have now: the demand, within min_nodes and max_nodes."""
    leased = sum(lease.nodes for lease in snapshot.live_leases)
    asked = leased + unleased_wanted(snapshot)
    return min(snapshot.pool.max_nodes, max(snapshot.pool.min_nodes, asked))


def usable_needed(snapshot: PoolSnapshot, key: DemandKey) -> int:
    """Return how many usable nodes the pool must have for this run's share to be among them.

    Leases are served oldest first, in addition to the nodes on which GPU pods without a lease run; max_nodes is enough
    for all, because then pods wait for each other.
    """
    live = snapshot.live_leases
    place = live.index(own_lease(snapshot, key))
    up_to_here = sum(lease.nodes for lease in live[: place + 1])
    return min(_most(snapshot, live[place]), up_to_here + _unleased_nodes(snapshot))


def own_lease(snapshot: PoolSnapshot, key: DemandKey) -> DemandLease:
    """Return the run's live lease; raises NodesNotReady if it has none (any more)."""
    for lease in snapshot.live_leases:
        if lease.key == key:
            return lease
    raise NodesNotReady(
        f"Pool {snapshot.pool.name}: {key} no longer wants nodes; its demand was released, or has expired.",
        "Clear the run's EnsureGpuPoolOperator to request them again.",
        pool=snapshot.pool.name,
    )


def _most(snapshot: PoolSnapshot, lease: DemandLease) -> int:
    """Return how many nodes the pool can have. External nodes are those that exist: runs share them."""
    if can_grow(snapshot) or not snapshot.groups:
        return snapshot.pool.max_nodes
    there = sum(len(group.live) for group in snapshot.groups)
    return min(snapshot.pool.max_nodes, max(lease.nodes, there))


def can_grow(snapshot: PoolSnapshot) -> bool:
    """Return False if the nodes are external, and no more will come."""
    return any(group.when_idle == "remove" or group.provisioner for group in snapshot.groups)


def check_money(snapshot: PoolSnapshot, key: DemandKey) -> None:
    """Raise BudgetExceeded where the run's money for work is used: nothing may begin on its nodes any more."""
    for lease in snapshot.leases:
        if lease.key == key and lease.ends_by_budget and lease.budget and snapshot.now >= lease.budget.ends_at:
            raise money_is_used(snapshot.pool, lease.budget)


def budget_lines(snapshot: PoolSnapshot, key: DemandKey) -> list[str]:
    """Return how long the money of a run lasts, for its task's log; nothing where it has no limit."""
    pool = snapshot.pool
    return [
        f"max_cost={lease.budget.limit:g}: {in_words(pool, lease.budget.spent)} are spent,"
        f" {in_words(pool, lease.budget.reserve)} are kept back for machines that nobody ends, and the rest lasts until"
        f" {lease.budget.ends_at:%Y-%m-%d %H:%MZ} for {rate_in_words(pool, lease.nodes, lease.budget.per_hour)}"
        for lease in snapshot.leases
        if lease.key == key and lease.budget is not None
    ]


def is_overdue(snapshot: PoolSnapshot, pod: Pod) -> bool:
    """Return True if the pod runs although its run's time has passed. A pod awaiting collection has ended."""
    if pod.finished or pod.run is None:
        return False
    return any(lease.key.hash == pod.run and not lease.live(snapshot.now) for lease in snapshot.leases)


def wanted_until(snapshot: PoolSnapshot) -> datetime | None:
    """Return when the last demand expires, or None if there is no demand."""
    by_pods = (
        unleased_until(snapshot.pool, snapshot.now, pod.started_at or pod.created_at, pod.active_deadline)
        for pod in _unleased_gpu_pods(snapshot)
    )
    return max((*(lease.until for lease in snapshot.live_leases), *by_pods), default=None)


def wanted_by(snapshot: PoolSnapshot) -> str:
    """Return which runs and pods want nodes, as text."""
    who = [f"{lease.key} ({plural(lease.nodes, 'node')})" for lease in snapshot.live_leases]
    who += [f"pod {pod}" for pod in _unleased_gpu_pods(snapshot)]
    if snapshot.pool.min_nodes:
        who.append(f"min_nodes={snapshot.pool.min_nodes}")
    return ", ".join(who) or "nobody"


def unleased_wanted(snapshot: PoolSnapshot) -> int:
    """Count the nodes that GPU pods without a lease use or wait for."""
    pending = [pod for pod in _unleased_gpu_pods(snapshot) if pod.node is None]
    return _unleased_nodes(snapshot) + _nodes_for(snapshot, pending)


def _unleased_nodes(snapshot: PoolSnapshot) -> int:
    """Count the nodes on which GPU pods without a lease run."""
    return len({pod.node for pod in _unleased_gpu_pods(snapshot) if pod.node})


def _unleased_gpu_pods(snapshot: PoolSnapshot) -> Iterator[Pod]:
    """Yield the pods that no lease covers, live or expired: they count as demand, and are never killed."""
    leased = {lease.key.hash for lease in snapshot.leases}
    for pod in snapshot.pods:
        if _wants_gpus(pod) and pod.run not in leased and (pod.node or _can_get_node(snapshot, pod)):
            yield pod


def _can_get_node(snapshot: PoolSnapshot, pod: Pod) -> bool:
    return can_get_node(snapshot.pool, pod, (group.candidate.instance_type for group in snapshot.groups))


def pending_nodes(snapshot: PoolSnapshot) -> int:
    """Count the nodes that all unbound GPU pods of the pool need together, judged by their GPUs."""
    return _nodes_for(snapshot, [pod for pod in snapshot.pods if waits_for_gpus(pod) and _can_get_node(snapshot, pod)])


def waits_for_gpus(pod: Pod) -> bool:
    return _wants_gpus(pod) and not pod.node


def _wants_gpus(pod: Pod) -> bool:
    return bool(pod.gpus) and not (pod.daemon or pod.finished or pod.deleting or pod.gated)


def _nodes_for(snapshot: PoolSnapshot, waiting: Sequence[Pod]) -> int:
    per_node = snapshot.pool.gpus_per_node
    return len(waiting) if per_node is None else math.ceil(sum(pod.gpus for pod in waiting) / per_node)


def plural(number: int, one: str, more: str = "") -> str:
    """Return "1 node", or "2 nodes"; `more` is the plural, if it is not formed with an s."""
    return f"{number} {one}" if number == 1 else f"{number} {more or f'{one}s'}"


# -- machines ------------------------------------------------------------------------------------------------

READY_WITHIN = timedelta(minutes=15)
"""How long a machine may take to join, and a node to become Ready, before it counts as broken.

cluster-autoscaler's own provision timeout. In an EKS managed node group such a machine is billed for about 15 minutes
more, in which EKS tries to drain it (containers-roadmap#1990).
"""

SLOW = timedelta(minutes=3)
"""Most GPU machines are Ready by then."""

State = Literal["usable", "coming", "broken", "taken"]


@dataclass(frozen=True, kw_only=True)
class MachineStatus:
    """One machine that exists and is not terminating, as a decision sees it.

    Attributes:
        node: Its node, once it has joined.
        state: usable: new pods can run there (a cordon of this package is about to be undone or completed, and does
            not count). coming: it is booting, or its node is briefly not Ready. broken: it has a broken GPU, or has
            not become usable in time. taken: it was cordoned externally, cluster-autoscaler is about to remove it, or
            it is in another pool.
        holders: The pods for which it must stay.
        overdue: The pods that still run there although their run's time has passed.
        is_ending: What is reserved for it ends: the cloud takes it, and it is emptied before that.
        is_shunned: Machines come elsewhere in its place, as its zone loses one after the other.
        is_of_other_type: No run that wants nodes allows its machine type: no new pod can run there.
    """

    machine: Machine
    node: Node | None
    state: State
    holders: tuple[Pod, ...] = ()
    overdue: tuple[Pod, ...] = ()
    is_ending: bool = False
    is_shunned: bool = False
    is_of_other_type: bool = False

    @property
    def counts(self) -> bool:
        """Whether it serves demand, now or soon. A machine that only overdue pods use does not, nor one that ends.

        One of another type serves the pods that it has.
        """
        if self.is_ending or self.state not in ("usable", "coming"):
            return False
        return bool(self.holders) or not (self.overdue or self.is_shunned or self.is_of_other_type)

    @property
    def is_there(self) -> bool:
        """Whether the cloud has given it."""
        return self.machine.state != "requested"

    @property
    def may_go(self) -> bool:
        """Whether it may be removed, if it is not needed."""
        return not self.holders and self.state != "taken"

    @property
    def is_new(self) -> bool:
        """Whether its node joined without the pool's labels, and is in no pool yet."""
        return self.node is not None and not self.node.labelled and not self.node.other_pool

    @property
    def coming_since(self) -> datetime | None:
        """Since when it has been starting; None if it is not starting, or if unknown."""
        if self.state != "coming":
            return None
        return self.machine.launched_at if self.node is None else _not_ready_since(self.node)

    def lacks_for_long(self, now: datetime) -> bool:
        """Return True if its provisioner says that it lacks something, although it had the time to have it."""
        return self.is_there and bool(self.machine.lacks) and self.since is not None and now - self.since > SLOW

    @property
    def since(self) -> datetime | None:
        """When it was launched, as far as is known."""
        return self.machine.launched_at or (self.node.created_at if self.node else None)

    def __str__(self) -> str:
        name = f"node {self.node.name}" if self.node else f"machine {self.machine.id} (no node in the pool)"
        return f"{name} of {self.machine.group}"


def usable_nodes(snapshot: PoolSnapshot) -> tuple[Node, ...]:
    """Return the nodes that new pods can run on and whose machines stay."""
    return tuple(each.node for each in snapshot.supply if each.node and each.node.usable and each.counts)


def _state(now: datetime, machine: Machine, node: Node | None) -> State:
    if node is None:
        is_late = machine.launched_at is not None and now - machine.launched_at > READY_WITHIN
        return "broken" if is_late else "coming"
    if node.autoscaler_deleting or node.other_pool or (node.cordoned and not node.cordon_mark):
        return "taken"
    if node.bad_gpu:
        return "broken"
    if node.ready:
        return "usable"
    return "broken" if now - _not_ready_since(node) > READY_WITHIN else "coming"


def _not_ready_since(node: Node) -> datetime:
    return node.ready_changed_at or node.created_at

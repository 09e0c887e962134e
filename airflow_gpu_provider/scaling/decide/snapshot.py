"""PoolSnapshot: everything that a decision about a pool uses, as plain data taken at one moment; and how many nodes are
wanted then, by whom, and until when.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Self

from airflow_gpu_provider.cluster.autoscaler_status import AutoscalerStatus
from airflow_gpu_provider.cluster.demand_key import DemandKey
from airflow_gpu_provider.cluster.karpenter import Kept
from airflow_gpu_provider.cluster.nodes import Node
from airflow_gpu_provider.cluster.pods import Pod
from airflow_gpu_provider.errors import NodesNotReady
from airflow_gpu_provider.platforms.base import Group
from airflow_gpu_provider.platforms.quota import without_room
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.prices import PriceRecord, too_dear
from airflow_gpu_provider.pools.run_budget import in_words, rate_in_words
from airflow_gpu_provider.scaling.state.demand import DemandLease

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
    """

    now: datetime
    pool: GpuPool
    leases: tuple[DemandLease, ...]
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    groups: tuple[Group, ...]
    claimed: Mapping[str, DemandLease] = field(default_factory=dict)
    autoscaler: AutoscalerStatus | None = None
    kept: Mapping[str, Kept] = field(default_factory=dict)

    @property
    def prices(self) -> PriceRecord:
        """What the pool's machines cost, as far as its spec or its demand says."""
        return PriceRecord.of(self.pool, (lease.prices for lease in self.leases))

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


def live_leases(snapshot: PoolSnapshot) -> tuple[DemandLease, ...]:
    """Return the demand that counts now, oldest first."""
    live = (lease for lease in snapshot.leases if lease.live(snapshot.now) and not _is_left(snapshot, lease))
    return tuple(sorted(live, key=lambda lease: (lease.created_at, lease.key.hash)))


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
    leased = sum(lease.nodes for lease in live_leases(snapshot))
    asked = leased + unleased_wanted(snapshot)
    return min(snapshot.pool.max_nodes, max(snapshot.pool.min_nodes, asked))


def usable_needed(snapshot: PoolSnapshot, key: DemandKey) -> int:
    """Return how many usable nodes the pool must have for this run's share to be among them.

    Leases are served oldest first, in addition to the nodes on which GPU pods without a lease run; max_nodes is enough
    for all, because then pods wait for each other.
    """
    live = live_leases(snapshot)
    place = live.index(own_lease(snapshot, key))
    up_to_here = sum(lease.nodes for lease in live[: place + 1])
    return min(_most(snapshot, live[place]), up_to_here + _unleased_nodes(snapshot))


def own_lease(snapshot: PoolSnapshot, key: DemandKey) -> DemandLease:
    """Return the run's live lease; raises NodesNotReady if it has none (any more)."""
    for lease in live_leases(snapshot):
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


def budget_lines(snapshot: PoolSnapshot, key: DemandKey) -> list[str]:
    """Return how long the money of a run lasts, for its task's log; nothing where it has no limit."""
    pool = snapshot.pool
    return [
        f"max_cost={lease.budget.limit:g}: {in_words(pool, lease.budget.spent)} are spent, and the rest lasts until"
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
    """Return when the last demand expires, or None if there is no demand.

    A pod without a lease has the time that its kubelet gives it, `max_runtime` at most; the time is extended by the
    same whenever it has passed at a snapshot.
    """
    ends = [lease.until for lease in live_leases(snapshot)]
    ends += [_ends_at(snapshot, pod) for pod in _unleased_gpu_pods(snapshot)]
    return max(ends, default=None)


def _ends_at(snapshot: PoolSnapshot, pod: Pod) -> datetime:
    """Return when a pod without a lease ends by itself; counted from its start, or until then from its creation."""
    longest = snapshot.pool.max_runtime
    period = max(min(pod.active_deadline or longest, longest), timedelta(seconds=1))
    since = pod.started_at or pod.created_at
    periods = max(snapshot.now - since, timedelta(0)) // period + 1
    return since + periods * period


def wanted_by(snapshot: PoolSnapshot) -> str:
    """Return which runs and pods want nodes, as text."""
    who = [f"{lease.key} ({plural(lease.nodes, 'node')})" for lease in live_leases(snapshot)]
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
        if _wants_gpus(pod) and pod.run not in leased:
            yield pod


def pending_nodes(snapshot: PoolSnapshot) -> int:
    """Count the nodes that all unbound GPU pods of the pool need together, judged by their GPUs."""
    return _nodes_for(snapshot, [pod for pod in snapshot.pods if waits_for_gpus(pod)])


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

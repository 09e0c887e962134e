"""PoolSnapshot: everything that a decision about a pool uses, as plain data taken at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Self

from airflow_gpu_provider.cluster.autoscaler_status import AutoscalerStatus
from airflow_gpu_provider.cluster.karpenter_keeps import Kept
from airflow_gpu_provider.cluster.nodes import Node
from airflow_gpu_provider.cluster.pods import Pod
from airflow_gpu_provider.platforms.base import Group
from airflow_gpu_provider.platforms.quota import without_room
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.prices import PriceRecord, too_dear
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

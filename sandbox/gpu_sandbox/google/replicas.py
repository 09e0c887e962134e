"""What Google Cloud's read calls see: node pools, instance groups and operations as they were up to some seconds ago.

Google promises consistency for management APIs of its newer design guide (AIP-121), which Compute Engine's and GKE's v1
are older than, and says for none of the calls here that it shows what was just changed; its own autoscaler keeps sizes
beside what it reads and corrects them by what it has just asked for. Operations are found by their names at once: the
answer to a write is one, to be polled.

What is written is written at once, and writes find what is there: only reads are old.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from copy import copy

from google.cloud.container_v1.types import NodePool

from gpu_sandbox.clock import Clock
from gpu_sandbox.consistency import History, Staleness
from gpu_sandbox.google.compute_operations import ComputeOperations
from gpu_sandbox.google.instance_groups import InstanceGroup
from gpu_sandbox.google.node_pools import NodePools, Pool

_STALE = frozenset(
    {
        "container:ListNodePools",
        "container:GetNodePool",
        "compute:ListInstanceGroupManagers",
        "compute:GetInstanceGroupManager",
        "compute:ListManagedInstances",
        "compute:ListErrors",
        "compute:ListInstances",
        "compute:GetInstance",
        "compute:ListZoneOperations",
    }
)


class Replicas:
    """The last seconds of one project, and how far back each read goes. Used under the cloud's lock."""

    def __init__(
        self,
        *,
        node_pools: Callable[[], NodePools],
        operations: ComputeOperations,
        staleness: Staleness,
        clock: Clock,
    ) -> None:
        self._node_pools = node_pools
        self._operations = operations
        self._staleness = staleness
        self._clock = clock
        self._pools: History[str, Pool] = History(mark=_mark, copy=_copy, longest=staleness.longest)
        self._then: float | None = None

    def record(self, now: float) -> None:
        """Take the state at `now`."""
        if self._staleness.longest:
            self._pools.record(self._node_pools().pools, now)

    def mark(self) -> Hashable:
        """Differs where anything about node pools has changed."""
        return tuple(map(_mark, self._node_pools().pools.values()))

    @contextmanager
    def reading(self, operation: str) -> Iterator[None]:
        """For the time of one call, `container:GetNodePool`, show what it sees."""
        age = self._staleness.age(operation) if operation in _STALE else 0.0
        self._then = self._clock.now() - age if age else None
        try:
            yield
        finally:
            self._then = None

    def node_pools(self) -> NodePools:
        """The node pools as the call under way sees them."""
        if self._then is None:
            return self._node_pools()
        seen = copy(self._node_pools())
        seen.pools = self._pools.at(self._then)
        return seen

    def operations(self) -> ComputeOperations:
        """Compute Engine's operations as the call under way sees them."""
        return self._operations if self._then is None else self._operations.as_of(self._then)


def _mark(pool: Pool) -> Hashable:
    settings: bytes = NodePool.serialize(pool.settings)
    return settings, tuple((group.zone, _mark_group(group)) for group in pool.all_groups())


def _mark_group(group: InstanceGroup) -> Hashable:
    members = tuple((each.name, each.action, each.status, each.instance_id, each.error) for each in group.members)
    return group.target_size, members, tuple(group.errors[-1:])


def _copy(pool: Pool) -> Pool:
    seen = copy(pool)
    seen.settings = NodePool.deserialize(NodePool.serialize(pool.settings))
    seen.groups = {zone: _copy_group(group) for zone, group in pool.groups.items()}
    return seen


def _copy_group(group: InstanceGroup) -> InstanceGroup:
    seen = copy(group)
    seen.members = [copy(member) for member in group.members]
    seen.errors = list(group.errors)
    return seen

"""How many nodes of one zone a gang has, for the one who waits for them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_gpu_provider.cluster.demand import DemandLease
from airflow_gpu_provider.cluster.nodes import Node
from airflow_gpu_provider.errors import GpuError, PoolSpecError
from airflow_gpu_provider.scaling.gangs import gang_of, usable_by_zone, zones_in_words
from airflow_gpu_provider.scaling.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.wanted import can_grow


@dataclass(frozen=True, kw_only=True)
class GangNodes:
    """What a demand's gang has of the nodes that have to be in one zone.

    Attributes:
        missing: How many the best zone lacks.
        have: Which zone has how many, in words; empty where nothing is missing.
        error: Why they cannot come in one zone at all.
    """

    missing: int = 0
    have: str = ""
    error: GpuError | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        return (self.have,) if self.have else ()

    @classmethod
    def of(cls, snapshot: PoolSnapshot, lease: DemandLease, nodes: Sequence[Node]) -> GangNodes:
        """Return how a gang stands, of which `nodes` are usable."""
        size = gang_of(lease)
        if not size:
            return NO_GANG
        by_zone = usable_by_zone(snapshot, lease, nodes)
        missing = max(0, size - max(by_zone.values(), default=0))
        if not missing:
            return NO_GANG
        have = f"{size} nodes of one zone are wanted, {zones_in_words(by_zone)}"
        return cls(missing=missing, have=have, error=_over_several_zones(snapshot))


NO_GANG = GangNodes()


def _over_several_zones(snapshot: PoolSnapshot) -> GpuError | None:
    """Return an error if all groups that can grow are over several zones: the cloud chooses where a machine comes."""
    groups = [group for group in snapshot.groups if group.when_idle == "remove" and not group.provisioner]
    if snapshot.pool.is_autoscaled or not can_grow(snapshot) or any(g.candidate.is_of_one_zone for g in groups):
        return None
    if not groups:
        return None
    names = ", ".join(f"{group.name} ({group.candidate.zone})" for group in groups)
    return PoolSpecError(
        f"Pool {snapshot.pool.name}: its groups are over several zones, {names}, and the nodes have to be in one.",
        "Give the pool groups of one zone each, or name that zone's group alone.",
        pool=snapshot.pool.name,
    )

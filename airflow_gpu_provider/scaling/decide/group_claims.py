"""Two pools that name one external group: the earlier demand keeps it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from airflow_gpu_provider.errors import PoolDrift
from airflow_gpu_provider.platforms.base import Group
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.state.demand import DemandLease


def claimed(
    pool: GpuPool, groups: Iterable[Group], leases: Iterable[DemandLease], now: datetime
) -> dict[str, DemandLease]:
    """Return the external groups that another pool's demand had before this pool's, by name.

    Args:
        pool: The pool.
        groups: The groups that it names.
        leases: The demand of all pools, including this one.
        now: The time; expired demand has no groups.
    """
    live = sorted((lease for lease in leases if lease.live(now)), key=lambda lease: (lease.created_at, lease.key.hash))
    first: dict[str, DemandLease] = {}
    for lease in live:
        for name in lease.groups:
            first.setdefault(name, lease)
    names = [group.name for group in groups if not group.owned]
    return {name: first[name] for name in names if name in first and first[name].key.pool != pool.name}


def check_group_claims(snapshot: PoolSnapshot) -> None:
    """Reject new demand while another pool has a group that this pool names.

    Raises:
        PoolDrift: The message names the group, the other pool and its run.
    """
    for name, lease in snapshot.claimed.items():
        raise PoolDrift(
            f"Group {name} is scaled by pool {lease.key.pool}, for {lease.key} until {lease.until:%Y-%m-%d %H:%M}Z,"
            f" and pool {snapshot.pool.name} names it too.",
            "Name each group in one pool only; let runs that share a group use the same pool.",
            group=name,
            pool=snapshot.pool.name,
            other=lease.key.pool,
        )

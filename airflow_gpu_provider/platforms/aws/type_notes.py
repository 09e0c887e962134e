"""What to know of a pool's instance types before its groups are made: how they are to be had. Pure."""

from __future__ import annotations

import re

from airflow_gpu_provider.pools import EksGpuPool

_BLOCK_FAMILIES = re.compile(r"p5en?\.|p6")
"""The types that EC2 gives away mostly ahead of time ("Capacity Blocks for ML", supported instance types)."""


def type_notes(pool: EksGpuPool) -> tuple[str, ...]:
    """Return the notes for a pool whose groups this package makes. A template of one's own may say otherwise."""
    return () if pool.launch_template else tuple(_reservation_notes(pool))


def _reservation_notes(pool: EksGpuPool) -> list[str]:
    rare = [name for name in pool.instance_types if _BLOCK_FAMILIES.match(name)]
    if not rare or "ON_DEMAND" not in pool.capacity_types:
        return []
    return [
        f"{', '.join(rare)} can rarely be had on demand: reserve a Capacity Block, and name its group in node_groups"
        ' with manage="scale" (docs/groups-of-others.md), or have an open capacity reservation in the pool\'s zones'
    ]

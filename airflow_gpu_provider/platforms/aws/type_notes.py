"""What to know of a pool's instance types before its groups are made: how to get them, and their networks. Pure."""

from __future__ import annotations

import re

from airflow_gpu_provider.pools import EksGpuPool
from airflow_gpu_provider.pools.efa import EFA_INTERFACES

_BLOCK_FAMILIES = re.compile(r"p5en?\.|p6")
"""The types that EC2 gives away mostly ahead of time ("Capacity Blocks for ML", supported instance types)."""


def type_notes(pool: EksGpuPool) -> tuple[str, ...]:
    """Return the notes for a pool whose groups this package makes. A template of one's own may say otherwise."""
    return () if pool.launch_template else (*_reservation_notes(pool), *_network_notes(pool))


def _reservation_notes(pool: EksGpuPool) -> list[str]:
    rare = [name for name in pool.instance_types if _BLOCK_FAMILIES.match(name)]
    if not rare or "ON_DEMAND" not in pool.capacity_types or pool.reservations:
        return []
    return [
        f"{', '.join(rare)} are rarely available on demand: reserve a Capacity Block, and name it in reservations"
        " (docs/reservations.md), or have an open capacity reservation in the pool's zones"
    ]


def _network_notes(pool: EksGpuPool) -> list[str]:
    """Nodes of a managed group have one plain network interface, unless a template says otherwise."""
    those = {name: count for name in pool.instance_types if (count := EFA_INTERFACES.get(name))}
    if not those or pool.max_nodes < 2 or pool.network:
        return []
    listed = ", ".join(f"{name} ({count})" for name, count in those.items())
    return [
        f"nodes have none of the EFA interfaces of {listed}, so that a training on several of them talks over TCP:"
        ' set network="efa" (docs/multi-node.md)'
    ]

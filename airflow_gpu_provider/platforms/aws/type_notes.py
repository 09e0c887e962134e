"""What to know of a pool's instance types before its groups are made: how to get them, and their networks. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_gpu_provider.pools import EksGpuPool

_BLOCK_FAMILIES = re.compile(r"p5en?\.|p6")
"""The types that EC2 gives away mostly ahead of time ("Capacity Blocks for ML", supported instance types)."""


def _of(family: str, sizes: str, interfaces: int) -> dict[str, int]:
    return {f"{family}.{size}": interfaces for size in sizes.split()}


EFA_INTERFACES: Mapping[str, int] = {
    **_of("g4dn", "8xlarge 12xlarge 16xlarge metal", 1),
    **_of("g5", "8xlarge 12xlarge 16xlarge 24xlarge 48xlarge", 1),
    **_of("g6", "8xlarge 12xlarge 16xlarge 24xlarge 48xlarge", 1),
    **_of("gr6", "8xlarge", 1),
    **_of("g6e", "8xlarge 12xlarge 16xlarge", 1),
    **_of("g6e", "24xlarge", 2),
    **_of("g6e", "48xlarge", 4),
    **_of("g7e", "8xlarge 12xlarge", 1),
    **_of("g7e", "24xlarge", 2),
    **_of("g7e", "48xlarge", 4),
    **_of("p3dn", "24xlarge", 1),
    **_of("p4d", "24xlarge", 4),
    **_of("p4de", "24xlarge", 4),
    **_of("p5", "4xlarge", 1),
    **_of("p5", "48xlarge", 32),
    **_of("p5e", "48xlarge", 32),
    **_of("p5en", "48xlarge", 16),
    **_of("p6-b200", "48xlarge", 8),
    **_of("p6-b300", "48xlarge", 16),
}
"""How many a machine may have at most (DescribeInstanceTypes, EfaInfo)."""


def type_notes(pool: EksGpuPool) -> tuple[str, ...]:
    """Return the notes for a pool whose groups this package makes. A template of one's own may say otherwise."""
    return () if pool.launch_template else (*_reservation_notes(pool), *_network_notes(pool))


def _reservation_notes(pool: EksGpuPool) -> list[str]:
    rare = [name for name in pool.instance_types if _BLOCK_FAMILIES.match(name)]
    if not rare or "ON_DEMAND" not in pool.capacity_types:
        return []
    return [
        f"{', '.join(rare)} are rarely available on demand: reserve a Capacity Block, and name its group in node_groups"
        ' with manage="scale" (docs/groups-of-others.md), or have an open capacity reservation in the pool\'s zones'
    ]


def _network_notes(pool: EksGpuPool) -> list[str]:
    """Nodes of a managed group have one plain network interface, unless a template says otherwise."""
    those = {name: count for name in pool.instance_types if (count := EFA_INTERFACES.get(name))}
    if not those or pool.max_nodes < 2:
        return []
    listed = ", ".join(f"{name} ({count})" for name, count in those.items())
    return [
        f"nodes without a launch_template have none of the EFA interfaces of {listed}, so that a training on several of"
        " them talks over TCP (docs/multi-node.md)"
    ]

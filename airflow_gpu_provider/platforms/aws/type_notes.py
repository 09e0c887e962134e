"""What to know of a pool's instance types before its groups are made: how to get them, their networks, their GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_gpu_provider.accelerators import instance_type
from airflow_gpu_provider.errors import CloudError, PermissionDenied, PoolSpecError
from airflow_gpu_provider.platforms.aws.clients import AwsService
from airflow_gpu_provider.pools import EksGpuPool
from airflow_gpu_provider.pools.efa import EFA_INTERFACES


def require_visible_gpus(ec2: AwsService, pool: EksGpuPool, types: Iterable[str]) -> None:
    """Refuse types for which no tag tells cluster-autoscaler how many GPUs a node has, and EC2 tells it none.

    Such a type has parts of GPUs: its Count is 0, as intended (aws/aws-cli#9659), and its LogicalGpuCount is not.

    Args:
        ec2: The service.
        pool: One that cluster-autoscaler scales; of another nothing is asked.
        types: Those of its groups without that tag: of types in the catalogue this package writes it.

    Raises:
        PoolSpecError: There are such types.
    """
    unknown = sorted({name for name in types if name and instance_type(name) is None})
    if not unknown or not pool.is_autoscaled:
        return
    try:
        described = list(ec2.items("describe_instance_types", "InstanceTypes", InstanceTypes=unknown))
    except (CloudError, PermissionDenied):  # whether EC2 has such types at all is judged elsewhere
        return
    if unseen := [each["InstanceType"] for each in described if not _whole_gpus(each)]:
        raise PoolSpecError(
            f"Pool {pool.name}: EC2 reports no whole GPU for {', '.join(unseen)}, so cluster-autoscaler would add no"
            " node for a pod that requests one.",
            'Use scaling="direct"; or manage="scale" with groups whose tag'
            " k8s.io/cluster-autoscaler/node-template/resources/nvidia.com/gpu has their number.",
            pool=pool.name,
            instance_types=unseen,
        )


def _whole_gpus(described: Mapping[str, Any]) -> int:
    gpus = (described.get("GpuInfo") or {}).get("Gpus") or ()
    return sum(int(each.get("Count") or 0) for each in gpus)


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

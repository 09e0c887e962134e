"""What demand allows the pool's nodes to be: another DAG's other spec is refused, and so is a machine of another type.

Pure. A Lease that does not record it allows what the pool does; a pod that waits says by itself where it can run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from airflow_gpu_provider.errors import PoolDrift
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.state.demand import DemandLease

if TYPE_CHECKING:
    from airflow_gpu_provider.cluster.model.pool_pod import Pod


def of_other_specs(pool: GpuPool, key: DemandKey, live: Iterable[DemandLease]) -> list[DemandLease]:
    """Return the live demand of other DAGs whose spec of the pool allows its nodes to be something else."""
    return [
        lease
        for lease in live
        if lease.key.writer != key.writer and lease.allowed is not None and lease.allowed != pool.allowed
    ]


def check_one_spec(pool: GpuPool, key: DemandKey, live: Iterable[DemandLease]) -> None:
    """Raise PoolDrift while another DAG's demand allows the pool's nodes to be something else than this spec does.

    Its nodes would count for this run, and this run's for it.
    """
    for lease in of_other_specs(pool, key, live):
        assert lease.allowed is not None
        differences = pool.allowed.differences(lease.allowed)
        elsewhere = f" of Airflow {lease.key.installation}" if lease.key.installation != key.installation else ""
        raise PoolDrift(
            f"DAG {lease.key.dag_id}{elsewhere} wants nodes of pool {pool.name} (run {lease.key.run_id}, until"
            f" {lease.until:%Y-%m-%d %H:%M}Z), and its spec of the pool has {'; '.join(differences)}.",
            "Use one spec for both, or another pool name here; this spec takes over when that run has ended.",
            pool=pool.name,
            other=lease.key.writer,
            run=lease.key.run_id,
            differences=differences,
        )


def allowed_types(pool: GpuPool, live: Iterable[DemandLease], waiting: Iterable[Pod]) -> frozenset[str]:
    """Return the machine types that serve at least one of these; empty: any does.

    Any serves a waiting pod of a pool that names no types: it cannot be known which of its machines will come.
    """
    each: list[Collection[str]] = [lease.allowed.types if lease.allowed is not None else () for lease in live]
    each += [pod.machine_types if pool.allowed.types else () for pod in waiting]
    return frozenset(name for types in each for name in types) if all(each) else frozenset()


def can_get_node(pool: GpuPool, pod: Pod, there: Iterable[str]) -> bool:
    """Return False for a waiting pod that runs on other machine types than those of the pool's spec and groups.

    It waits for ever, whatever the pool does. `there` are the types of the groups.
    """
    named = pool.allowed.types
    return not (named and pod.machine_types) or not pod.machine_types.isdisjoint({*named, *there})


def is_one_of(types: frozenset[str], instance_type: str) -> bool:
    return not (types and instance_type) or instance_type in types

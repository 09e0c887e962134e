"""Where a cluster can have GPU nodes: its zones, and what Compute Engine offers in each."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_gpu_provider import accelerators
from airflow_gpu_provider.cluster.threads import in_parallel
from airflow_gpu_provider.errors import CloudError, PoolSpecError
from airflow_gpu_provider.platforms.google.clients import Compute
from airflow_gpu_provider.platforms.google.errors import has_status, message_of
from airflow_gpu_provider.pools import GkeGpuPool


def offered_types(compute: Compute, pool: GkeGpuPool, zones: Sequence[str]) -> set[tuple[str, str]]:
    """Return the (zone, machine type) pairs that Compute Engine offers, attached accelerators included.

    Raises:
        PoolSpecError: A zone does not exist.
    """
    pairs = [(zone, machine_type) for zone in zones for machine_type in pool.machine_types]
    offered = in_parallel(lambda pair: _is_offered(compute, pool, *pair), pairs)
    return {pair for pair, yes in zip(pairs, offered, strict=True) if yes}


def _is_offered(compute: Compute, pool: GkeGpuPool, zone: str, machine_type: str) -> bool:
    if not _exists(compute, pool, zone, f"machineTypes/{machine_type}", "compute.machineTypes.get"):
        return False
    machine = accelerators.gce_machine_type(machine_type)
    if machine and machine.gpu:
        return True
    kind = pool.accelerator_of(machine_type)[0]
    return _exists(compute, pool, zone, f"acceleratorTypes/{kind}", "compute.acceleratorTypes.get")


def _exists(compute: Compute, pool: GkeGpuPool, zone: str, what: str, permission: str) -> bool:
    try:
        compute.get(f"projects/{pool.project_id}/zones/{zone}/{what}", permission=permission)
    except CloudError as error:
        if has_status(error, "NOT_FOUND"):
            return False
        if has_status(error, "INVALID_ARGUMENT"):
            raise PoolSpecError(
                f"Pool {pool.name}: {message_of(error)}.", f"Correct node_locations; the region is {pool.region}."
            ) from error
        raise
    return True

"""Requests about demand, kept in the cluster: one Lease for each block of a DAG run that wants nodes.

A demand Lease is written and deleted by who holds the pool's lock (`lock.py`), and read by everybody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from airflow_gpu_provider.cluster.api.leases import delete_lease, list_leases, put_lease, read_lease
from airflow_gpu_provider.cluster.api.rest import ApiClient
from airflow_gpu_provider.cluster.model.lease import DEMAND_NAMESPACE
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.untrusted import NotParsed, read

log = logging.getLogger(__name__)


def list_demand(api: ApiClient, pool_name: str | None = None, *, shared: str = "") -> tuple[DemandLease, ...]:
    """Return all demand for a pool, or for all pools, expired leases too, oldest first.

    A Lease that does not say whose demand it is any more is left out, with a warning that names it. `shared` as in
    `shared_items`.
    """
    found = []
    for raw in list_leases(api, "demand", pool_name, shared=shared):
        try:
            found.append(read(raw, DemandLease.parse))
        except NotParsed:
            name = raw["metadata"]["name"]
            log.warning("Lease %s/%s does not name its run, and is left out.", DEMAND_NAMESPACE, name)
    return tuple(sorted(found, key=lambda lease: (lease.created_at, lease.key.hash)))


def write_demand(api: ApiClient, lease: DemandLease, *, check: Callable[[], None]) -> None:
    """Create the run's Lease, or replace what it says. `check` is that of the pool's lock, which the caller holds."""
    before = read_lease(api, lease.key.lease_name)
    check()
    put_lease(api, lease.manifest(), before)
    check()  # a process that stalled in between wrote late, from outdated facts: it has to decide again


def delete_demand(api: ApiClient, key: DemandKey) -> bool:
    """Delete the run's Lease; False where there is none. The caller holds the pool's lock."""
    return delete_lease(api, key.lease_name)

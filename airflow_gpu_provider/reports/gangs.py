"""The gangs of a pool as rows: which run, in which zone, and why the others wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.jobs import GangJob, list_gang_jobs
from airflow_gpu_provider.errors import PermissionDenied
from airflow_gpu_provider.scaling.admission import admission
from airflow_gpu_provider.scaling.snapshot import PoolSnapshot

if TYPE_CHECKING:
    from kubernetes.client import ApiClient


@dataclass(frozen=True, kw_only=True)
class GangRow:
    """One gang that has not ended: pods that run together or not at all.

    Attributes:
        gang: Its Job, as namespace/name.
        nodes: How many nodes it takes.
        state: Where it runs, or why it waits.
    """

    pool: str
    gang: str
    nodes: int
    state: str


def gang_rows(api: ApiClient, snapshot: PoolSnapshot) -> tuple[GangRow, ...]:
    """Return the pool's gangs, oldest first; Jobs are read only where demand is for a gang, and if they may be."""
    if not any(lease.gang for lease in snapshot.leases):
        return ()
    try:
        jobs = list_gang_jobs(api, snapshot.pool.name)
    except PermissionDenied:
        return ()
    return tuple(_rows(snapshot, [job for job in jobs if not job.over]))


def _rows(snapshot: PoolSnapshot, jobs: Iterable[GangJob]) -> Iterator[GangRow]:
    jobs = tuple(jobs)
    found = admission(snapshot, jobs)
    next_in = {str(job): zone for job, zone in found.admit}
    for job in jobs:
        name = str(job)
        if name in next_in:
            state = f"is about to start{_in(next_in[name])}"
        elif job.suspended:
            state = f"waits: {found.why.get(name, 'Kueue admits it')}"
        else:
            bound = sum(pod.job == job.uid and pod.node is not None for pod in snapshot.pods)
            state = f"{bound} of {job.size} pods have a node{_in(job.zone)}"
        yield GangRow(pool=snapshot.pool.name, gang=name, nodes=job.size, state=state)


def _in(zone: str) -> str:
    return f" in {zone}" if zone else ""

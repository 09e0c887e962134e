"""Requests about the gangs of a pool: which there are, and the flip of their `suspend`."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any

from airflow_gpu_provider.cluster.api.rest import ApiClient, call, delete, list_items
from airflow_gpu_provider.cluster.model.node import ZONE_LABEL
from airflow_gpu_provider.cluster.model.pool_pod import GANG_LABEL, RUN_LABEL, jobs_path
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.state.gang_jobs import ADMITTED_AT, ZONE_CHOSEN, GangJob
from airflow_gpu_provider.times import format_time


def gangs_of(pool_name: str) -> str:
    """Select the Jobs of a pool's gangs, and what belongs to them."""
    return f"{POOL_LABEL}={pool_name},{GANG_LABEL}"


def list_gang_jobs(api: ApiClient, pool_name: str, run: str | None = None) -> tuple[GangJob, ...]:
    """Return the gangs of a pool, in all namespaces, oldest first; what has no size is left out.

    With `run` those of one run: the hash of its DemandKey.
    """
    selector = gangs_of(pool_name) + (f",{RUN_LABEL}={run}" if run else "")
    found = []
    for raw in list_items(api, "/apis/batch/v1/jobs", resource="jobs", labelSelector=selector):
        with suppress(ValueError):
            found.append(GangJob.parse(raw))
    return tuple(sorted(found, key=lambda job: (job.created_at, job.namespace, job.name)))


def admit(api: ApiClient, job: GangJob, zone: str, now: datetime) -> None:
    """Let the Job that was read create its pods, on nodes of the zone; "" for any.

    Its controller may write its status meanwhile; others leave a suspended Job to who holds the pool's lock.
    """
    if job.started_at is not None:
        # Before 1.36 the placement of a Job that has ever started is fixed as long as it says when (KEP-2926).
        _patch(api, job, {"status": {"startTime": None}}, part="/status")
    chosen = zone if zone and dict(job.node_selector).get(ZONE_LABEL) != zone else None
    notes = {ADMITTED_AT: format_time(now), ZONE_CHOSEN: "true" if chosen else None}
    selector = dict(job.node_selector) | ({ZONE_LABEL: zone} if zone else {})
    placed = {"template": {"spec": {"nodeSelector": {ZONE_LABEL: None} | selector}}}
    body = {"metadata": {"annotations": notes}, "spec": {"suspend": False, **placed}}
    _patch(api, job, body)


def suspend(api: ApiClient, job: GangJob) -> None:
    """Have the Job's pods deleted, until it is admitted again; raises ObjectChanged if it is not as it was read."""
    _patch(api, job, {"metadata": {"resourceVersion": job.resource_version}, "spec": {"suspend": True}})


def delete_job(api: ApiClient, namespace: str, name: str, uid: str) -> bool:
    """Delete this Job and then its pods; False where it is gone, or another has its name."""
    return delete(api, f"{jobs_path(namespace)}/{name}", resource="jobs", uid=uid, with_dependents=True)


def _patch(api: ApiClient, job: GangJob, body: dict[str, Any], *, part: str = "") -> dict[str, Any]:
    path = f"{jobs_path(job.namespace)}/{job.name}{part}"
    meta = {"uid": job.uid, **body.get("metadata", {})}
    resource = f"jobs{part}"
    return call(api, "patch", path, resource=resource, body={**body, "metadata": meta})

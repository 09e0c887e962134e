"""The gangs of a pool: Jobs that run on several nodes at once, as small records; and the flip of their `suspend`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from airflow_gpu_provider.cluster.clock import format_time, parse_time
from airflow_gpu_provider.cluster.nodes import ZONE_LABEL
from airflow_gpu_provider.cluster.pods import GANG_LABEL, RUN_LABEL, gpus_of, jobs_path
from airflow_gpu_provider.cluster.rest import ApiClient, call, delete, list_items
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""The label of a Job that Kueue admits."""

ADMITTED_AT = "airflow-gpu-provider/admitted-at"
"""The annotation of a Job that this package admitted, also once it is suspended again: when it did so last."""

_ZONE_CHOSEN = "airflow-gpu-provider/zone-chosen"  # the annotation that tells our zone from one that the user gave


@dataclass(frozen=True, kw_only=True)
class GangJob:
    """A Job of a pool whose pods run together or not at all, one on each of several nodes.

    Attributes:
        size: How many nodes it takes.
        gpus: nvidia.com/gpu that each of its pods asks for.
        suspended: It has no pods, or they are being deleted.
        queued_elsewhere: Kueue admits it.
        admitted_at: When this package admitted it last.
        started_at: status.startTime; before Kubernetes 1.36 it stays when a Job is suspended again.
        over: It has finished, or somebody has deleted it.
        wants: How many of its pods are to be there now.
        active: How many of its pods have not finished; `ended` have.
        node_selector: The labels that its nodes have to have, as pairs, but for a zone that this package chose.
        zone: The zone that its pods are bound to, if they are to one.
    """

    namespace: str
    name: str
    uid: str = ""
    resource_version: str = ""
    created_at: datetime
    size: int
    gpus: int = 1
    run: str | None = None
    suspended: bool = True
    queued_elsewhere: bool = False
    admitted_at: datetime | None = None
    started_at: datetime | None = None
    over: bool = False
    wants: int = 0
    active: int = 0
    ended: int = 0
    node_selector: tuple[tuple[str, str], ...] = ()
    zone: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Self:
        """Read a Job as the API server sends it; raises ValueError where its label is no number of nodes."""
        meta, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
        labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
        pod_spec = spec["template"]["spec"]
        selector = dict(pod_spec.get("nodeSelector") or {})
        zone = selector.get(ZONE_LABEL, "")
        if _ZONE_CHOSEN in notes:
            selector.pop(ZONE_LABEL, None)
        size = int(labels[GANG_LABEL])
        ends = [c for c in status.get("conditions") or () if c["type"] in ("Complete", "Failed")]
        return cls(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta.get("uid", ""),
            resource_version=meta.get("resourceVersion", ""),
            created_at=datetime.fromisoformat(meta["creationTimestamp"]),
            size=size,
            gpus=gpus_of(pod_spec),
            run=labels.get(RUN_LABEL),
            suspended=bool(spec.get("suspend")),
            queued_elsewhere=QUEUE_LABEL in labels,
            admitted_at=parse_time(notes.get(ADMITTED_AT)),
            started_at=parse_time(status.get("startTime")),
            over="deletionTimestamp" in meta or any(c.get("status") == "True" for c in ends),
            wants=min(size, spec.get("parallelism", size)),
            active=status.get("active", 0),
            ended=status.get("succeeded", 0) + status.get("failed", 0),
            node_selector=tuple(selector.items()),
            zone=zone,
        )


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
    notes = {ADMITTED_AT: format_time(now), _ZONE_CHOSEN: "true" if chosen else None}
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

"""The gangs of a pool as small records: Jobs that run on several nodes at once. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from airflow_gpu_provider.cluster.model.devices import asked
from airflow_gpu_provider.cluster.model.node import ZONE_LABEL
from airflow_gpu_provider.cluster.model.pool_pod import GANG_LABEL, RUN_LABEL
from airflow_gpu_provider.times import parse_time

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""The label of a Job that Kueue admits."""

ADMITTED_AT = "airflow-gpu-provider/admitted-at"
"""The annotation of a Job that this package admitted, also once it is suspended again: when it did so last."""

ZONE_CHOSEN = "airflow-gpu-provider/zone-chosen"  # the annotation that tells our zone from one that the user gave


def is_over(job: dict[str, Any]) -> bool:
    """Return True if a Job has finished, or somebody has deleted it."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    has_ended = any(each["type"] in ("Complete", "Failed") and each.get("status") == "True" for each in conditions)
    return has_ended or "deletionTimestamp" in job["metadata"]


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
        if ZONE_CHOSEN in notes:
            selector.pop(ZONE_LABEL, None)
        size = int(labels[GANG_LABEL])
        return cls(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta.get("uid", ""),
            resource_version=meta.get("resourceVersion", ""),
            created_at=datetime.fromisoformat(meta["creationTimestamp"]),
            size=size,
            gpus=asked(pod_spec),
            run=labels.get(RUN_LABEL),
            suspended=bool(spec.get("suspend")),
            queued_elsewhere=QUEUE_LABEL in labels,
            admitted_at=parse_time(notes.get(ADMITTED_AT)),
            started_at=parse_time(status.get("startTime")),
            over=is_over(raw),
            wants=min(size, spec.get("parallelism", size)),
            active=status.get("active", 0),
            ended=status.get("succeeded", 0) + status.get("failed", 0),
            node_selector=tuple(selector.items()),
            zone=zone,
        )

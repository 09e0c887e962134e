"""WorkloadState: what the JSON of a workload, or of a gang's Job, says about its life; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.cluster.clock import SystemClock, parse_time
from airflow_gpu_provider.cluster.gang_labels import RANK_ANNOTATION
from airflow_gpu_provider.scaling.state.gang_jobs import ADMITTED_AT
from airflow_gpu_provider.training.place.kinds import Json, WorkloadEnd, WorkloadKind

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


@dataclass(frozen=True, kw_only=True)
class WorkloadState:
    """A workload, reduced to what the wait for its end needs.

    Attributes:
        is_suspended: It has not been admitted, or has been suspended again; its pods are deleted.
        is_deleting: Somebody has deleted it.
        end: How it has ended; None until then.
        admitted_at: When this package last admitted a gang, even if it is suspended again; None if others admit it.
        suspended_at: Since when the controller of a Job has had it suspended; None if it has not.
        completed: The ranks that have succeeded, as the Job controller has counted them (status.completedIndexes); also
            those whose pods no longer exist.
        failed_ranks: Those that have failed, as it has counted them (status.failedIndexes). It keeps the pod of a rank
            that failed by itself; if there is none, the pod was deleted.
    """

    kind: str
    name: str
    uid: str
    created_at: datetime
    is_suspended: bool
    is_deleting: bool
    end: WorkloadEnd | None = None
    admitted_at: datetime | None = None
    suspended_at: datetime | None = None
    completed: frozenset[int] = frozenset()
    failed_ranks: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, raw: Json, kind: WorkloadKind) -> Self:
        metadata, status = raw["metadata"], raw.get("status") or {}
        suspended = [c for c in status.get("conditions") or () if (c["type"], c.get("status")) == ("Suspended", "True")]
        return cls(
            kind=kind.kind,
            name=metadata["name"],
            uid=metadata["uid"],
            created_at=parse_time(metadata.get("creationTimestamp")) or SystemClock().now(),
            is_suspended=kind.is_suspended(raw),
            is_deleting="deletionTimestamp" in metadata,
            end=kind.end(raw),
            admitted_at=parse_time((metadata.get("annotations") or {}).get(ADMITTED_AT)),
            suspended_at=parse_time(suspended[0].get("lastTransitionTime")) if suspended else None,
            completed=_indexes(status.get("completedIndexes") or ""),
            failed_ranks=_indexes(status.get("failedIndexes") or ""),
        )

    @property
    def failed(self) -> str:
        """Why it has failed, "reason: message"; empty if it has not."""
        return "" if self.end is None or self.end.succeeded else f"{self.end.reason}: {self.end.message}".strip(": ")

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def main_container(pod: Json) -> str:
    """Return the main container, whose end counts as the pod's: kubectl's default, the one with GPUs, or the first."""
    named = (pod["metadata"].get("annotations") or {}).get(_DEFAULT_CONTAINER)
    containers: list[Any] = (pod.get("spec") or {}).get("containers") or []
    names = [each["name"] for each in containers]
    if named in names:
        return str(named)
    with_gpus = [each["name"] for each in containers if GPU_RESOURCE in _limits(each)]
    return str((with_gpus or names or [""])[0])


def _limits(container: Json) -> Json:
    limits: Json = (container.get("resources") or {}).get("limits") or {}
    return limits


def _indexes(text: str) -> frozenset[int]:
    """Read a Job's list of indexes, like "1,3-5,7"."""
    spans = (part.partition("-") for part in text.split(",") if part)
    return frozenset(index for low, _, high in spans for index in range(int(low), int(high or low) + 1))


def rank_of(pod: Json) -> int | None:
    """Return the pod's index in its Job; None for a pod without an Indexed Job."""
    index = (pod["metadata"].get("annotations") or {}).get(RANK_ANNOTATION)
    return int(index) if index is not None else None

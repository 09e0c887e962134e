"""WorkloadState: what a workload's JSON says about its life, as a small record; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from airflow_gpu_provider.cluster.clock import SystemClock, parse_time
from airflow_gpu_provider.cluster.nodes import GPU_RESOURCE
from airflow_gpu_provider.workloads.kinds import Json, WorkloadEnd, WorkloadKind

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


@dataclass(frozen=True, kw_only=True)
class WorkloadState:
    """A workload, as far as somebody who waits for its end wants to know.

    Attributes:
        is_suspended: Nobody has let it begin, or somebody has suspended it again; its pods are deleted.
        is_deleting: Somebody has deleted it.
        end: How it has ended; None while it has not.
    """

    kind: str
    name: str
    uid: str
    created_at: datetime
    is_suspended: bool
    is_deleting: bool
    end: WorkloadEnd | None

    @classmethod
    def parse(cls, raw: Json, kind: WorkloadKind) -> Self:
        metadata = raw["metadata"]
        return cls(
            kind=kind.kind,
            name=metadata["name"],
            uid=metadata["uid"],
            created_at=parse_time(metadata.get("creationTimestamp")) or SystemClock().now(),
            is_suspended=kind.is_suspended(raw),
            is_deleting="deletionTimestamp" in metadata,
            end=kind.end(raw),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def main_container(pod: Json) -> str:
    """Return the container whose end is the pod's: the one that kubectl takes, or that has the GPUs, or the first."""
    named = (pod["metadata"].get("annotations") or {}).get(_DEFAULT_CONTAINER)
    containers: list[Any] = (pod.get("spec") or {}).get("containers") or []
    names = [each["name"] for each in containers]
    if named in names:
        return str(named)
    with_gpus = [each["name"] for each in containers if GPU_RESOURCE in _limits(each)]
    return str((with_gpus or names or [""])[0])


def has_gpus(pod: Json, container: str) -> bool:
    """Return True if this container of the pod asks for GPUs."""
    containers: list[Any] = (pod.get("spec") or {}).get("containers") or []
    return any(str(_limits(each).get(GPU_RESOURCE, 0)) != "0" for each in containers if each["name"] == container)


def _limits(container: Json) -> Json:
    limits: Json = (container.get("resources") or {}).get("limits") or {}
    return limits

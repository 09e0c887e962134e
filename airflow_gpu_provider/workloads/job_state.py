"""JobState: what a Job's JSON says about its life, as a small record; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from airflow_gpu_provider.cluster.clock import SystemClock, parse_time
from airflow_gpu_provider.cluster.gangs import RANK_ANNOTATION
from airflow_gpu_provider.cluster.jobs import ADMITTED_AT
from airflow_gpu_provider.cluster.pod_state import Json


@dataclass(frozen=True, kw_only=True)
class JobState:
    """A Job, as far as somebody who waits for its pods wants to know.

    Attributes:
        is_suspended: Nobody has admitted it, or somebody has suspended it again; its pods are deleted.
        admitted_at: When this package admitted it last, also where it is suspended again; None where others admit it.
        suspended_at: Since when its controller has it suspended; None where it has not.
        is_deleting: Somebody has deleted it.
        failed: Why it has failed, "reason: message"; empty where it has not.
        completed: The ranks that have ended well, as the Job controller has counted them (status.completedIndexes);
            also those whose pods are not there any more.
    """

    name: str
    uid: str
    created_at: datetime
    is_suspended: bool
    admitted_at: datetime | None
    is_deleting: bool
    failed: str
    completed: frozenset[int] = frozenset()
    suspended_at: datetime | None = None

    @classmethod
    def parse(cls, raw: Json) -> Self:
        metadata, status = raw["metadata"], raw.get("status") or {}
        conditions = {c["type"]: c for c in status.get("conditions") or () if c.get("status") == "True"}
        failed = conditions.get("Failed") or {}
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            created_at=parse_time(metadata.get("creationTimestamp")) or SystemClock().now(),
            is_suspended=bool((raw.get("spec") or {}).get("suspend")),
            admitted_at=parse_time((metadata.get("annotations") or {}).get(ADMITTED_AT)),
            is_deleting="deletionTimestamp" in metadata,
            failed=f"{failed.get('reason', '')}: {failed.get('message', '')}".strip(": "),
            completed=_indexes(status.get("completedIndexes") or ""),
            suspended_at=parse_time((conditions.get("Suspended") or {}).get("lastTransitionTime")),
        )


def _indexes(text: str) -> frozenset[int]:
    """Read a Job's list of indexes, like "1,3-5,7"."""
    spans = (part.partition("-") for part in text.split(",") if part)
    return frozenset(index for low, _, high in spans for index in range(int(low), int(high or low) + 1))


def rank_of(pod: Json) -> int | None:
    """Return which of its Job's pods it is; None for a pod of no Indexed Job."""
    index = (pod["metadata"].get("annotations") or {}).get(RANK_ANNOTATION)
    return int(index) if index is not None else None

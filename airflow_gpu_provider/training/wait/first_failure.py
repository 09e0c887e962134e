"""Which rank of a gang failed first: its error is the gang's, since the others mostly failed because of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import EndUnknown, GpuError, PodOutOfMemory, PodPreempted
from airflow_gpu_provider.training.wait.end import KILLED, why_disrupted

_NEVER = datetime.max.replace(tzinfo=UTC)


Rank = int | str
"""Identifies a pod among those of one object: its rank in a gang, otherwise its name within its kind."""

_R = TypeVar("_R", int, str)


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How a rank failed: its error, and the pod as it was last seen."""

    error: GpuError
    pod: PodState | None = None


def first_failure(ends: Mapping[_R, RankEnd]) -> _R:
    """Return the rank that failed first.

    Times are in whole seconds. Within the same second, a preempted rank counts before one that failed, and a killed one
    comes after these: a rank that loses its peer mostly ends with an exit code. A pod that was deleted for an unknown
    reason comes after one that failed: controllers delete the peers of a failed pod. One whose end nobody saw comes
    last. If everything is equal, the lowest rank wins.
    """
    return min(ends, key=lambda rank: (ended_at(ends[rank]) or _NEVER, _weight(ends[rank]), rank))


def ended_at(end: RankEnd) -> datetime | None:
    """Return when the rank began to end; None if its pod does not say."""
    pod = end.pod
    if pod is None:
        return None
    finished = pod.base.finished_at if pod.base else None
    if not isinstance(end.error, PodPreempted):
        return finished
    times = [pod.disruption.at if pod.disruption else None, pod.deletion_asked_at, finished]
    return min((at for at in times if at), default=None)


def _weight(end: RankEnd) -> int:
    if isinstance(end.error, PodPreempted):
        return 3 if end.pod is not None and end.pod.deletion_asked_at and not why_disrupted(end.pod) else 0
    if isinstance(end.error, EndUnknown):
        return 5
    if isinstance(end.error, PodOutOfMemory):
        return 1
    return 4 if end.error.details.get("exit_code") in KILLED else 2


def in_words(rank: Rank) -> str:
    return f"rank {rank}" if isinstance(rank, int) else rank


def of_rank(error: GpuError, rank: Rank) -> GpuError:
    """Return a rank's error as the gang's: it names the rank, unless the rank is identified by its pod's name."""
    if error.details.get("rank") == rank:
        return error
    who = in_words(rank)
    what = error.what if error.details.get("pod") == rank else f"{who[:1].upper()}{who[1:]}: {error.what}"
    return type(error)(what, error.fix, **{**error.details, "rank": rank})

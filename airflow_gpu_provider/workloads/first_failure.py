"""Which rank of a gang failed first: its error is the gang's, for what the others died of is mostly that. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import GpuError, PodOutOfMemory, PodPreempted
from airflow_gpu_provider.pods.end import KILLED, why_disrupted

_NEVER = datetime.max.replace(tzinfo=UTC)


Rank = int | str
"""What a pod is known by among those of one object: its place in a gang, or else what its kind calls it."""

_R = TypeVar("_R", int, str)


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How a rank ended badly: its error, and the pod as it was last seen."""

    error: GpuError
    pod: PodState | None = None


def first_failure(ends: Mapping[_R, RankEnd]) -> _R:
    """Return the rank that failed first.

    Times have whole seconds. Where two fall into one, a rank that was taken away counts before one that failed, and one
    that was killed last: what a peer's loss does to a rank is mostly an exit code. A pod that was deleted, and nobody
    says why, comes after one that failed: controllers delete the peers of a pod that has. Where all is equal, the
    lowest rank.
    """
    return min(ends, key=lambda rank: (ended_at(ends[rank]) or _NEVER, _weight(ends[rank]), rank))


def ended_at(end: RankEnd) -> datetime | None:
    """Return when the rank's end began; None where its pod does not say it."""
    pod = end.pod
    if pod is None:
        return None
    finished = pod.base.finished_at if pod.base else None
    if not isinstance(end.error, PodPreempted):
        return finished
    told = [pod.disruption.at if pod.disruption else None, pod.deletion_asked_at, finished]
    return min((at for at in told if at), default=None)


def _weight(end: RankEnd) -> int:
    if isinstance(end.error, PodPreempted):
        return 3 if end.pod is not None and end.pod.deletion_asked_at and not why_disrupted(end.pod) else 0
    if isinstance(end.error, PodOutOfMemory):
        return 1
    return 4 if end.error.details.get("exit_code") in KILLED else 2


def in_words(rank: Rank) -> str:
    return f"rank {rank}" if isinstance(rank, int) else rank


def of_rank(error: GpuError, rank: Rank) -> GpuError:
    """Return a rank's error as the gang's: it names the rank."""
    if error.details.get("rank") == rank:
        return error
    who = in_words(rank)
    return type(error)(f"{who[:1].upper()}{who[1:]}: {error.what}", error.fix, **{**error.details, "rank": rank})

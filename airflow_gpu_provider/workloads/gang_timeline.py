"""The phases of a gang's life that are over: those of its slowest rank, since no rank works before all do. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from airflow_gpu_provider.pods.wait import PodSnapshot, timeline
from airflow_gpu_provider.scaling.phases import phase


class Created(Protocol):
    """What the pods belong to; a JobState is one."""

    @property
    def created_at(self) -> datetime: ...


def gang_timeline(job: Created | None, ranks: Sequence[PodSnapshot]) -> list[dict[str, Any]]:
    """Return the phases, with their seconds, as `pods.wait.timeline` has them for one pod.

    "waited for its turn" is the time until the gang was admitted. The image pull is the longest of all ranks', and
    "ran" is from the last rank's start to the last one's end.
    """
    pods = [seen.pod for seen in ranks if seen.pod is not None]
    if job is None or not pods:
        return []
    admitted = min(pod.created_at for pod in pods)
    phases = [phase("waited for its turn", job.created_at, admitted)]
    scheduled = [pod.scheduled_at for pod in pods if pod.scheduled_at]
    if len(scheduled) < len(pods):
        return phases
    phases.append(phase("waited for a node", admitted, max(scheduled)))
    pulls = [each for seen in ranks if seen.pod for each in timeline(seen.pod, seen.events) if "image" in each]
    longest = max(pulls, key=lambda pull: float(pull["seconds"]), default=None)
    starts = [pod.base.started_at for pod in pods if pod.base and pod.base.started_at]
    if longest is not None:
        phases.append(longest)
    if len(starts) < len(pods):
        return phases
    start = phase("start", max(scheduled), max(starts))
    start["seconds"] = max(0.0, round(start["seconds"] - (longest["seconds"] if longest else 0.0), 1))
    phases.append(start)
    ends = [pod.base.finished_at for pod in pods if pod.base and pod.base.finished_at]
    if ends:
        phases.append(phase("ran", max(starts), max(ends)))
    return phases

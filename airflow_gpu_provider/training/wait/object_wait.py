"""ObjectWait: what the waits for a gang and for a workload have in common, and the phases of a gang's life. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.scaling.wait.records import Record
from airflow_gpu_provider.scaling.wait.waits import phase
from airflow_gpu_provider.training.wait.gpu_use import GpuWatching
from airflow_gpu_provider.training.wait.pod_wait import PodSnapshot, PodWait, timeline


@dataclass(frozen=True, kw_only=True)
class ObjectWait(Record):
    """The wait for one object and its pods.

    Attributes:
        name, uid: The object's.
        queue: The Kueue LocalQueue that admits it; empty for none.
        schedule_seconds, start_seconds, deadline, started, is_covered, gpus: As PodWait has them.
    """

    namespace: str
    name: str
    uid: str
    started: datetime
    schedule_seconds: float
    start_seconds: float
    deadline: datetime
    is_covered: bool = True
    queue: str = ""
    gpus: GpuWatching | None = None

    @property
    def named(self) -> dict[str, str]:
        """The object, as an error's details have it."""
        return {"job": self.name}

    def phases(self, pods: Sequence[PodState]) -> list[dict[str, Any]]:
        """Return the completed phases of the pods' lives."""
        return gang_timeline(self.started, [PodSnapshot(pod=pod) for pod in pods])

    def of_pod(self, seen: PodSnapshot) -> PodWait:
        """Return the wait for one of its pods."""
        pod = seen.pod
        return PodWait(
            namespace=self.namespace,
            name=pod.name if pod else self.name,
            uid=pod.uid if pod else "",
            base_container=pod.base.name if pod and pod.base else "",
            started=self.started,
            schedule_seconds=self.schedule_seconds,
            start_seconds=self.start_seconds,
            deadline=self.deadline,
        )


def gang_timeline(created_at: datetime | None, ranks: Sequence[PodSnapshot]) -> list[dict[str, Any]]:
    """Return the completed phases of a gang's life, with their seconds, as `pods.wait.timeline` does for a pod.

    They are those of its slowest rank, since no rank works before all do. `created_at` is when the pods' owner was
    created.

    "waited for its turn" is the time until the gang was admitted. The image pull is the longest of all ranks', and
    "ran" is from the last rank's start to the last one's end.
    """
    pods = [seen.pod for seen in ranks if seen.pod is not None]
    if created_at is None or not pods:
        return []
    admitted = min(pod.created_at for pod in pods)
    phases = [phase("waited for its turn", created_at, admitted)]
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

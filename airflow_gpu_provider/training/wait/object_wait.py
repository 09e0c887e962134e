"""What the waits for a gang and for a workload have in common: ObjectWait, ObjectSnapshot, and a gang's phases. Pure.

WorkloadState is what the JSON of a workload, or of a gang's Job, says about its life. Of several ranks that failed, the
error of the first is the whole's, since the others mostly failed because of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Self, TypeVar

from airflow_gpu_provider.cluster.model.devices import limit_of
from airflow_gpu_provider.cluster.model.pod_state import Json, PodState
from airflow_gpu_provider.cluster.model.pool_pod import RANK_ANNOTATION
from airflow_gpu_provider.errors import EndUnknown, GpuError, PodDeadline, PodOutOfMemory, PodPreempted
from airflow_gpu_provider.scaling.state.gang_jobs import ADMITTED_AT
from airflow_gpu_provider.scaling.wait.records import Progress, phase
from airflow_gpu_provider.times import format_seconds, parse_time
from airflow_gpu_provider.training.place.kinds import WorkloadEnd, WorkloadKind
from airflow_gpu_provider.training.wait.attempt_wait import AttemptWait, Snapshot, because
from airflow_gpu_provider.training.wait.end import KILLED, RAISE_DEADLINE, RETRY, unseen_end, why_disrupted
from airflow_gpu_provider.training.wait.gpu_use import Rank
from airflow_gpu_provider.training.wait.pod_wait import PodSnapshot, PodWait, timeline
from airflow_gpu_provider.training.wait.start_advice import Refusal

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


@dataclass(frozen=True, kw_only=True)
class WorkloadState:
    """A workload, reduced to what the wait for its end needs.

    Attributes:
        is_suspended: It has not been admitted, or has been suspended again; its pods are deleted.
        is_deleting: Somebody has deleted it.
        has_status: Its controller, or one that admits it, has written its status.
        end: How it has ended; None until then.
        admitted_at: When this package last admitted a gang, even if it is suspended again; None if others admit it.
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
    has_status: bool = True
    end: WorkloadEnd | None = None
    admitted_at: datetime | None = None
    completed: frozenset[int] = frozenset()
    failed_ranks: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, raw: Json, kind: WorkloadKind) -> Self:
        metadata, status = raw["metadata"], raw.get("status") or {}
        return cls(
            kind=kind.kind,
            name=metadata["name"],
            uid=metadata["uid"],
            created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
            is_suspended=kind.is_suspended(raw),
            is_deleting="deletionTimestamp" in metadata,
            has_status=bool(status),
            end=kind.end(raw),
            admitted_at=parse_time((metadata.get("annotations") or {}).get(ADMITTED_AT)),
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
    with_gpus = [each["name"] for each in containers if limit_of(each)]
    return str((with_gpus or names or [""])[0])


def _indexes(text: str) -> frozenset[int]:
    """Read a Job's list of indexes, like "1,3-5,7"."""
    spans = (part.partition("-") for part in text.split(",") if part)
    return frozenset(index for low, _, high in spans for index in range(int(low), int(high or low) + 1))


def rank_of(pod: Json) -> int | None:
    """Return the pod's index in its Job; None for a pod without an Indexed Job."""
    index = (pod["metadata"].get("annotations") or {}).get(RANK_ANNOTATION)
    return int(index) if index is not None else None


ENDS_REPORTED_WITHIN = timedelta(seconds=2)
"""How long after a rank's end it counts as the first to end, as kubelets report within a second or two; and how long to
wait for the pods' own ends after a workload has failed: the two come by different watches."""

R = TypeVar("R", int, str)
"""How its pods are told apart: see Rank."""


@dataclass(frozen=True, kw_only=True)
class ObjectSnapshot(Snapshot, Generic[R]):
    """An object, its pods and their surroundings at present.

    Attributes:
        object: The object as last seen; None before it was seen.
        pods: The newest pod of each rank, if there is one.
        ended_at: When its end was first seen.
        is_queued: A gang for which the pool has as many nodes as it needs: it waits for other pods to end, or its turn.
        queued_at: When `is_queued` was last true while a gang was suspended, and now, while the nodes are not known
            yet; when another workload was last suspended.
        evicted: Why its queue has evicted it after admitting it; empty if it has not.
        refused: Why the API server refuses some of its pods; None if it does not.
    """

    object: WorkloadState | None = None
    pods: Mapping[R, PodSnapshot] = field(default_factory=dict)
    ended_at: datetime | None = None
    is_queued: bool = False
    queued_at: datetime | None = None
    evicted: str = ""
    refused: Refusal | None = None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is said of its present state, besides how many pods run."""
        return (*((self.refused.in_words,) if self.refused else ()), *self.notes)

    @property
    def states(self) -> dict[R, PodState]:
        return {rank: seen.pod for rank, seen in self.pods.items() if seen.pod is not None}

    @property
    def in_order(self) -> list[PodSnapshot]:
        """The pods, the lowest rank first."""
        return [seen for _, seen in sorted(self.pods.items(), key=lambda item: item[0])]


@dataclass(frozen=True, kw_only=True)
class ObjectWait(AttemptWait, Generic[R]):
    """The wait for one object and its pods; `name` and `uid` are the object's."""

    @property
    @abstractmethod
    def pod_selector(self) -> str:
        """Selects its pods by a label; `member` says which of them count."""

    @abstractmethod
    def main_container(self, pod: Json) -> str:
        """Return the name of a pod's main container, whose end counts as the pod's."""

    @abstractmethod
    def rank_of(self, pod: Json) -> R | None:
        """Return which of its pods this is; None for one that does not count: of another attempt, say."""

    @property
    @abstractmethod
    def row(self) -> WorkloadKind:
        """The object's kind."""

    @abstractmethod
    def step(self, snapshot: ObjectSnapshot[R], now: datetime) -> Progress:
        """Return whether the wait is over, and how; `lines` describes the present state, for the log."""

    @abstractmethod
    def next_deadline(self, snapshot: ObjectSnapshot[R], now: datetime) -> datetime:
        """Return when `step` may return something else although nothing has changed."""

    @property
    def what(self) -> str:
        return f"{self.row.kind} {self.name}"

    @property
    def path(self) -> str:
        return f"{self.row.path.format(namespace=self.namespace)}/{self.name}"

    def parsed(self, raw: Json) -> WorkloadState:
        """Return the object's state."""
        return WorkloadState.parse(raw, self.row)

    def standing(self, raw: Json, pods: Mapping[R, PodState], now: datetime) -> Progress:
        """Return whether the wait is over, and how, by the object and its pods alone."""
        seen = {rank: PodSnapshot(pod=pod) for rank, pod in pods.items()}
        return self.step(ObjectSnapshot(object=self.parsed(raw), pods=seen), now)

    def _overdue(self, now: datetime, stood: Sequence[str]) -> PodDeadline | None:
        """Return the error at its deadline; `stood` is how it stood then."""
        if now < self.deadline:
            return None
        waited = format_seconds(now - self.started)
        what = f"{self.what} had not finished at its deadline, {waited} after it was created{because(stood)}."
        return PodDeadline(what, RAISE_DEADLINE, **self.named)

    def _deleted(self, snapshot: ObjectSnapshot[R]) -> GpuError | None:
        """Return the error of an object that went, or is going, before it had finished."""
        is_going = snapshot.object is not None and snapshot.object.is_deleting
        if snapshot.gone and snapshot.is_unseen and not is_going:
            return unseen_end(self.what, **self.named)
        if snapshot.gone or is_going:
            return PodPreempted(f"{self.what} was deleted before it had finished.", RETRY, **self.named)
        return None

    def member(self, raw: Json) -> tuple[R, PodState] | None:
        """Return which of its pods this is, and its state; None for one that does not count."""
        rank = self.rank_of(raw)
        return None if rank is None else (rank, PodState.parse(raw, self.main_container(raw)))

    def phases(self, pods: Sequence[PodState]) -> list[dict[str, Any]]:
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
    """Return the completed phases of a gang's life, with their seconds, as `pod_wait.timeline` does for a pod.

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
    pulled_at = max(scheduled) + timedelta(seconds=longest["seconds"] if longest else 0.0)
    phases.append(phase("start", pulled_at, max(starts)))
    ends = [pod.base.finished_at for pod in pods if pod.base and pod.base.finished_at]
    if ends:
        phases.append(phase("ran", max(starts), max(ends)))
    return phases


_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How a rank failed: its error, and the pod as it was last seen."""

    error: GpuError
    pod: PodState | None = None


def first_failure(ends: Mapping[R, RankEnd]) -> R:
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


def rank_in_words(rank: Rank) -> str:
    return f"rank {rank}" if isinstance(rank, int) else rank


def of_rank(error: GpuError, rank: Rank) -> GpuError:
    """Return a rank's error as the gang's: it names the rank, unless the rank is identified by its pod's name."""
    if error.details.get("rank") == rank:
        return error
    who = rank_in_words(rank)
    named = "" if error.details.get("pod") == rank else f"{who[:1].upper()}{who[1:]}: "
    brief = {key: f"{named}{text}" for key, text in error.details.items() if key == "without_log"}
    return type(error)(f"{named}{error.what}", error.fix, **{**error.details, **brief, "rank": rank})

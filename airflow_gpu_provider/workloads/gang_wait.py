"""GangWait: whether a gang has been admitted, has started, ended or been lost, decided from plain data.

Each rank is waited for as a single pod is, by PodWait; here it is decided what that means for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import GangHung, GpuError, PodDeadline, PodFailed, PodPreempted
from airflow_gpu_provider.pods.end import RAISE_DEADLINE, end_of
from airflow_gpu_provider.pods.gpu_use import GpuWatching
from airflow_gpu_provider.pods.wait import PodSnapshot, PodWait
from airflow_gpu_provider.records import Record
from airflow_gpu_provider.scaling.shortage import NoCapacity
from airflow_gpu_provider.scaling.waits import Progress, format_seconds
from airflow_gpu_provider.workloads.first_failure import RankEnd, ended_at, first_failure, of_rank
from airflow_gpu_provider.workloads.gang_lines import gang_lines
from airflow_gpu_provider.workloads.gang_timeline import gang_timeline
from airflow_gpu_provider.workloads.job_state import JobState
from airflow_gpu_provider.workloads.refused_pods import Refusal
from airflow_gpu_provider.workloads.silence import Silence

SETTLED_AFTER = timedelta(seconds=2)
"""How long after a rank's end it is believed that none ended before it: kubelets report within a second or two."""

_CLOCKS_DIFFER = timedelta(seconds=30)  # at most; a gang that is suspended again had two minutes

_RETRY = "Retry the task: the next try waits for new capacity."


@dataclass(frozen=True, kw_only=True)
class GangSnapshot:
    """A gang and its surroundings as they are now.

    Attributes:
        job: What was last seen of its Job; None before anything was.
        gone: The Job is not there any more.
        ranks: Each rank's pod, as far as there is one.
        queued: Why it is not admitted, in words; empty where nobody says it.
        is_queued: As many nodes as it needs are there: it waits for others, or for its turn.
        evicted: Why Kueue has taken its place away, once it had admitted it; empty where it has not.
        queued_at: When that was last so while it was suspended.
        no_capacity: Why the pool gets no machine now, where that is stock or a quota.
        refused: Why the API server refuses some of its pods; None where it does not.
        silence: For how long no rank has printed anything; None where that is not known.
        notes: What else is true now, in words.
    """

    job: JobState | None = None
    gone: bool = False
    ranks: Mapping[int, PodSnapshot] = field(default_factory=dict)
    queued: str = ""
    evicted: str = ""
    is_queued: bool = False
    queued_at: datetime | None = None
    no_capacity: NoCapacity | None = None
    refused: Refusal | None = None
    silence: Silence | None = None
    notes: tuple[str, ...] = ()

    @property
    def pods(self) -> dict[int, PodState]:
        return {rank: seen.pod for rank, seen in self.ranks.items() if seen.pod is not None}


@dataclass(frozen=True, kw_only=True)
class GangWait(Record):
    """The wait for one gang.

    Attributes:
        name, uid: The Job's.
        nodes: How many ranks it has.
        schedule_seconds: How long it may wait for nodes: suspended, without as many nodes as it needs; and then each of
            its pods.
        queue: The LocalQueue of Kueue that admits it; empty where this package does.
        hang_seconds: After how long without a line from any rank the gang counts as hung; None for never.
        start_seconds, deadline, base_container, started, is_covered, gpus: As PodWait has them.
    """

    namespace: str
    name: str
    uid: str
    nodes: int
    base_container: str
    started: datetime
    schedule_seconds: float
    start_seconds: float
    deadline: datetime
    is_covered: bool = True
    hang_seconds: float | None = None
    queue: str = ""
    gpus: GpuWatching | None = None

    @property
    def what(self) -> str:
        """What is waited for, in words."""
        return f"Job {self.name}"

    def step(self, snapshot: GangSnapshot, now: datetime) -> Progress:
        """Return whether the wait is over, and how; `lines` describes the present state, for the log."""
        job = snapshot.job
        refused = (snapshot.refused.in_words,) if snapshot.refused else ()
        lines = (*gang_lines(job, snapshot.ranks, self.nodes, snapshot.queued), *refused, *snapshot.notes)
        look = _Look(self, snapshot, now)
        if look.are_all_well:
            return Progress(done=True, lines=lines, result=look.result())
        if snapshot.evicted:
            what = f"Job {self.name} has lost its place in queue {self.queue}: {snapshot.evicted}."
            return Progress(error=PodPreempted(what, _RETRY, job=self.name), lines=lines, result=look.result())
        if ends := look.ends:
            return self._failed(ends, look, lines)
        if snapshot.gone or (job is not None and job.is_deleting):
            what = f"Job {self.name} was deleted before it had finished."
            return Progress(error=PodPreempted(what, _RETRY, job=self.name), lines=lines, result=look.result())
        if job is not None and job.failed:
            error: GpuError | None = self._job_error(job.failed)
        else:
            refused_too_long = snapshot.refused.error_at(now, self.schedule_seconds) if snapshot.refused else None
            error = refused_too_long or self._late(snapshot, now) or self._hung(snapshot)
        return Progress(error=error, lines=lines, result=look.result() if error else None)

    def next_deadline(self, snapshot: GangSnapshot, now: datetime) -> datetime:
        """Return when `step` may say something else though nothing has changed."""
        look, job = _Look(self, snapshot, now), snapshot.job
        times = [self.deadline]
        if job is not None and job.is_suspended:
            times.append(self._admission_deadline(job, snapshot))
        times += [self.of_rank(seen).next_deadline(seen) for seen in look.undecided]
        if snapshot.refused:
            times.append(snapshot.refused.ends_at(self.schedule_seconds))
        if (left := self._until_hung(snapshot)) is not None:
            times.append(now + left)
        times += [at + SETTLED_AFTER for end in look.ends.values() if (at := ended_at(end))]
        return min(times)

    def of_rank(self, seen: PodSnapshot) -> PodWait:
        """Return the wait for one rank's pod."""
        return PodWait(
            namespace=self.namespace,
            name=seen.pod.name if seen.pod else self.name,
            uid=seen.pod.uid if seen.pod else "",
            base_container=self.base_container,
            started=self.started,
            schedule_seconds=self.schedule_seconds,
            start_seconds=self.start_seconds,
            deadline=self.deadline,
        )

    def _failed(self, ends: Mapping[int, RankEnd], look: _Look, lines: tuple[str, ...]) -> Progress:
        rank = first_failure(ends)
        at = ended_at(ends[rank])
        if at is not None and look.now < at + SETTLED_AFTER and len(ends) < self.nodes:
            return Progress(lines=lines)
        return Progress(error=of_rank(ends[rank].error, rank), lines=lines, result=look.result(rank))

    def _job_error(self, failed: str) -> GpuError:
        """Return the error of a Job that has failed, where no rank's pod tells why."""
        what = f"Job {self.name} has failed ({failed})."
        if failed.startswith("DeadlineExceeded"):
            return PodDeadline(what, RAISE_DEADLINE, job=self.name)
        return PodFailed(
            what, "Its ranks' pods are gone; what was read of their logs is in this task's log.", job=self.name
        )

    def _until_hung(self, snapshot: GangSnapshot) -> timedelta | None:
        """Return how much longer the gang may be silent; None where nothing is judged."""
        silence = snapshot.silence
        started = [pod for pod in snapshot.pods.values() if pod.started]
        if self.hang_seconds is None or silence is None or len(started) < self.nodes:
            return None
        return timedelta(seconds=self.hang_seconds) - silence.lasts

    def _hung(self, snapshot: GangSnapshot) -> GangHung | None:
        left, silence = self._until_hung(snapshot), snapshot.silence
        if left is None or silence is None or left > timedelta(0):
            return None
        lines = [f"rank {rank}: {line}" for rank, line in silence.last_lines.items()]
        return GangHung(
            f"No rank of Job {self.name} has printed anything for {format_seconds(silence.lasts)}.",
            "\n".join(["The ranks' last lines:", *lines]) if lines else "No rank has printed anything at all.",
            job=self.name,
            last_lines={str(rank): line for rank, line in silence.last_lines.items()},
        )

    def _admission_deadline(self, job: JobState, snapshot: GangSnapshot) -> datetime:
        since = max(job.created_at, snapshot.queued_at or job.created_at)
        return since + timedelta(seconds=self.schedule_seconds)

    def _late(self, snapshot: GangSnapshot, now: datetime) -> GpuError | None:
        job = snapshot.job
        if now >= self.deadline:
            waited = format_seconds(now - self.started)
            what = f"Job {self.name} had not finished at its deadline, {waited} after it was created."
            return PodDeadline(what, RAISE_DEADLINE, job=self.name)
        if job is None or not job.is_suspended or snapshot.is_queued:
            return None
        if now < self._admission_deadline(job, snapshot):
            return None
        what = (
            f"Job {self.name} got no {self.nodes} nodes in {format_seconds(timedelta(seconds=self.schedule_seconds))}"
        )
        if why := snapshot.no_capacity:
            return type(why)(f"{what}. {why.what}", why.fix, **why.details, job=self.name)
        because = f" ({snapshot.queued})" if snapshot.queued else ""
        return PodDeadline(
            f"{what}{because}.",
            "Add zones, instance_types or capacity_types to the pool, or raise schedule_timeout_seconds.",
            job=self.name,
        )


@dataclass(frozen=True)
class _Look:
    """What one look at all ranks says."""

    wait: GangWait
    snapshot: GangSnapshot
    now: datetime

    @cached_property
    def progress(self) -> dict[int, Progress]:
        """How each rank stands; of a Job that was suspended only those that ended by themselves before."""
        return {
            rank: self.wait.of_rank(seen).step(seen, self.now)
            for rank, seen in self.snapshot.ranks.items()
            if not self._is_withdrawn(seen)
        }

    @cached_property
    def completed(self) -> frozenset[int]:
        """The ranks whose end only the Job tells: their pods went, unasked as far as was seen, before that could be."""
        job, ranks = self.snapshot.job, self.snapshot.ranks
        counted: frozenset[int] = job.completed if job is not None else frozenset()
        return frozenset(rank for rank in counted if rank not in ranks or _went_unseen(ranks[rank]))

    @property
    def are_all_well(self) -> bool:
        done = {rank for rank, progress in self.progress.items() if progress.done}
        return len(done | self.completed) == self.wait.nodes

    @cached_property
    def ends(self) -> dict[int, RankEnd]:
        """The ranks that ended badly."""
        ranks = self.snapshot.ranks
        return {
            rank: RankEnd(error=progress.error, pod=ranks[rank].pod)
            for rank, progress in self.progress.items()
            if progress.error is not None and rank not in self.completed
        }

    def result(self, rank: int | None = None) -> dict[str, Any]:
        """Return what the task is told of the end; `rank` is the one whose end it is."""
        seen = self.snapshot.ranks.get(rank) if rank is not None else None
        has_ended = seen is not None and not seen.gone and seen.pod is not None and end_of(seen.pod) is not None
        return {
            "timeline": gang_timeline(self.snapshot.job, self._seen()),
            "container_ended": has_ended if rank is not None else self.are_all_well,
            "machine": seen.machine if seen else "",
            "pods": {str(each): pod.name for each, pod in sorted(self.snapshot.pods.items())},
        }

    def _seen(self) -> Sequence[PodSnapshot]:
        return [seen for _, seen in sorted(self.snapshot.ranks.items())]

    @property
    def undecided(self) -> list[PodSnapshot]:
        """The ranks that have neither ended nor been withdrawn."""
        return [
            self.snapshot.ranks[rank]
            for rank, progress in self.progress.items()
            if not (progress.done or progress.error)
        ]

    def _is_withdrawn(self, seen: PodSnapshot) -> bool:
        """Return True for a pod that the Job's suspension has taken away: another comes when it is admitted anew."""
        job, pod = self.snapshot.job, seen.pod
        if job is None or pod is None or (end_of(pod) is not None and pod.deletion_asked_at is None):
            return False
        return job.is_suspended or (job.admitted_at is not None and pod.created_at < job.admitted_at - _CLOCKS_DIFFER)


def _went_unseen(seen: PodSnapshot) -> bool:
    """Return True for a pod that is gone, and was last seen running with nobody having deleted it."""
    pod = seen.pod
    return seen.gone and pod is not None and end_of(pod) is None and pod.deletion_asked_at is None

"""GangWait: whether a gang has been admitted, has started, ended or been lost, decided from plain data.

PodWait waits for each rank as for a single pod; this module decides what that means for all of them. The task's log has
one line per change of the whole, not one per rank and event.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from airflow_gpu_provider.cluster.model.events import short_scheduling_message, size_in_words
from airflow_gpu_provider.cluster.model.pod_state import Json, PodState
from airflow_gpu_provider.cluster.model.pool_pod import JOB_LABEL
from airflow_gpu_provider.errors import GangHung, GpuError, PodDeadline, PodFailed, PodPreempted
from airflow_gpu_provider.scaling.wait.records import Progress
from airflow_gpu_provider.times import format_seconds
from airflow_gpu_provider.training.place.kinds import KINDS, WorkloadKind
from airflow_gpu_provider.training.wait.attempt_wait import Silence, because
from airflow_gpu_provider.training.wait.end import RAISE_DEADLINE, RETRY, end_of, why_disrupted
from airflow_gpu_provider.training.wait.object_wait import (
    ENDS_REPORTED_WITHIN,
    ObjectSnapshot,
    ObjectWait,
    R,
    RankEnd,
    WorkloadState,
    ended_at,
    first_failure,
    gang_timeline,
    of_rank,
    rank_of,
)
from airflow_gpu_provider.training.wait.pod_wait import PodSnapshot

_CLOCKS_DIFFER = timedelta(seconds=30)  # at most; a gang that is suspended again had two minutes


GangSnapshot = ObjectSnapshot[int]


@dataclass(frozen=True, kw_only=True)
class GangWait(ObjectWait[int]):
    """The wait for one gang.

    Attributes:
        name, uid: The Job's.
        nodes: How many ranks it has.
        schedule_seconds: How long it may wait for nodes: while suspended, without as many nodes as it needs; then each
            of its pods.
        queue: The Kueue LocalQueue that admits it; empty if this package does.
        base_container: As PodWait has it.
    """

    run_kind = "gang"

    nodes: int
    base_container: str

    @property
    def named(self) -> dict[str, str]:
        return {"job": self.name}

    @property
    def pods_together(self) -> int:
        return self.nodes

    @property
    def row(self) -> WorkloadKind:
        return KINDS["Job"]

    @property
    def pod_selector(self) -> str:
        return f"{JOB_LABEL}={self.name}"

    def main_container(self, pod: Json) -> str:
        return self.base_container

    def rank_of(self, pod: Json) -> int | None:
        owners = {each["uid"] for each in pod["metadata"].get("ownerReferences") or ()}
        return rank_of(pod) if self.uid in owners else None

    def has_ended(self, pods: Sequence[Json]) -> bool:
        """Return True if all ranks have ended, or one has failed."""
        ends = [end for pod in pods if (end := end_of(PodState.parse(pod, self.base_container)))]
        return len(ends) >= self.nodes or any(end.error for end in ends)

    def pod_with_result(self, result: Mapping[str, Any]) -> str | None:
        name: str | None = (result.get("pods") or {}).get("0")
        return name

    def step(self, snapshot: GangSnapshot, now: datetime) -> Progress:
        job = snapshot.object
        lines = (*gang_lines(job, snapshot.pods, self.nodes, snapshot.queued), *snapshot.remarks)
        look = _Look(self, snapshot, now)
        if look.are_all_well:
            return Progress(done=True, lines=lines, result=look.result())
        if snapshot.evicted:
            what = f"{self.what} was evicted from queue {self.queue}: {snapshot.evicted}."
            return Progress(error=PodPreempted(what, RETRY, job=self.name), lines=lines, result=look.result())
        if ends := look.ends:
            return self._failed(ends, look, lines)
        if deleted := self._deleted(snapshot):
            return Progress(error=deleted, lines=lines, result=look.result())
        if job is not None and job.failed:
            error: GpuError | None = self._job_error(job.failed)
        else:
            refused_too_long = snapshot.refused.error_at(now, self.schedule_seconds) if snapshot.refused else None
            started_at, what = self._all_started_at(snapshot), f"No rank of {self.what} has printed anything"
            hung = self._silent_too_long(what, snapshot.silence, started_at, now)
            error = (
                snapshot.barred
                or refused_too_long
                or self._overdue(now, lines)
                or self._not_admitted(snapshot, now)
                or hung
            )
        return Progress(error=error, lines=lines, result=look.result() if error else None)

    def next_deadline(self, snapshot: GangSnapshot, now: datetime) -> datetime:
        look, job = _Look(self, snapshot, now), snapshot.object
        times = [self.deadline]
        if job is not None and job.is_suspended:
            times.append(self._admission_deadline(job, snapshot))
        times += [self.of_pod(seen).next_deadline(seen, now) for seen in look.undecided]
        if snapshot.refused:
            times.append(snapshot.refused.ends_at(self.schedule_seconds))
        if hangs_at := self._hangs_at(snapshot.silence, self._all_started_at(snapshot), now):
            times.append(hangs_at)
        times += [at + ENDS_REPORTED_WITHIN for end in look.ends.values() if (at := ended_at(end))]
        return min(times)

    def _failed(self, ends: Mapping[int, RankEnd], look: _Look, lines: tuple[str, ...]) -> Progress:
        rank = first_failure(ends)
        at = ended_at(ends[rank])
        if at is not None and look.now < at + ENDS_REPORTED_WITHIN and len(ends) < self.nodes:
            return Progress(lines=lines)
        return Progress(error=of_rank(ends[rank].error, rank), lines=lines, result=look.result(rank))

    def _job_error(self, failed: str) -> GpuError:
        """Return the error of a Job that has failed, if no rank's pod says why."""
        what = f"{self.what} has failed ({failed})."
        if failed.startswith("DeadlineExceeded"):
            return PodDeadline(what, RAISE_DEADLINE, job=self.name)
        fix = "Correct it by what this task's log has of its ranks, whose pods are gone, and clear the task."
        return PodFailed(what, fix, job=self.name)

    def _all_started_at(self, snapshot: GangSnapshot) -> datetime | None:
        """Return when the last rank has started; None if not all have."""
        started = [pod.base.started_at for pod in snapshot.states.values() if pod.base and pod.base.started_at]
        return max(started) if len(started) >= self.nodes else None

    def hung(self, what: str, fix: str, silence: Silence | None, **details: object) -> GangHung:
        last_lines = silence.by_rank if silence else {}
        lines = [f"rank {rank}: {line}" for rank, line in last_lines.items()]
        differs = "Look at the rank whose last line differs. The ranks' last lines:"
        printed = "\n".join([differs, *lines]) if lines else "No rank has printed anything at all." if silence else ""
        return GangHung(what, f"{fix} {printed}".strip(), job=self.name, last_lines=last_lines, **details)

    def _admission_deadline(self, job: WorkloadState, snapshot: GangSnapshot) -> datetime:
        since = max(job.created_at, snapshot.queued_at or job.created_at)
        return since + timedelta(seconds=self.schedule_seconds)

    def _not_admitted(self, snapshot: GangSnapshot, now: datetime) -> GpuError | None:
        job = snapshot.object
        if job is None or not job.is_suspended or snapshot.is_queued or now < self._admission_deadline(job, snapshot):
            return None
        waited = format_seconds(timedelta(seconds=self.schedule_seconds))
        what = f"{self.what} got no {self.nodes} nodes in {waited}"
        if why := snapshot.no_capacity:
            return type(why)(f"{what}. {why.what}", why.fix, **why.details, job=self.name)
        fix = f"{snapshot.to_widen}, or raise schedule_timeout_seconds."
        return PodDeadline(f"{what}{because([*filter(None, [snapshot.queued])])}.", fix, job=self.name)


@dataclass(frozen=True)
class _Look:
    """The state of all ranks at one moment."""

    wait: GangWait
    snapshot: GangSnapshot
    now: datetime

    @cached_property
    def progress(self) -> dict[int, Progress]:
        """Each rank's state; for a suspended Job, only of ranks that had ended by themselves before."""
        return {
            rank: self.wait.of_pod(seen).step(seen, self.now)
            for rank, seen in self.snapshot.pods.items()
            if not self._is_withdrawn(seen)
        }

    @cached_property
    def completed(self) -> frozenset[int]:
        """Ranks whose success only the Job records: their pods were gone before it was seen, with no deletion seen."""
        job, ranks = self.snapshot.object, self.snapshot.pods
        recorded: frozenset[int] = job.completed if job is not None else frozenset()
        return frozenset(rank for rank in recorded if rank not in ranks or _went_unseen(ranks[rank]))

    @property
    def are_all_well(self) -> bool:
        done = {rank for rank, progress in self.progress.items() if progress.done}
        return len(done | self.completed) == self.wait.nodes

    @cached_property
    def ends(self) -> dict[int, RankEnd]:
        """The ranks that failed."""
        ranks = self.snapshot.pods
        seen = {
            rank: RankEnd(error=progress.error, pod=ranks[rank].pod)
            for rank, progress in self.progress.items()
            if progress.error is not None and rank not in self.completed and not self._is_due(progress.error)
        }
        what = f"Its pod of {self.wait.what} was deleted before it had finished."
        deleted = RankEnd(error=PodPreempted(what, RETRY, job=self.wait.name))
        return {**dict.fromkeys(self._lost_unseen, deleted), **seen}

    def _is_due(self, error: GpuError) -> bool:
        """Whether a rank has only reached the gang's deadline, which is no rank's own."""
        return isinstance(error, PodDeadline) and self.now >= self.wait.deadline

    @property
    def _lost_unseen(self) -> frozenset[int]:
        """Ranks whose pods were deleted unwatched, e.g. between two triggerers: only the Job records it."""
        job = self.snapshot.object
        if job is None or job.is_suspended:
            return frozenset()
        return job.failed_ranks - self.snapshot.pods.keys()

    def result(self, rank: int | None = None) -> dict[str, Any]:
        """Return how the gang ended, for the task; `rank` is the one whose end it is."""
        seen = self.snapshot.pods.get(rank) if rank is not None else None
        job = self.snapshot.object
        has_ended = seen is not None and not seen.gone and seen.pod is not None and end_of(seen.pod) is not None
        return {
            "timeline": gang_timeline(job.created_at if job else None, self.snapshot.in_order),
            "container_ended": has_ended if rank is not None else self.are_all_well,
            "machine": seen.machine if seen else "",
            "pods": {str(each): pod.name for each, pod in sorted(self.snapshot.states.items())},
        }

    @property
    def undecided(self) -> list[PodSnapshot]:
        """The ranks that have neither ended nor been withdrawn."""
        return [
            self.snapshot.pods[rank]
            for rank, progress in self.progress.items()
            if not (progress.done or progress.error)
        ]

    def _is_withdrawn(self, seen: PodSnapshot) -> bool:
        """Return True for a pod removed because the Job was suspended: a new one comes when it is admitted again."""
        job, pod = self.snapshot.object, seen.pod
        if job is None or pod is None or (end_of(pod) is not None and pod.deletion_asked_at is None):
            return False
        return job.is_suspended or (job.admitted_at is not None and pod.created_at < job.admitted_at - _CLOCKS_DIFFER)


def _went_unseen(seen: PodSnapshot) -> bool:
    """Return True for a pod that is gone, and was last seen running and not being deleted."""
    pod = seen.pod
    return seen.gone and pod is not None and end_of(pod) is None and pod.deletion_asked_at is None


_TOLD = 3
_PLURAL = {"has": "have", "is": "are", "was": "were", "waits": "wait", "starts": "start", "pulls": "pull"}
_NOT_TOLD = ("", "ContainerCreating", "PodInitializing")


def gang_lines(job: WorkloadState | None, ranks: Mapping[int, PodSnapshot], nodes: int, queued: str) -> list[str]:
    """Return a gang's state: its place in the queue, or how many ranks run and what the others wait for."""
    if job is None:
        return []
    if job.is_suspended:
        return [f"the gang of {nodes} waits to be admitted{f': {queued}' if queued else ''}"]
    if job.is_deleting:
        return ["the gang's Job is being deleted"]
    seen = {rank: ranks.get(rank) for rank in range(nodes)}
    if all(pod_in_words(each) == "has finished" for each in seen.values()):
        return []
    return [in_groups(seen, "ranks", at_most=_TOLD, named=ranks_in_words)]


def in_groups(
    pods: Mapping[R, PodSnapshot | None], what: str, *, at_most: int, named: Callable[[Sequence[R]], str]
) -> str:
    """Return how many of the pods run, and what the others wait for: in `at_most` groups, each of one state."""
    groups: defaultdict[str, list[R]] = defaultdict(list)
    for rank, seen in pods.items():
        groups[pod_in_words(seen)].append(rank)
    running, well = len(groups.pop("runs", ())), len(groups.pop("has finished", ()))
    finished = f", {well} {'has' if well == 1 else 'have'} finished" if well else ""
    others: list[str] = [f"{named(each)} {_state_of(state, len(each))}" for state, each in groups.items()]
    more: list[str] = [f"{len(others) - at_most} more groups of {what} wait"] if len(others) > at_most else []
    return "; ".join([f"{running} of {len(pods)} {what} run{finished}", *others[:at_most], *more])


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Return "rank 3", or "ranks 0-2, 5"."""
    numbers = sorted(ranks)
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    words = [f"{span[0]}-{span[-1]}" if span[0] != span[-1] else str(span[0]) for span in spans]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(words)}"


def _state_of(state: str, pods: int) -> str:
    """Return what `pod_in_words` says, for this many pods."""
    if pods == 1:
        return state
    verb, _, rest = state.partition(" ")
    return f"{_PLURAL.get(verb, verb)} {rest.replace('its ', 'their ', 1)}"


def pod_in_words(seen: PodSnapshot | None) -> str:
    """Return a pod's state, as the words after its name: "runs", "has finished", "waits for its node: ..."."""
    pod = seen.pod if seen else None
    if seen is None or pod is None:
        return "has no pod yet"
    if end := end_of(pod):
        return "has finished" if end.error is None else "has failed"
    if why := why_disrupted(pod):
        return f"is being preempted: {why}"
    if seen.gone:
        return "was deleted"
    if pod.gone_by:
        return "is being deleted"
    return "runs" if pod.started else _pending(pod, seen)


def _pending(pod: PodState, seen: PodSnapshot) -> str:
    events = seen.events
    if pod.scheduled_at is None:
        if seen.is_full:
            return "waits for its turn: the pool is full (all its nodes are up and in use)"
        about_nodes = [event.about_node for event in events if event.about_node]
        why = "; ".join(filter(None, (short_scheduling_message(pod.unschedulable), *about_nodes[-1:])))
        return f"waits for its node{f': {why}' if why else ''}"
    waiting = [one for one in pod.waiting if one.reason not in _NOT_TOLD]
    if waiting:
        return f"waits on node {pod.node}: {waiting[0].reason}: {waiting[0].message}".rstrip(": ")
    pulls = [event.pull for event in events if event.pull and event.pull.is_worth_telling]
    if pulls:
        last = pulls[-1]
        return f"has pulled its image{size_in_words(last.bytes)}, {last.seconds:.0f} s"
    if pulling := [event.pulling_image for event in events if event.pulling_image]:
        return f"pulls its image {pulling[-1]}"
    warnings = [event.in_words for event in events if event.type == "Warning" and event.in_words]
    return f"starts on node {pod.node}" + (f" ({warnings[-1]})" if warnings else "")

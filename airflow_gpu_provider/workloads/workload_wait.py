"""WorkloadWait: whether a workload of any kind has begun, ended or been lost, decided from plain data. No I/O.

What ends it is its own controller's word: a pod that fails may be replaced. Its pods say where the time goes while it
does not begin, and, when it has failed, why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from airflow_gpu_provider.errors import GpuError, PodDeadline, PodFailed, PodPreempted
from airflow_gpu_provider.pods.end import RAISE_DEADLINE, end_of
from airflow_gpu_provider.pods.gpu_use import GpuWatching
from airflow_gpu_provider.pods.wait import PodSnapshot, PodWait
from airflow_gpu_provider.records import Record
from airflow_gpu_provider.scaling.waits import Progress, format_seconds
from airflow_gpu_provider.workloads.first_failure import RankEnd, first_failure, of_rank
from airflow_gpu_provider.workloads.gang_lines import pod_in_words
from airflow_gpu_provider.workloads.gang_timeline import gang_timeline
from airflow_gpu_provider.workloads.kinds import KINDS, Json, WorkloadEnd
from airflow_gpu_provider.workloads.refused_pods import Refusal
from airflow_gpu_provider.workloads.workload_state import WorkloadState, main_container

SETTLED_AFTER = timedelta(seconds=2)
"""How long after a workload has failed its pods' own ends are waited for: the two come by different watches."""

_RETRY = "Retry the task: the next try waits for new capacity."
_TOLD = 4


@dataclass(frozen=True, kw_only=True)
class WorkloadSnapshot:
    """A workload and its surroundings as they are now.

    Attributes:
        workload: What was last seen of it; None before anything was.
        gone: It is not there any more.
        pods: Its pods by what they are called, the newest of each.
        failed_at: When its failure was first seen.
        queued: Why nobody lets it begin, in words; empty where nobody says it.
        queued_at: When it was last suspended.
        evicted: Why its queue has taken its place away; empty where it has not.
        refused: Why the API server refuses its pods, while it has none.
        notes: What else is true now, in words.
    """

    workload: WorkloadState | None = None
    gone: bool = False
    pods: Mapping[str, PodSnapshot] = field(default_factory=dict)
    failed_at: datetime | None = None
    queued: str = ""
    queued_at: datetime | None = None
    evicted: str = ""
    refused: Refusal | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WorkloadWait(Record):
    """The wait for one workload.

    Attributes:
        kind: Its kind, of `kinds.KINDS`.
        task, try_id, attempt: Whose pods count: see Ownership.
        queue: The LocalQueue of Kueue in which it waits; empty for none.
        schedule_seconds: How long its controller may take to make pods, and each of these to get a node. The time in
            which it is suspended does not count.
        start_seconds, deadline, started, is_covered, gpus: As PodWait has them.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    task: str
    try_id: str
    attempt: int
    started: datetime
    schedule_seconds: float
    start_seconds: float
    deadline: datetime
    is_covered: bool = True
    queue: str = ""
    gpus: GpuWatching | None = None

    @property
    def what(self) -> str:
        """What is waited for, in words."""
        return f"{self.kind} {self.name}"

    @property
    def path(self) -> str:
        """The object's, below the API server's address."""
        return f"{KINDS[self.kind].path.format(namespace=self.namespace)}/{self.name}"

    def base_of(self, pod: Json) -> str:
        """Return the container whose end is the pod's."""
        return main_container(pod)

    def step(self, snapshot: WorkloadSnapshot, now: datetime) -> Progress:
        """Return whether the wait is over, and how; `lines` describes the present state, for the log."""
        workload = snapshot.workload
        refused = (snapshot.refused.in_words,) if snapshot.refused else ()
        lines = (*_lines(snapshot), *refused, *snapshot.notes)
        error = self._error(snapshot, now)
        is_done = error is None and workload is not None and workload.end is not None and workload.end.succeeded
        return Progress(done=is_done, error=error, lines=lines, result=_result(snapshot) if is_done or error else None)

    def next_deadline(self, snapshot: WorkloadSnapshot, now: datetime) -> datetime:
        """Return when `step` may say something else though nothing has changed."""
        times = [self.deadline]
        if snapshot.failed_at:
            times.append(snapshot.failed_at + SETTLED_AFTER)
        if snapshot.workload is not None and not snapshot.workload.is_suspended:
            times += [self._begin_deadline(snapshot)] if not snapshot.pods else []
            times += [snapshot.refused.ends_at(self.schedule_seconds)] if snapshot.refused else []
            times += [self.of_pod(seen).next_deadline(seen) for seen in snapshot.pods.values()]
        return min(times)

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

    def _error(self, snapshot: WorkloadSnapshot, now: datetime) -> GpuError | None:
        workload = snapshot.workload
        if workload is not None and workload.end is not None:
            return None if workload.end.succeeded else self._failed(workload, workload.end, snapshot, now)
        if snapshot.gone or (workload is not None and workload.is_deleting):
            what = f"{self.kind} {self.name} was deleted before it had finished."
            return PodPreempted(what, _RETRY, workload=self.name)
        if snapshot.evicted:
            what = f"{self.kind} {self.name} has lost its place in its queue: {snapshot.evicted}."
            return PodPreempted(what, _RETRY, workload=self.name)
        if now >= self.deadline:
            waited = format_seconds(now - self.started)
            what = f"{self.kind} {self.name} had not finished at its deadline, {waited} after it was created"
            return PodDeadline(f"{what}{_because(snapshot)}.", RAISE_DEADLINE, workload=self.name)
        if workload is None or workload.is_suspended:
            return None
        return self._stuck(snapshot, now)

    def _stuck(self, snapshot: WorkloadSnapshot, now: datetime) -> GpuError | None:
        """Return why it never will begin, or has not in its time. A pod that is lost is its controller's affair."""
        if snapshot.refused and (error := snapshot.refused.error_at(now, self.schedule_seconds)):
            return error
        if not snapshot.pods and now >= self._begin_deadline(snapshot):
            waited = format_seconds(timedelta(seconds=self.schedule_seconds))
            what = f"{self.kind} {self.name} has no pod after {waited}{_because(snapshot)}."
            return PodDeadline(what, "See whether its controller runs, and what its status says.", workload=self.name)
        for title, seen in sorted(snapshot.pods.items()):
            if seen.pod is None or seen.gone or seen.pod.deletion_asked_at or end_of(seen.pod):
                continue
            error = self.of_pod(seen).step(seen, now).error
            if error is not None and not isinstance(error, PodPreempted):
                return of_rank(error, title)
        return None

    def _failed(
        self, workload: WorkloadState, end: WorkloadEnd, snapshot: WorkloadSnapshot, now: datetime
    ) -> GpuError | None:
        ends = self._ends(snapshot, now)
        if not ends and snapshot.failed_at is not None and now < snapshot.failed_at + SETTLED_AFTER:
            return None
        said = f"{end.reason}: {end.message}".strip(": ").rstrip(".")
        if not ends or end.reason == "DeadlineExceeded":
            is_late = end.reason == "DeadlineExceeded"
            error, fix = (PodDeadline, RAISE_DEADLINE) if is_late else (PodFailed, "Its pods' logs are in this log.")
            return error(f"{workload} has failed ({said}).", fix, workload=self.name, reason=end.reason)
        title = first_failure(ends)
        return of_rank(ends[title].error, title)

    def _ends(self, snapshot: WorkloadSnapshot, now: datetime) -> dict[str, RankEnd]:
        """Return the pods that ended badly."""
        ends = {}
        for title, seen in snapshot.pods.items():
            error = self.of_pod(seen).step(seen, now).error
            if error is not None and (seen.gone or seen.pod is None or end_of(seen.pod)):
                ends[title] = RankEnd(error=error, pod=seen.pod)
        return ends

    def _begin_deadline(self, snapshot: WorkloadSnapshot) -> datetime:
        return (snapshot.queued_at or self.started) + timedelta(seconds=self.schedule_seconds)


def _lines(snapshot: WorkloadSnapshot) -> list[str]:
    """Return how it stands: its place in a queue, or how many pods run and what the others wait for."""
    workload = snapshot.workload
    if workload is None or workload.end is not None:
        return []
    if workload.is_suspended:
        return [f"{workload} waits to be admitted{f': {snapshot.queued}' if snapshot.queued else ''}"]
    if not snapshot.pods:
        return [f"{workload} has no pod yet"]
    states: dict[str, list[str]] = {}
    for title, seen in sorted(snapshot.pods.items()):
        states.setdefault(pod_in_words(seen), []).append(title)
    counted = Counter({state: len(titles) for state, titles in states.items()})
    running, well = counted.pop("runs", 0), counted.pop("has finished", 0)
    said = [f"{running} of {len(snapshot.pods)} pods run" + (f", {well} have finished" if well else "")]
    said += [f"{_named(states[state])} {state}" for state in [*counted][:_TOLD]]
    return ["; ".join([*said, *([f"{len(counted) - _TOLD} more groups of pods wait"] if len(counted) > _TOLD else [])])]


def _named(titles: list[str]) -> str:
    more = f" and {len(titles) - _TOLD} more" if len(titles) > _TOLD else ""
    return f"{', '.join(titles[:_TOLD])}{more}"


def _because(snapshot: WorkloadSnapshot) -> str:
    said = "; ".join([*_lines(snapshot), *snapshot.notes])
    return f" ({said})" if said else ""


def _result(snapshot: WorkloadSnapshot) -> dict[str, Any]:
    workload = snapshot.workload
    return {
        "timeline": gang_timeline(workload, [seen for _, seen in sorted(snapshot.pods.items())]),
        "container_ended": workload is not None and workload.end is not None,
        "machine": "",
    }

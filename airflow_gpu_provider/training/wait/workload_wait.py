"""WorkloadWait: whether a workload of any kind has started, ended or been lost, decided from plain data. No I/O.

Only its own controller decides that it has ended: a failed pod may be replaced. Its pods show what delays its start,
and why it has failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_gpu_provider.cluster.model.pod_state import ATTEMPT_ANNOTATION, OWNER_ANNOTATION, Json, PodState
from airflow_gpu_provider.cluster.model.pool_pod import WORKLOAD_LABEL
from airflow_gpu_provider.errors import LOST, ControllerNotRunning, GpuError, PodDeadline, PodFailed, PodPreempted
from airflow_gpu_provider.scaling.wait.records import Progress
from airflow_gpu_provider.times import format_seconds
from airflow_gpu_provider.training.place.kinds import KINDS, WorkloadEnd, WorkloadKind
from airflow_gpu_provider.training.wait.attempt_wait import because
from airflow_gpu_provider.training.wait.end import RAISE_DEADLINE, RETRY, before_restart, end_of, why_disrupted
from airflow_gpu_provider.training.wait.gang_wait import in_groups
from airflow_gpu_provider.training.wait.object_wait import (
    ENDS_REPORTED_WITHIN,
    ObjectSnapshot,
    ObjectWait,
    RankEnd,
    WorkloadState,
    first_failure,
    gang_timeline,
    main_container,
    of_rank,
)
from airflow_gpu_provider.training.wait.pod_wait import PodSnapshot

_TOLD = 4
_UNATTENDED_FOR = timedelta(minutes=1)
"""After how long without a status, or a pod, the log names the controller: those of all kinds act within seconds."""
UNATTENDED_AT_MOST = timedelta(minutes=5)
"""How long that may last, while nodes wait: a controller that restarts, or waits for a node of its own, takes less."""
_BY_POLICY = "PodFailurePolicy"  # JobReasonPodFailurePolicy of batch/v1; its message says which condition matched


WorkloadSnapshot = ObjectSnapshot[str]


@dataclass(frozen=True, kw_only=True)
class WorkloadWait(ObjectWait[str]):
    """The wait for one workload.

    Attributes:
        kind: Its kind, from `kinds.KINDS`.
        task, try_id, attempt: Which pods count: see Ownership.
        schedule_seconds: How long its controller may take to create pods, and each pod to get a node. Time while it is
            suspended does not count.
    """

    run_kind = "workload"

    kind: str
    task: str
    try_id: str
    attempt: int

    @property
    def named(self) -> dict[str, str]:
        return {"workload": self.name}

    @property
    def row(self) -> WorkloadKind:
        return KINDS[self.kind]

    @property
    def pod_selector(self) -> str:
        return f"{WORKLOAD_LABEL}={self.task}"

    def main_container(self, pod: Json) -> str:
        return main_container(pod)

    def rank_of(self, pod: Json) -> str | None:
        annotations = pod["metadata"].get("annotations") or {}
        attempt = (annotations.get(OWNER_ANNOTATION), annotations.get(ATTEMPT_ANNOTATION))
        return self.row.pod_title(pod) if attempt == (self.try_id, str(self.attempt)) else None

    def has_ended(self, pods: Sequence[Json]) -> bool:
        """Return True if all its pods have ended."""
        return bool(pods) and all(end_of(PodState.parse(pod, main_container(pod))) for pod in pods)

    def step(self, snapshot: WorkloadSnapshot, now: datetime) -> Progress:
        workload = snapshot.object
        unattended: list[str] = []
        if self._is_unattended(snapshot, now, _UNATTENDED_FOR):
            what = f"no controller seems to act on {self.what}, which has no status"
            unattended = [f"{what}: check that {self.row.controller} runs ({self._deployments})"]
        lines = (*_lines(snapshot), *unattended, *snapshot.remarks)
        error = self._error(snapshot, now)
        has_succeeded = workload is not None and workload.end is not None and workload.end.succeeded
        is_done = error is None and has_succeeded and _has_settled(snapshot, now)
        return Progress(done=is_done, error=error, lines=lines, result=_result(snapshot) if is_done or error else None)

    def next_deadline(self, snapshot: WorkloadSnapshot, now: datetime) -> datetime:
        times = [self.deadline]
        if snapshot.ended_at:
            times.append(snapshot.ended_at + ENDS_REPORTED_WITHIN)
        if snapshot.object is not None and not snapshot.object.is_suspended:
            times += [self._begin_deadline(snapshot)] if not snapshot.pods else []
            unattended = (self._begun(snapshot) + each for each in (_UNATTENDED_FOR, UNATTENDED_AT_MOST))
            times += [at for at in unattended if at > now and not snapshot.object.has_status]
            times += [snapshot.refused.ends_at(self.schedule_seconds)] if snapshot.refused else []
            times += [self.of_pod(seen).next_deadline(seen, now) for seen in snapshot.pods.values()]
        return min(times)

    def _error(self, snapshot: WorkloadSnapshot, now: datetime) -> GpuError | None:
        workload = snapshot.object
        if workload is not None and workload.end is not None:
            return None if workload.end.succeeded else self._failed(workload, workload.end, snapshot, now)
        if deleted := self._deleted(snapshot):
            return deleted
        if snapshot.barred:
            return snapshot.barred
        if snapshot.evicted:
            what = f"{self.what} was evicted from its queue: {snapshot.evicted}."
            return PodPreempted(what, RETRY, workload=self.name)
        if overdue := self._overdue(now, [*_lines(snapshot), *snapshot.notes]):
            return overdue
        return None if workload is None or workload.is_suspended else self._stuck(snapshot, now)

    def _stuck(self, snapshot: WorkloadSnapshot, now: datetime) -> GpuError | None:
        """Return why it will never start, or has not in time. Lost pods are left to its controller."""
        if snapshot.refused and (error := snapshot.refused.error_at(now, self.schedule_seconds)):
            return error
        if self._is_unattended(snapshot, now, UNATTENDED_AT_MOST):
            return ControllerNotRunning(
                f"{self.what} has neither a status nor a pod after {format_seconds(UNATTENDED_AT_MOST)}: no controller"
                " has acted on it.",
                f"Check that {self.row.controller} runs ({self._deployments}), and what kubectl describe"
                f" {self.row.plural} {self.name} -n {self.namespace} shows as events.",
                workload=self.name,
            )
        if not snapshot.pods and now >= self._begin_deadline(snapshot):
            waited = format_seconds(timedelta(seconds=self.schedule_seconds))
            what = f"{self.what} has no pod after {waited}{because([*_lines(snapshot), *snapshot.notes])}."
            return PodDeadline(what, "Check that its controller runs, and the object's status.", workload=self.name)
        for title, seen in sorted(snapshot.pods.items()):
            if seen.pod is None or seen.gone or seen.pod.deletion_asked_at or end_of(seen.pod):
                continue
            error = self.of_pod(seen).step(seen, now).error
            if error is not None and not isinstance(error, LOST):
                return of_rank(error, title)
        return None

    def _failed(
        self, workload: WorkloadState, end: WorkloadEnd, snapshot: WorkloadSnapshot, now: datetime
    ) -> GpuError | None:
        ends = self._ends(snapshot, now)
        if not _has_settled(snapshot, now) or (not ends and not _is_late(snapshot, now)):
            return None
        why = f"{end.reason}: {end.message}".strip(": ").rstrip(".")
        if not ends and end.reason == _BY_POLICY and "condition DisruptionTarget" in end.message:
            return PodPreempted(f"{workload} has failed ({why}).", RETRY, workload=self.name)
        if not ends or end.reason == "DeadlineExceeded":
            is_late = end.reason == "DeadlineExceeded"
            error, fix = (PodDeadline, RAISE_DEADLINE) if is_late else (PodFailed, "Its pods' logs are in this log.")
            brief = f"{workload} has failed ({end.reason})."  # an operator's message may quote its pods' logs
            return error(
                f"{workload} has failed ({why}).", fix, workload=self.name, reason=end.reason, without_log=brief
            )
        title = first_failure(ends)
        return of_rank(ends[title].error, title)

    def _ends(self, snapshot: WorkloadSnapshot, now: datetime) -> dict[str, RankEnd]:
        """Return the pods that failed; for a pod that its controller deleted for its failures, the last failure."""
        ends = {}
        for title, seen in snapshot.pods.items():
            error, pod = self.of_pod(seen).step(seen, now).error, seen.pod
            if error is None or not _is_over(seen):
                continue
            ends[title] = _before_it_was_deleted(pod) or RankEnd(error=error, pod=pod)
        return ends

    def _is_unattended(self, snapshot: WorkloadSnapshot, now: datetime, lasts: timedelta) -> bool:
        """Whether nothing has acted on it for so long since it was created, or admitted, though it could have."""
        workload = snapshot.object
        if workload is None or workload.is_suspended or workload.has_status or not self.row.controller:
            return False
        return not snapshot.pods and not snapshot.refused and now >= self._begun(snapshot) + lasts

    @property
    def _deployments(self) -> str:
        return f"kubectl get deployments --all-namespaces | grep {self.row.controller}"

    def _begun(self, snapshot: WorkloadSnapshot) -> datetime:
        return snapshot.queued_at or self.started

    def _begin_deadline(self, snapshot: WorkloadSnapshot) -> datetime:
        return self._begun(snapshot) + timedelta(seconds=self.schedule_seconds)


def _has_settled(snapshot: WorkloadSnapshot, now: datetime) -> bool:
    """Whether its pods' ends have been told, or have had their time: they have a watch of their own."""
    pods = snapshot.pods.values()
    return _is_late(snapshot, now) or (bool(pods) and all(_is_over(seen) for seen in pods))


def _is_late(snapshot: WorkloadSnapshot, now: datetime) -> bool:
    return snapshot.ended_at is None or now >= snapshot.ended_at + ENDS_REPORTED_WITHIN


def _is_over(seen: PodSnapshot) -> bool:
    return seen.gone or seen.pod is None or end_of(seen.pod) is not None


def _before_it_was_deleted(pod: PodState | None) -> RankEnd | None:
    """Return how a pod that was not preempted had failed before its controller deleted it for that."""
    if pod is None or not pod.deletion_asked_at or why_disrupted(pod):
        return None
    failed = before_restart(pod)
    end = end_of(failed) if failed else None
    return RankEnd(error=end.error, pod=failed) if end and end.error else None


def _lines(snapshot: WorkloadSnapshot) -> list[str]:
    """Return its state: its place in a queue, or how many pods run and what the others wait for."""
    workload = snapshot.object
    if workload is None or workload.end is not None:
        return []
    if workload.is_suspended:
        return [f"{workload} waits to be admitted{f': {snapshot.queued}' if snapshot.queued else ''}"]
    if not snapshot.pods:
        return [f"{workload} has no pod yet"]
    return [in_groups(dict(sorted(snapshot.pods.items())), "pods", at_most=_TOLD, named=_named)]


def _named(titles: Sequence[str]) -> str:
    more = f" and {len(titles) - _TOLD} more" if len(titles) > _TOLD else ""
    return f"{', '.join(titles[:_TOLD])}{more}"


def _result(snapshot: WorkloadSnapshot) -> dict[str, Any]:
    workload = snapshot.object
    created_at = workload.created_at if workload else None
    return {
        "timeline": gang_timeline(created_at, snapshot.in_order),
        "container_ended": workload is not None and workload.end is not None,
        "machine": "",
    }

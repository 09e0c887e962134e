"""PodState: what one pod's JSON says about its life, as a small record; no I/O, no model classes.

Read from the API server's raw JSON, because the client's models take a millisecond for each pod: too long for a
triggerer that watches a thousand of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Self

from airflow_gpu_provider.times import parse_container_time, parse_time
from airflow_gpu_provider.untrusted import plain

Json = Mapping[str, Any]

OWNER_ANNOTATION = "airflow-gpu-provider/owner"
"""On a pod: the id of the task instance try that it belongs to."""

ATTEMPT_ANNOTATION = "airflow-gpu-provider/attempt"
"""On a pod: which of its try's pods it is; it goes up with each preemption."""

DEADLINE_ANNOTATION = "airflow-gpu-provider/active-deadline-seconds"
"""On a pod: the activeDeadlineSeconds that it was created with, before the cluster's policies saw it; "" for none."""


class ContainerRun(NamedTuple):
    """One run of a container. The API's times are whole seconds: a container may be started twice in one of them."""

    container_id: str
    started_at: datetime


@dataclass(frozen=True, kw_only=True)
class ContainerState:
    """One container's status, as the node last reported it; `before` is its end before it was started again."""

    name: str
    status: Literal["waiting", "running", "terminated"]
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    container_id: str = ""
    before: ContainerState | None = None

    @property
    def run(self) -> ContainerRun | None:
        """Which run of the container it is; None while it waits, and if it could not be started."""
        return ContainerRun(self.container_id, self.started_at) if self.started_at is not None else None

    @property
    def failed_before(self) -> ContainerState | None:
        """How it had failed before it was started again; None if it had not."""
        return self.before if self.before is not None and self.before.exit_code else None


_KUEUE_TARGET = "TerminationTarget"  # the condition that Kueue gives a pod before it deletes it


@dataclass(frozen=True, kw_only=True)
class Disruption:
    """The condition DisruptionTarget: Kubernetes takes the pod away for a reason that is not the pod's own."""

    reason: str
    message: str
    at: datetime | None


@dataclass(frozen=True, kw_only=True)
class PodState:
    """A pod, as far as somebody who waits for its base container wants to know.

    Attributes:
        owner: The task instance try that the pod belongs to, from its annotation.
        reason: The pod's own reason (Evicted, DeadlineExceeded, Preempting, ...), mostly empty.
        deadline_at: When its activeDeadlineSeconds are over; None while no node has it, or without a deadline.
        foreign_deadline: Its activeDeadlineSeconds, in words, where they are not those that this package has asked
            for; empty where they are, or where the pod does not say what was asked for.
        grace: How long its containers have to stop by themselves.
        unschedulable: The scheduler's message while it finds no node, else empty.
        tolerations: As JSON; admission has added some.
        gates: The scheduling gates that keep it from the scheduler, Kueue's say.
        deletion_asked_at: When somebody deleted the pod; it may run on until its grace period ends.
        gone_by: When the grace period of that deletion ends.
        base: The container whose end decides.
        others: The other containers, init containers first.
        memory_limit: The base container's, as written, or empty.
    """

    namespace: str
    name: str
    uid: str
    owner: str
    phase: str
    reason: str
    message: str
    node: str | None
    created_at: datetime
    scheduled_at: datetime | None
    deadline_at: datetime | None
    foreign_deadline: str
    grace: timedelta
    unschedulable: str
    tolerations: tuple[Json, ...]
    gates: tuple[str, ...]
    deletion_asked_at: datetime | None
    gone_by: datetime | None
    disruption: Disruption | None
    base: ContainerState | None
    others: tuple[ContainerState, ...]
    memory_limit: str
    image: str

    @classmethod
    def parse(cls, raw: Json, base_container: str) -> Self:
        """Read a pod's JSON; `base_container` names the container whose end decides."""
        metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
        conditions = {c["type"]: c for c in status.get("conditions") or ()}
        scheduled = conditions.get("PodScheduled", {})
        containers = list(_containers(status.get("initContainerStatuses")))
        containers += _containers(status.get("containerStatuses"))
        containers_spec: list[Json] = spec.get("containers") or []
        base_spec = next((c for c in containers_spec if c["name"] == base_container), {})
        limits = (base_spec.get("resources") or {}).get("limits") or {}
        gone_by = parse_time(metadata.get("deletionTimestamp"))
        base = next((c for c in containers if c.name == base_container), None)
        grace = timedelta(seconds=spec.get("terminationGracePeriodSeconds") or 30)
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            owner=(metadata.get("annotations") or {}).get(OWNER_ANNOTATION, ""),
            phase=status.get("phase") or "Pending",
            reason=plain(status.get("reason") or ""),
            message=plain(status.get("message") or ""),
            node=spec.get("nodeName"),
            created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
            scheduled_at=parse_time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
            deadline_at=_deadline(spec, status),
            foreign_deadline=_foreign_deadline(metadata, spec),
            grace=grace,
            unschedulable=plain(scheduled.get("message") or "") if scheduled.get("reason") == "Unschedulable" else "",
            tolerations=tuple(spec.get("tolerations") or ()),
            gates=tuple(gate["name"] for gate in spec.get("schedulingGates") or ()),
            deletion_asked_at=_deletion_asked_at(metadata, gone_by, grace, base) if gone_by else None,
            gone_by=gone_by,
            disruption=_disruption(conditions.get("DisruptionTarget")) or _disruption(conditions.get(_KUEUE_TARGET)),
            base=base,
            others=tuple(c for c in containers if c.name != base_container),
            memory_limit=str(limits.get("memory") or ""),
            image=base_spec.get("image") or "",
        )

    def following(self, before: PodState | None) -> PodState:
        """Return this state of a pod with what the state before tells of when it was deleted.

        A kubelet deletes a pod whose containers have ended once more, with no grace period, and that moves its
        deletionTimestamp to the present (BeforeDelete in k8s.io/apiserver's pkg/registry/rest/delete.go).
        """
        if before is None or self.deletion_asked_at is None:
            return self
        ended_at = before.base.finished_at if before.base and before.deletion_asked_at is None else None
        if ended_at is not None and self.deletion_asked_at == ended_at:
            return replace(self, deletion_asked_at=self.gone_by)  # it had ended before somebody deleted it
        return self.deleted_at(before.deletion_asked_at)

    def deleted_at(self, at: datetime | None) -> PodState:
        """Return this state of a pod that is being deleted with when that was as it was first seen, if that is known.

        Later states know less: their deletionTimestamp may have moved.
        """
        if self.deletion_asked_at is None or at is None:
            return self
        return replace(self, deletion_asked_at=at)

    @property
    def started(self) -> bool:
        """Whether the base container runs or has run."""
        return self.base is not None and self.base.started_at is not None

    @property
    def waiting(self) -> tuple[ContainerState, ...]:
        """The containers that wait for something, in the order in which they start."""
        base = (self.base,) if self.base else ()
        return tuple(container for container in (*self.others, *base) if container.status == "waiting")


def _deletion_asked_at(metadata: Json, gone_by: datetime, grace: timedelta, base: ContainerState | None) -> datetime:
    """Return when the pod was deleted: its grace period before its deletionTimestamp, as long as that period stands.

    A pod with a finalizer, as the Job controller gives its own, stays when its grace period is cut to zero, which moves
    its deletionTimestamp (see `following`). If its container had ended by then, nobody who sees only that can tell
    whether that was before the deletion or because of it; a training that is tried again costs less than one that
    counts as finished and is not.
    """
    left = timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)
    ended_at = base.finished_at if base else None
    if left or not metadata.get("finalizers") or ended_at is None or ended_at < gone_by - grace:
        return gone_by - left
    return min(ended_at, gone_by)


def _deadline(spec: Json, status: Json) -> datetime | None:
    started_at, seconds = parse_time(status.get("startTime")), spec.get("activeDeadlineSeconds")
    return started_at + timedelta(seconds=seconds) if started_at and seconds is not None else None


def _foreign_deadline(metadata: Json, spec: Json) -> str:
    seconds, asked = spec.get("activeDeadlineSeconds"), (metadata.get("annotations") or {}).get(DEADLINE_ANNOTATION)
    if asked is None or seconds is None or str(seconds) == asked:
        return ""
    who = "a cluster policy has set it, usually an admission webhook"
    if not asked:
        return f"{seconds}, and this package asked for none: {who}"
    return f"{seconds}, and not the {asked} that this package asked for: {who}"


def _containers(statuses: Iterable[Json] | None) -> Iterable[ContainerState]:
    for status in statuses or ():
        name, state, last = status["name"], status.get("state") or {}, status.get("lastState") or {}
        before = _terminated(name, last["terminated"]) if last.get("terminated") else None
        container_id = status.get("containerID") or ""
        if ended := state.get("terminated"):
            container_id = ended.get("containerID") or container_id
            yield replace(_terminated(name, ended), container_id=container_id, before=before)
        elif running := state.get("running"):
            yield ContainerState(
                name=name,
                status="running",
                started_at=parse_time(running.get("startedAt")),
                container_id=container_id,
                before=before,
            )
        else:
            waiting = state.get("waiting") or {}
            reason, message = plain(waiting.get("reason") or ""), plain(waiting.get("message") or "")
            yield ContainerState(name=name, status="waiting", reason=reason, message=message, before=before)


def _terminated(name: str, ended: Json) -> ContainerState:
    return ContainerState(
        name=name,
        status="terminated",
        reason=plain(ended.get("reason") or ""),
        message=plain(ended.get("message") or ""),
        exit_code=ended.get("exitCode"),
        started_at=parse_container_time(ended.get("startedAt")),
        finished_at=parse_container_time(ended.get("finishedAt")),
    )


def _disruption(condition: Json | None) -> Disruption | None:
    if condition is None or condition.get("status") != "True":
        return None
    return Disruption(
        reason=plain(condition.get("reason") or ""),
        message=plain(condition.get("message") or ""),
        at=parse_time(condition.get("lastTransitionTime")),
    )

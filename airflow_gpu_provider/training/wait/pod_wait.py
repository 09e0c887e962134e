"""PodWait: whether a pod has ended or been lost, decided from plain data. No I/O, no clock.

The blocking operator and the trigger drive the same `step` (see `watch`), so the two cannot drift apart, and
deadlines and explanations are tested in virtual time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.cluster.model.events import PodEvent, short_scheduling_message, size_in_words
from airflow_gpu_provider.cluster.model.node_requirements import untolerated
from airflow_gpu_provider.cluster.model.pod_state import Json, PodState
from airflow_gpu_provider.errors import (
    EndUnknown,
    GpuError,
    GpuHung,
    PodDeadline,
    PodFailed,
    PodPreempted,
    PodUnschedulable,
)
from airflow_gpu_provider.scaling.wait.records import Progress, phase
from airflow_gpu_provider.times import format_seconds
from airflow_gpu_provider.training.wait.attempt_wait import AttemptWait, Snapshot, because
from airflow_gpu_provider.training.wait.end import (
    KILLED,
    RAISE_DEADLINE,
    PodEnd,
    certain_at,
    end_of,
    end_of_gone,
    lost_with_node,
    own_use,
    released_with_node,
    why_disrupted,
)
from airflow_gpu_provider.training.wait.pull import cannot_start, final_at
from airflow_gpu_provider.training.wait.start_advice import how_to_start

if TYPE_CHECKING:
    from airflow_gpu_provider.cluster.model.node import Node

UNCONFIRMED = timedelta(seconds=30)
"""How long after its grace period a deleted pod may stay before its node counts as dead."""

_EVENTS_IN_ERROR = 3


@dataclass(frozen=True, kw_only=True)
class PodSnapshot(Snapshot):
    """A pod and its surroundings at present.

    Attributes:
        pod: The pod as last seen; None before it was seen.
        node_gone: The pod's node existed and no longer does; Kubernetes deletes its pods a minute later.
        released_by: Who of this package has cordoned the pod's node to release it, and when; empty for nobody.
        machine: The cloud's name for the pod's machine; empty if its node was never seen.
        events: What happened to it, oldest first.
        nodes: The pool's nodes.
        is_full: All nodes that the pool may have are up, with their GPUs, and other pods use them.
        full_at: When `is_full` was last true while the pod waited, or the pod was last gated; None if never. Now, while
            the pool's nodes are not known yet.
        passed_over: The pool has a usable node that the scheduler excludes for a reason other than its pods.
        no_node_has: The labels of the pod's node selector that no usable node of the pool has; empty if one has all.
        too_large: Why the pod can never get a node of the pool, while it waits for one.
        admitted_at: When its queue admitted it; None if unknown, or if it is in no queue.
    """

    pod: PodState | None = None
    node_gone: bool = False
    released_by: str = ""
    machine: str = ""
    events: tuple[PodEvent, ...] = ()
    nodes: tuple[Node, ...] = ()
    is_full: bool = False
    full_at: datetime | None = None
    passed_over: bool = False
    no_node_has: str = ""
    too_large: GpuError | None = None
    admitted_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class PodWait(AttemptWait):
    """The wait for one pod.

    Attributes:
        base_container: The container whose end decides.
    """

    run_kind = "pod"

    base_container: str

    @property
    def what(self) -> str:
        return f"pod {self.name}"

    @property
    def named(self) -> dict[str, str]:
        return {"pod": self.name}

    @property
    def path(self) -> str:
        return f"api/v1/namespaces/{self.namespace}/pods/{self.name}"

    def phases(self, pods: Sequence[PodState]) -> list[dict[str, Any]]:
        return timeline(pods[-1]) if pods else []

    def has_ended(self, pods: Sequence[Json]) -> bool:
        return any(end_of(PodState.parse(pod, self.base_container)) for pod in pods)

    def pod_with_result(self, result: Mapping[str, object]) -> str:
        return self.name

    def step(self, snapshot: PodSnapshot, now: datetime) -> Progress:
        """Return whether the wait is over, and how; `lines` describes the present state, for the log."""
        pod, lines = snapshot.pod, tuple(self._lines(snapshot))
        if snapshot.gone:
            gone = end_of_gone(pod, name=self.name, is_unseen=snapshot.is_unseen)
            return self._over(_with_node(gone, snapshot), snapshot, lines)
        if pod is None:
            return Progress(lines=lines)
        if end := end_of(pod):
            if (believed_at := certain_at(pod)) and now < believed_at:
                return Progress(lines=lines)
            return self._over(_with_node(end, snapshot), snapshot, lines)
        if snapshot.node_gone:
            return self._over(lost_with_node(pod, "left the cluster"), snapshot, lines)
        if pod.gone_by and now > pod.gone_by + UNCONFIRMED:
            return self._over(lost_with_node(pod, "does not answer"), snapshot, lines)
        image = None if pod.started else cannot_start(pod, snapshot.events, now)
        never = snapshot.too_large or snapshot.barred or image
        error = never or self._late(pod, snapshot, now) or self._hung(pod, snapshot, now)
        if error is None:
            return Progress(lines=lines)
        return self._over(PodEnd(error=error), snapshot, lines)

    def next_deadline(self, snapshot: PodSnapshot, now: datetime) -> datetime:
        """Return when `step` may return something else although nothing has changed."""
        pod = snapshot.pod
        times = [self.deadline]
        if pod and not pod.started and not pod.gates:
            times.append(self._start_deadline(pod) or self._schedule_deadline(pod, snapshot))
            if failed_at := final_at(pod, snapshot.events):
                times.append(failed_at)
        if pod and (believed_at := certain_at(pod)):
            times.append(believed_at)
        if pod and pod.gone_by:
            times.append(pod.gone_by + UNCONFIRMED)
        if pod and pod.base and (hangs_at := self._hangs_at(snapshot.silence, pod.base.started_at, now)):
            times.append(hangs_at)
        return min(times)

    # -- deadlines -------------------------------------------------------------------------------------------

    def _schedule_deadline(self, pod: PodState, snapshot: PodSnapshot) -> datetime:
        since = max(pod.created_at, snapshot.full_at or pod.created_at)
        return since + timedelta(seconds=self.schedule_seconds)

    def _start_deadline(self, pod: PodState) -> datetime | None:
        return pod.scheduled_at and pod.scheduled_at + timedelta(seconds=self.start_seconds)

    def _late(self, pod: PodState, snapshot: PodSnapshot, now: datetime) -> GpuError | None:
        if now >= self.deadline:
            state = "finished" if pod.started else "started"
            return self._deadline_error(
                f"had not {state} at its deadline, {format_seconds(now - pod.created_at)} after it was created",
                RAISE_DEADLINE,
                snapshot,
            )
        if pod.started:
            return None
        start_deadline = self._start_deadline(pod)
        if start_deadline is None and not pod.gates and now >= self._schedule_deadline(pod, snapshot):
            what = f"got no node in {format_seconds(timedelta(seconds=self.schedule_seconds))}"
            if why := snapshot.no_capacity:
                return type(why)(f"Pod {self.name} {what}. {why.what}", why.fix, **why.details, pod=self.name)
            if snapshot.passed_over:
                causes = "; ".join(_why_late(snapshot))
                return PodUnschedulable(
                    f"Pod {self.name} {what}, for a reason other than the pods running on the pool's nodes ({causes}).",
                    _how_to_be_scheduled(pod, snapshot.nodes),
                    pod=self.name,
                )
            return self._deadline_error(what, f"{snapshot.to_widen}, or raise schedule_timeout_seconds.", snapshot)
        if start_deadline is not None and now >= start_deadline:
            fix, _ = how_to_start(pod, snapshot.events)
            took = format_seconds(timedelta(seconds=self.start_seconds))
            return self._deadline_error(f"did not start in {took} on node {pod.node}", fix, snapshot)
        return None

    def _hung(self, pod: PodState, snapshot: PodSnapshot, now: datetime) -> GpuHung | None:
        started_at = pod.base.started_at if pod.base and not pod.gone_by else None
        return self._silent_too_long(f"Pod {self.name} has printed nothing", snapshot.silence, started_at, now)

    def _deadline_error(self, what: str, fix: str, snapshot: PodSnapshot) -> PodDeadline:
        return PodDeadline(f"Pod {self.name} {what}{because(_why_late(snapshot))}.", fix, pod=self.name)

    # -- words -----------------------------------------------------------------------------------------------

    def _lines(self, snapshot: PodSnapshot) -> list[str]:
        pod = snapshot.pod
        lines = [*_event_lines(snapshot.events), *snapshot.notes]
        if pod is None or end_of(pod):
            return lines
        if pod.foreign_deadline:
            lines.append(f"the pod's activeDeadlineSeconds are {pod.foreign_deadline}")
        if not pod.started:
            lines += _pending_lines(pod, snapshot)
        else:
            lines.append(f"container {self.base_container} started on node {pod.node}")
            lines += _waiting_lines(pod)  # a sidecar, without which there is no result, or no proxy
            lines += [_leaving_line(node) for node in snapshot.nodes if node.name == pod.node and _may_leave(node)]
        if use := own_use(pod):
            lines.append(f"the pod is being evicted: {use.what}")
        elif why := why_disrupted(pod):
            lines.append(f"the pod is being preempted: {why}")
        elif pod.gone_by:
            lines.append("the pod is being deleted")
        return lines

    def _over(self, end: PodEnd, snapshot: PodSnapshot, lines: tuple[str, ...]) -> Progress:
        pod = snapshot.pod
        if pod is not None and snapshot.released_by and isinstance(end.error, PodPreempted):
            end = released_with_node(pod, snapshot.released_by)
        has_ended = not snapshot.gone and pod is not None and pod.base is not None and pod.base.status == "terminated"
        result = {
            "timeline": timeline(pod, snapshot.events, snapshot.admitted_at) if pod else [],
            "container_ended": has_ended,
            "deletion_asked_at": pod.deletion_asked_at if pod else None,
            "machine": snapshot.machine,
        }
        return Progress(done=end.error is None, error=end.error, lines=lines, result=result)


def _how_to_be_scheduled(pod: PodState, nodes: Sequence[Node]) -> str:
    message = pod.unschedulable.lower()
    if "persistentvolumeclaim" in message:  # the scheduler's VolumeBinding: 'persistentvolumeclaim "x" not found'
        do = "Create the claim, or correct its name" if "not found" in message else "See why the claim has no volume"
        return f"{do}: kubectl describe pvc --namespace {pod.namespace}."
    if "untolerated taint" in message:
        found = dict.fromkeys(str(taint) for node in nodes for taint in untolerated(node.taints, pod.tolerations))
        which = ", ".join(found) or "that the pod does not tolerate"
        return f"See what should take the taint {which} off the node, or name it in the pool's taints."
    return "Correct the pod's node_selector, affinity, tolerations and requests, as admission has left them."


def _with_node(end: PodEnd, snapshot: PodSnapshot) -> PodEnd:
    """Return how a container ended: with its node, if it was killed, or nobody saw its end, while the node went down.

    A kubelet that is stopped with its machine may report the container's end, but no longer the reason.
    """
    pod, error = snapshot.pod, end.error
    was_killed = type(error) is PodFailed and error.details.get("exit_code") in KILLED
    if pod is None or not (was_killed or isinstance(error, EndUnknown)):
        return end
    if snapshot.node_gone or snapshot.released_by:
        return lost_with_node(pod, "left the cluster")
    node = next((node for node in snapshot.nodes if node.name == pod.node), None)
    if node is not None and node.leaving:
        return lost_with_node(pod, f"is being removed, {node.leaving}")
    return lost_with_node(pod, "is not Ready any more") if node is not None and not node.ready else end


def timeline(
    pod: PodState, events: tuple[PodEvent, ...] = (), admitted_at: datetime | None = None
) -> list[dict[str, Any]]:
    """Return the completed phases of the pod's life, with start and duration, from its timestamps and events.

    A pull of a second or more is a separate phase, "image pull", with `image` and `bytes` (0 if the node does not
    report it). "start" is the rest of the time from getting a node to the running container: volumes, init containers.
    A pod that a queue admitted after its creation has "waited for its turn" until then.
    """
    if pod.scheduled_at is None:
        return []
    started_at, ended_at = (pod.base.started_at, pod.base.finished_at) if pod.base else (None, None)
    pulls = [
        (event.at, event.pull) for event in events if event.pull and (started_at is None or event.at <= started_at)
    ]
    pulls = [(at, pull) for at, pull in pulls if pull.is_worth_telling]
    admitted_at = min(max(admitted_at, pod.created_at), pod.scheduled_at) if admitted_at else None
    phases = [phase("waited for its turn", pod.created_at, admitted_at)] if admitted_at else []
    phases.append(phase("waited for a node", admitted_at or pod.created_at, pod.scheduled_at))
    phases += [
        phase("image pull", at - timedelta(seconds=pull.seconds), at, image=pull.image, bytes=pull.bytes)
        for at, pull in pulls
    ]
    if started_at is not None:
        pulled_at = pod.scheduled_at + timedelta(seconds=sum(pull.seconds for _, pull in pulls))
        phases.append(phase("start", pulled_at, started_at))
    if started_at is not None and ended_at is not None:
        phases.append(phase("ran", started_at, ended_at))
    return phases


def phase_in_words(entry: Mapping[str, Any]) -> str:
    """Return a phase of a timeline as a human-readable line."""
    image = f"  {entry['image']}{size_in_words(entry.get('bytes', 0))}" if "image" in entry else ""
    return f"{entry['phase']:<18} {entry['seconds']:6.1f} s{image}"


def _pending_lines(pod: PodState, snapshot: PodSnapshot) -> list[str]:
    if pod.scheduled_at is not None:
        return [f"placed on node {pod.node}", *_waiting_lines(pod)]
    if pod.gates:
        gates = f"its scheduling gate {', '.join(pod.gates)} is not lifted yet"
        return [f"waits to be admitted: {snapshot.queued or gates}"]
    if snapshot.is_full:
        queued = "the pool is full (all its nodes are up and in use): the pod is queued"
        has_other_reason = pod.unschedulable and GPU_RESOURCE not in pod.unschedulable
        return [f"{queued} ({short_scheduling_message(pod.unschedulable)})" if has_other_reason else queued]
    lines = []
    if snapshot.no_node_has:
        lines.append(f"no node of the pool has {snapshot.no_node_has}, which the pod's node selector asks for")
    if pod.unschedulable:
        lines.append(f"waits for a node: {short_scheduling_message(pod.unschedulable)}")
    return lines + [_node_line(node, pod) for node in snapshot.nodes]


def _waiting_lines(pod: PodState) -> list[str]:
    waiting = [c for c in pod.waiting if c.reason not in ("", "ContainerCreating", "PodInitializing")]
    return [f"container {c.name} waits: {f'{c.reason}: {c.message}'.strip(': ')}" for c in waiting]


def _why_late(snapshot: PodSnapshot) -> list[str]:
    """Return what a deadline's error says about the time before: how it was spent, and what was last waited for."""
    pod = snapshot.pod
    if pod is None:
        return [*snapshot.notes]
    if pod.started:
        phases = timeline(pod, snapshot.events, snapshot.admitted_at)
        return [f"{each['phase']}: {format_seconds(timedelta(seconds=each['seconds']))}" for each in phases]
    since = pod.scheduled_at or pod.created_at
    events = tuple(event for event in snapshot.events if event.at >= since)
    _, cause = how_to_start(pod, events)
    before = [] if cause is None or cause in events[-_EVENTS_IN_ERROR:] else [cause.in_words]
    return [*_pending_lines(pod, snapshot), *before, *_event_lines(events)[-_EVENTS_IN_ERROR:], *snapshot.notes]


def _event_lines(events: tuple[PodEvent, ...]) -> list[str]:
    """Return the events as lines; a pull's start is left out once it is over."""
    pulled = {event.pulled_image for event in events}
    return [event.in_words for event in events if event.in_words and event.pulling_image not in pulled - {""}]


def _may_leave(node: Node) -> bool:
    """Return True if the node is about to be removed; a managed node group cordons it before draining it."""
    return bool(node.leaving) or (node.cordoned and not node.cordoned_by_us)


def _leaving_line(node: Node) -> str:
    if node.leaving:
        return f"node {node.name} is about to be removed: {node.leaving}"
    return f"node {node.name} was cordoned under the pod: it may be drained"


def _node_line(node: Node, pod: PodState) -> str:
    where = ", ".join(part for part in (node.instance_type, node.zone) if part)
    if node.leaving:
        return f"node {node.name} is being removed: {node.leaving}"
    if not node.ready:
        return f"node {node.name} joined ({where}), not Ready yet"
    if node.cordoned:
        return f"node {node.name} is cordoned"
    if node.bad_gpu:
        return f"node {node.name} is avoided: {node.bad_gpu}"
    if kept_out := untolerated(node.taints, pod.tolerations):
        taints = ", ".join(map(str, kept_out))
        return f"node {node.name} is Ready, with the taint {taints}, which the pod does not tolerate"
    if node.gpus == 0:
        return f"node {node.name} is Ready, its GPUs are not allocatable yet: driver or device plugin"
    return f"node {node.name} is Ready, nvidia.com/gpu allocatable: {node.gpus}"

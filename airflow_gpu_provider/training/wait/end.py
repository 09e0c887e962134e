"""How a pod ended: the one place that maps Kubernetes' states and reasons to this package's errors. Pure.

Whether an evicted pod had itself used up what ran out, the kubelet's message tells: pkg/kubelet/eviction/helpers.go, of
several releases. For node pressure it names each container above its request, and any use is above a request of 0: only
the amount tells whose fault it was. The pod's it was if the node would have had enough without what the pod used beyond
its requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_gpu_provider.cluster.model.events import PodEvent
from airflow_gpu_provider.cluster.model.pod_state import ContainerState, Disruption, PodState
from airflow_gpu_provider.cluster.model.quantity import amount
from airflow_gpu_provider.errors import (
    EndUnknown,
    GpuError,
    PodDeadline,
    PodFailed,
    PodOutOfMemory,
    PodPreempted,
)
from airflow_gpu_provider.training.wait.program_signs import RAISE_MEMORY

EVICTED = "Evicted"
"""The reason of a pod that its kubelet evicts, and of its failure if it had used up itself what ran out."""

_LOW = re.compile(r"The node was low on resource: (?P<resource>[\w-]+)")
_THRESHOLD = re.compile(r"Threshold quantity: (?P<threshold>[\w.]+),")
_USE = re.compile(
    r"(?P<kind>Container|Pod) (?P<name>\S+) was using (?P<used>[\w.]+), (?:request is|which exceeds its request of)"
    r" (?P<asked>\d+(?:\.\d+)?\w*)"
)
_OVER_LIMIT = re.compile(r"exceeds the limit|exceeds the total limit|exceeded its local ephemeral storage")

# What the kubelet keeps free, where its message does not say it: its default for memory, and a GiB of disk.
_KEPT_FREE = {"memory": 100 * 2**20, "ephemeral-storage": 2**30}

_DO = {
    "memory": "Request as much memory in container_resources as it uses, or take machines with more memory.",
    "ephemeral-storage": "Enlarge the pool's disk, and request as much ephemeral-storage in container_resources"
    " as it uses; or have it write to a volume.",
}
_RAISE_LIMIT = "Raise the limit that the message names, or have the training write less there."


@dataclass(frozen=True, kw_only=True)
class OwnUse:
    """What the pod itself used up, as text, and what to do."""

    what: str
    fix: str


def own_use(pod: PodState) -> OwnUse | None:
    """Return what an evicted pod had itself used up; None if it was not evicted, or for others' use."""
    message = _kubelet_message(pod)
    if _OVER_LIMIT.search(message):
        return OwnUse(what=message.strip().rstrip("."), fix=_RAISE_LIMIT)
    low = _LOW.search(message)
    if low is None or low["resource"] not in _DO:
        return None
    resource, found = low["resource"], _THRESHOLD.search(message)
    kept_free = amount(found["threshold"]) if found else _KEPT_FREE[resource]
    uses = [use.groupdict() for use in _USE.finditer(message)]
    uses = [use for use in uses if use["kind"] == "Pod"] or uses  # the whole pod's includes its containers'
    beyond = {use["name"]: amount(use["used"]) - amount(use["asked"]) for use in uses}
    if not uses or sum(beyond.values()) < kept_free:
        return None
    most = max(uses, key=lambda use: beyond[use["name"]])
    who = "it" if most["kind"] == "Pod" else f"its container {most['name']}"
    used = f"{most['used']} of {resource}, with a request of {most['asked']}"
    return OwnUse(what=f"{who} used {used}, until the node had too little left", fix=_DO[resource])


def _kubelet_message(pod: PodState) -> str:
    """Return the kubelet's message: the pod's own, or the condition that it sets first."""
    if pod.reason == EVICTED:
        return pod.message
    return pod.disruption.message if pod.disruption and pod.disruption.reason == "TerminationByKubelet" else ""


# Reasons that the kubelet or a cloud's node agent sets on a pod whose node goes away: shutdown (spot loss on GKE is
# "Terminated"), kubelet preemption for a critical pod, a lost node, eviction for the node's sake.
_TAKEN_AWAY = frozenset({"Terminated", "NodeShutdown", "Shutdown", "Preempting", "NodeLost", "NodeAffinity", EVICTED})

# And of a pod that a kubelet has not admitted although the scheduler has placed it there, where that is by its count of
# what others have, or by a change of the node since: pkg/kubelet/lifecycle/predicate.go, "OutOf" and the resource.
_LOST_ITS_PLACE = (
    "OutOf",
    "NodePorts",
    "NodeName",
    "NodeUnschedulable",
    "TaintToleration",
    "InvalidNodeInfo",
    "VolumeAttachmentLimitExceeded",
)

_NOT_ADMITTED = {
    "UnexpectedAdmissionError": "Retry the task: the next try may get another node. If it lasts, look at the device"
    " plugin's pod on that node.",
    "TopologyAffinityError": "Retry the task: the next try may get a node with more room on one NUMA node. If it lasts,"
    " ask for fewer CPUs, or have the kubelet's Topology Manager ask for less.",
}
"""What to do about a pod that a kubelet has not admitted for its devices: pkg/kubelet/cm."""

NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of a container that its runtime could not start: containerd: internal/cri/server/helpers.go, and Docker's."""

_BY_EVICTION_API = "EvictionByEvictionAPI"

_MADE_UP = (("ContainerStatusUnknown", 137), ("Unknown", 255))

_BY_SIGKILL = 128 + 9
KILLED = (_BY_SIGKILL, 128 + 15)
"""Exit codes of a container that received SIGTERM or SIGKILL."""

OOM_KILLED = "OOMKilled"
"""The reason of a container in which the kernel has killed a process for its memory limit, at whatever time.

Runtimes read it from a counter of the cgroup that only grows (containerd: core/runtime, kubernetes#140718), so that it
stays though something else ends the container hours later. Exit code 137 says that the main process was killed.
"""

_KUBELET_SAYS_IN = timedelta(seconds=5)

CORRECT_PROGRAM = "Correct the program by what its log says, and clear the task."
RAISE_DEADLINE = "Raise the pool's max_runtime, active_deadline_seconds or execution_timeout."
"""What to do if a pod's deadline came too soon."""

RETRY = "Retry the task: the next try waits for new capacity."


@dataclass(frozen=True, kw_only=True)
class PodEnd:
    """The end of the wait for a pod: `error` is None if its base container succeeded."""

    error: GpuError | None = None


def end_of(pod: PodState) -> PodEnd | None:
    """Return how the pod ended, or None while its base container may still run.

    The end of the base container decides, whatever sidecars do. A base container that exited 0 only because it received
    SIGTERM (a script that handles a spot reclaim) did not finish its work: that is not a success.
    """
    base = pod.base
    if base is not None and base.status == "terminated":
        return PodEnd(error=_container_error(pod, base))
    if pod.phase == "Succeeded":
        return PodEnd()
    if pod.phase == "Failed":
        return PodEnd(error=_pod_error(pod))
    return None


def before_restart(pod: PodState) -> PodState | None:
    """Return the pod as it was when its base container had failed, before the kubelet restarted it; otherwise None.

    A Job that counts such failures (`restartPolicy: OnFailure`) deletes the pod at its limit, while the container runs
    again or waits to: https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-backoff-failure-policy
    """
    before = pod.base.failed_before if pod.base else None
    if before is None:
        return None
    return replace(pod, base=before, deletion_asked_at=None, gone_by=None)


def certain_at(pod: PodState) -> datetime | None:
    """Return when the end that `end_of` sees can be trusted; None if at once.

    A kubelet that ends a pod (eviction, node shutdown) reports the reason only when all its containers have ended:
    until then it shows only a container that was killed, or that exited 0 on SIGTERM.
    """
    base = pod.base
    if base is None or base.finished_at is None or pod.phase in ("Succeeded", "Failed"):
        return None
    if pod.disruption or pod.deletion_asked_at or _went_over_memory(base):
        return None
    if base.exit_code in KILLED:
        return base.finished_at + pod.grace + _KUBELET_SAYS_IN
    if any(container.status == "running" for container in pod.others):
        return None  # a sidecar: it may delay the pod's final phase indefinitely
    return base.finished_at + _KUBELET_SAYS_IN


def end_of_gone(pod: PodState | None, *, name: str, is_unseen: bool = False) -> PodEnd:
    """Return how a pod ended that is gone; `is_unseen`: nobody saw it go, so that it may have ended before that."""
    if pod is not None and (end := end_of(pod)):
        return end
    why = f" ({why_disrupted(pod)})" if pod is not None and why_disrupted(pod) else ""
    was_going = pod is not None and (pod.deletion_asked_at is not None or bool(why))
    if is_unseen and not was_going:
        return PodEnd(error=unseen_end(f"Pod {name}", pod=name))
    node = {"node": pod.node} if pod is not None and pod.node else {}
    return PodEnd(error=PodPreempted(f"Pod {name} was deleted before it had finished{why}.", RETRY, pod=name, **node))


def unseen_end(what: str, **details: str) -> EndUnknown:
    """Return the end of a pod, or of an object with pods, that went while nobody watched it."""
    return EndUnknown(
        f"{what} is gone, and its end was not seen: it may have finished before it was deleted.",
        "See whether what it was to store is there; if it is not, retry the task.",
        **details,
    )


def lost_with_node(pod: PodState, why: str) -> PodEnd:
    """Return the end of a pod whose node will never report how it ended."""
    what = f"Pod {pod.name} was lost before it had finished: its node {pod.node} {why}."
    return PodEnd(error=PodPreempted(what, RETRY, pod=pod.name, node=pod.node))


def released_with_node(pod: PodState, by: str) -> PodEnd:
    """Return the end of a pod whose node this package released: it does so once the time of the pod's run is over."""
    what = f"Pod {pod.name} ended with its node {pod.node}: the time of its run was over, and {by} released the node."
    fix = "Extend a run's time before it is over (airflow gpu extend), or raise the pool's max_runtime."
    return PodEnd(error=PodPreempted(what, fix, pod=pod.name, node=pod.node, released_by=by))


def _container_error(pod: PodState, base: ContainerState) -> GpuError | None:
    if use := own_use(pod):
        return _evicted(pod, use)
    if _was_cut_short(pod, base):
        return _preempted(pod)
    if pod.reason == "DeadlineExceeded" or _ran_over(pod, base):
        return _deadline(pod)
    if base.exit_code == 0:
        return None
    if _is_unseen(base):
        return _lost_container(pod, base)
    if _went_over_memory(base):
        limit = f" of {pod.memory_limit}" if pod.memory_limit else ""
        return PodOutOfMemory(
            f"Pod {pod.name}: the container was killed for going over its memory limit{limit}.",
            f"{RAISE_MEMORY}.",
            pod=pod.name,
            memory_limit=pod.memory_limit,
        )
    message = f": {base.message.strip()}" if base.message.strip() else ""
    has_started = base.reason not in NOT_STARTED
    ended = f"ended with exit code {base.exit_code}" if has_started else "could not be started"
    no_log = "Correct the command or the image by what the container runtime says, and clear the task: there is no log."
    return PodFailed(
        f"Pod {pod.name}: container {base.name} {ended}{message}.",
        CORRECT_PROGRAM if has_started else no_log,
        pod=pod.name,
        exit_code=base.exit_code,
        reason=base.reason,
        **({"without_log": f"Pod {pod.name}: container {base.name} {ended}."} if message and has_started else {}),
    )


def _went_over_memory(base: ContainerState) -> bool:
    return base.reason == OOM_KILLED and base.exit_code == _BY_SIGKILL


def _was_cut_short(pod: PodState, base: ContainerState) -> bool:
    """Return True if the container ended because the pod was preempted, and not by itself before that.

    Times are in whole seconds: within the same second, a failure is attributed to the disruption, and so is exit 0,
    because wrongly retrying a training costs less than wrongly counting it as finished. So is an end of which no time
    is known.
    """
    if _is_taken_away(pod):
        return True
    moments = [pod.disruption.at if pod.disruption else None, pod.deletion_asked_at]
    stop_asked_at = min((moment for moment in moments if moment), default=None)
    if stop_asked_at is None:
        return False
    return base.finished_at is None or base.finished_at >= stop_asked_at


def _is_taken_away(pod: PodState) -> bool:
    return pod.reason in _TAKEN_AWAY or pod.reason.startswith(_LOST_ITS_PLACE)


def _is_unseen(container: ContainerState) -> bool:
    """Return True for an end that the node reports without having seen it: its exit code is made up.

    The kubelet makes up 137 for a container that it does not find any more (its kubelet_pods.go, status_manager.go),
    containerd 255 for one that ran when the machine went down (its internal/cri/server/restart.go).
    """
    if container.exit_code == 0 or container.reason in NOT_STARTED:
        return False
    return container.finished_at is None or (container.reason, container.exit_code) in _MADE_UP


def _lost_container(pod: PodState, container: ContainerState) -> EndUnknown:
    return EndUnknown(
        f"Pod {pod.name}: node {pod.node} has lost container {container.name}, and its end was not seen"
        f"{_because(container.reason, container.message)}.",
        "Retry the task. If it lasts, see whether the node restarts, or its kubelet does.",
        pod=pod.name,
        node=pod.node,
        container=container.name,
    )


def _ran_over(pod: PodState, base: ContainerState) -> bool:
    """Return True if the container ended because of activeDeadlineSeconds: the node reports that a moment later."""
    if pod.deadline_at is None or base.finished_at is None:
        return False
    return base.finished_at >= pod.deadline_at


def _pod_error(pod: PodState) -> GpuError:
    """Return the error of a pod that failed without a recorded end of its base container."""
    if pod.reason == "DeadlineExceeded":
        return _deadline(pod)
    if use := own_use(pod):
        return _evicted(pod, use)
    if _is_taken_away(pod) or pod.disruption:
        return _preempted(pod)
    for container in pod.others:
        if container.status == "terminated" and container.exit_code:
            if _is_unseen(container):
                return _lost_container(pod, container)
            return PodFailed(
                f"Pod {pod.name}: container {container.name} ended with exit code {container.exit_code}"
                f"{_because(container.reason, container.message)}.",
                f"Correct container {container.name} by what its log says, and clear the task.",
                pod=pod.name,
                container=container.name,
                exit_code=container.exit_code,
                without_log=f"Pod {pod.name}: container {container.name} ended with exit code {container.exit_code}.",
            )
    fix = "See the pod's events; on_finish_action='keep_pod' keeps it, but no longer than its node stays."
    return PodFailed(
        f"Pod {pod.name} failed{'' if pod.started else ' before its container started'}"
        f"{_because(pod.reason, pod.message)}.",
        _NOT_ADMITTED.get(pod.reason, fix),
        pod=pod.name,
        reason=pod.reason,
    )


def _preempted(pod: PodState) -> PodPreempted:
    why = why_disrupted(pod) or "it was deleted"
    return PodPreempted(
        f"Pod {pod.name} was preempted before it had finished: {why}.", RETRY, pod=pod.name, node=pod.node
    )


def _evicted(pod: PodState, use: OwnUse) -> PodFailed:
    what = f"Pod {pod.name} was evicted from node {pod.node}: {use.what}."
    return PodFailed(what, use.fix, pod=pod.name, node=pod.node, reason=EVICTED)


def _deadline(pod: PodState) -> PodDeadline:
    what = f"Pod {pod.name} ran for longer than its activeDeadlineSeconds"
    if pod.foreign_deadline:
        return PodDeadline(
            f"{what} of {pod.foreign_deadline}.",
            "Have that policy allow the pods of this namespace more; no argument of the task or the pool changes it.",
            pod=pod.name,
        )
    return PodDeadline(f"{what}.", RAISE_DEADLINE, pod=pod.name)


def with_disruption(pod: PodState, events: Iterable[PodEvent]) -> PodState:
    """Return a pod that is being deleted with why a provisioner takes it away, where only its event says that.

    Karpenter gives no DisruptionTarget to a pod that it deletes with its node, and the eviction API's has no reason.
    """
    disrupting = next((event for event in reversed([*events]) if event.disrupts), None)
    known = pod.disruption
    if disrupting is None or pod.deletion_asked_at is None or (known is not None and known.reason != _BY_EVICTION_API):
        return pod
    at = pod.deletion_asked_at if known is None else known.at
    reason = disrupting.reason if known is None else known.reason
    return replace(pod, disruption=Disruption(reason=reason, message=disrupting.in_words, at=at))


def why_disrupted(pod: PodState) -> str:
    """Return Kubernetes' reason why the pod is disrupted, or an empty string."""
    if pod.disruption:
        return f"{pod.disruption.reason}: {pod.disruption.message}".strip(": ")
    if _is_taken_away(pod):
        return f"{pod.reason}: {pod.message}".strip(": ")
    return ""


def _because(reason: str, message: str) -> str:
    text = f"{reason}: {message}".strip(": ")
    return f" ({text})" if text else ""

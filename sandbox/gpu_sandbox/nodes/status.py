"""A pod's status as the kubelet reports it, computed from what is known of its containers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_sandbox.nodes import restarts

State = dict[str, Any]


def waiting(reason: str, message: str = "") -> State:
    """A container state: not started, and why."""
    return {"waiting": {"reason": reason, "message": message} if message else {"reason": reason}}


def terminated(
    exit_code: int, reason: str, *, started: str, finished: str, container_id: str, message: str = ""
) -> State:
    """A container state: ended."""
    state: dict[str, Any] = {
        "exitCode": exit_code,
        "reason": reason,
        "startedAt": started,
        "finishedAt": finished,
        "containerID": container_id,
    }
    if message:
        state["message"] = message
    return {"terminated": state}


@dataclass
class ContainerRecord:
    """What is known of one container of a pod, in the words of the API."""

    name: str
    image: str
    is_init: bool = False
    is_sidecar: bool = False
    state: State = field(default_factory=dict)
    last_state: State = field(default_factory=dict)
    restart_count: int = 0
    ready: bool = False
    started: bool = False
    image_id: str = ""
    container_id: str = ""

    def to_json(self) -> dict[str, Any]:
        """As an entry of containerStatuses."""
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image_id,
            "containerID": self.container_id,
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restart_count,
            "state": self.state,
            "lastState": self.last_state,
        }


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A phase that containers alone do not explain: a pod rejected, evicted, or past its deadline."""

    phase: str
    reason: str
    message: str
    disruption: str = ""
    """The reason of its condition DisruptionTarget, where it has one."""


@dataclass(frozen=True, kw_only=True)
class PodFacts:
    """What a status needs beside the containers."""

    host_ip: str
    pod_ip: str
    start_time: str
    sandbox_ready: bool = False
    all_stopped: bool = False
    """No container runs, nor will one run again: the phase may become final."""
    verdict: Verdict | None = None


def pod_status(
    pod: Mapping[str, Any],
    records: Sequence[ContainerRecord],
    facts: PodFacts,
    *,
    previous: Mapping[str, Any],
    now: str,
) -> dict[str, Any]:
    """The status to report; ``previous`` is the one reported last, whose transition times are kept."""
    phase = _reported_phase(pod, records, facts, previous)
    final = phase in ("Succeeded", "Failed")
    status: dict[str, Any] = {
        "phase": phase,
        "hostIP": facts.host_ip,
        "hostIPs": [{"ip": facts.host_ip}],
        "startTime": facts.start_time,
        "qosClass": pod.get("status", {}).get("qosClass"),
        "conditions": _conditions(pod, records, facts, phase, previous, now),
        "containerStatuses": [r.to_json() for r in records if not r.is_init],
    }
    if facts.sandbox_ready or final:
        status |= {"podIP": facts.pod_ip, "podIPs": [{"ip": facts.pod_ip}]}
    if any(r.is_init for r in records):
        status["initContainerStatuses"] = [r.to_json() for r in records if r.is_init]
    if facts.verdict is not None and phase == facts.verdict.phase:
        status |= {"reason": facts.verdict.reason, "message": facts.verdict.message}
        if facts.verdict.disruption:
            status["conditions"].append(_disruption_target(facts.verdict, previous, now))
    return status


def _disruption_target(verdict: Verdict, previous: Mapping[str, Any], now: str) -> dict[str, Any]:
    before = [one for one in previous.get("conditions") or () if one["type"] == "DisruptionTarget"]
    new = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": verdict.disruption,
        "message": verdict.message,
        "lastTransitionTime": now,
    }
    return before[0] if before else new


def rejected(pod: Mapping[str, Any], reason: str, message: str, *, start_time: str) -> dict[str, Any]:
    """The status of a pod that the node does not admit."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": f"Pod was rejected: {message}",
        "startTime": start_time,
        "qosClass": pod.get("status", {}).get("qosClass"),
    }


def initialized(records: Sequence[ContainerRecord]) -> bool:
    """Whether all init containers are done (sidecars among them started)."""
    return all(r.started if r.is_sidecar else _exit_code(r.state) == 0 for r in records if r.is_init)


def phase_of(pod: Mapping[str, Any], records: Sequence[ContainerRecord], *, all_stopped: bool) -> str:
    """The phase that the containers' states make (the kubelet's getPhase)."""
    policy = pod["spec"].get("restartPolicy", "Always")
    specs = {c["name"]: c for c in [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]}
    mains = [r for r in records if not r.is_init]
    for record in records:
        code = _last_exit_code(record) if record.is_init and not record.is_sidecar else 0
        again = bool(code) and restarts.should_restart(specs[record.name], policy, code or 0, is_init=True)
        if code and (all_stopped or not again):
            return "Failed"
    ran_before = any(r.state.get("running") or _last_exit_code(r) is not None for r in mains)
    if not initialized(records) and not ran_before:
        return "Pending"
    if any("waiting" in r.state and not r.last_state for r in mains):
        return "Pending"
    if any("running" in r.state for r in records if not r.is_init or r.is_sidecar):
        return "Running"
    codes = {r.name: _last_exit_code(r) for r in mains}
    if any(code is None for code in codes.values()):
        return "Pending"
    if not all_stopped and any(
        restarts.should_restart(specs[name], policy, code or 0, is_init=False) for name, code in codes.items()
    ):
        return "Running"
    return "Failed" if any(codes.values()) else "Succeeded"


def _reported_phase(
    pod: Mapping[str, Any],
    records: Sequence[ContainerRecord],
    facts: PodFacts,
    previous: Mapping[str, Any],
) -> str:
    phase = phase_of(pod, records, all_stopped=facts.all_stopped)
    if facts.all_stopped and facts.verdict is not None:
        return facts.verdict.phase
    if facts.all_stopped and phase not in ("Succeeded", "Failed"):
        return "Failed"
    if phase in ("Succeeded", "Failed") and not facts.all_stopped:
        # The kubelet never reports an end before every container has ended.
        return str(previous.get("phase") or "Pending")
    return phase


def _exit_code(state: Mapping[str, Any]) -> int | None:
    end = state.get("terminated")
    return None if end is None else int(end["exitCode"])


def _last_exit_code(record: ContainerRecord) -> int | None:
    if "running" in record.state:
        return None
    code = _exit_code(record.state)
    return code if code is not None else _exit_code(record.last_state)


def _conditions(
    pod: Mapping[str, Any],
    records: Sequence[ContainerRecord],
    facts: PodFacts,
    phase: str,
    previous: Mapping[str, Any],
    now: str,
) -> list[dict[str, Any]]:
    ready = _ready_condition(records, phase)
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
    held = {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions") or ()}
    unmet = [gate for gate in gates if held.get(gate) != "True"]
    pod_ready = ready
    if ready[0] == "True" and unmet:
        texts = [f'corresponding condition of pod readiness gate "{g}" does not exist.' for g in unmet]
        pod_ready = ("False", "ReadinessGatesNotReady", ", ".join(texts))
    wanted = {
        "PodReadyToStartContainers": (str(facts.sandbox_ready and not facts.all_stopped), "", ""),
        "Initialized": _initialized_condition(records, phase),
        "Ready": pod_ready,
        "ContainersReady": ready,
    }
    before = {c["type"]: c for c in previous.get("conditions") or ()}
    return [_condition(name, *value, before=before.get(name, {}), now=now) for name, value in wanted.items()]


def _condition(
    name: str, status: str, reason: str, message: str, *, before: Mapping[str, Any], now: str
) -> dict[str, Any]:
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": name,
        "status": status,
        "reason": reason or None,
        "message": message or None,
        "lastProbeTime": None,
        "lastTransitionTime": since or now,
    }


def _ready_condition(records: Sequence[ContainerRecord], phase: str) -> tuple[str, str, str]:
    if phase == "Succeeded":
        return "False", "PodCompleted", ""
    if phase == "Failed":
        return "False", "PodFailed", ""
    unready = [r.name for r in records if (r.is_sidecar or not r.is_init) and not r.ready]
    if unready:
        return "False", "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    return "True", "", ""


def _initialized_condition(records: Sequence[ContainerRecord], phase: str) -> tuple[str, str, str]:
    if phase == "Succeeded":
        return "True", "PodCompleted", ""
    mains = [r for r in records if not r.is_init]
    if initialized(records) or any(r.started or r.last_state or "terminated" in r.state for r in mains):
        return "True", "", ""
    incomplete = [
        r.name for r in records if r.is_init and not (r.started if r.is_sidecar else _exit_code(r.state) == 0)
    ]
    return "False", "ContainersNotInitialized", f"containers with incomplete status: [{' '.join(incomplete)}]"

"""What a node shows of a pod to the API server, from its creation to its end: recorded, without what is never equal.

Left out are times, addresses, ids and names that are drawn by chance.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kubernetes import client, watch

_NAMESPACE = "default"
_EVENTS_QUIET, _EVENTS_AT_MOST = 2.0, 240.0
# Beside what is different each time: what resizing a running pod, and the health of devices, is told by.
_STATUS_LEFT_OUT = (
    *("startTime", "podIP", "podIPs", "hostIP", "hostIPs", "observedGeneration"),
    *("resources", "allocatedResources"),
)
_CONTAINER_LEFT_OUT = ("resources", "allocatedResources", "allocatedResourcesStatus", "user", "volumeMounts")
_TIMES = ("startedAt", "finishedAt", "containerID", "lastTransitionTime", "lastProbeTime", "observedGeneration")


@dataclass
class Story:
    """What was seen of one pod."""

    phases: list[str] = field(default_factory=list)
    states: dict[str, list[str]] = field(default_factory=dict)
    """By container: its states in their order, as `waiting ContainerCreating`, `running`, `terminated Error 3`."""
    status: dict[str, Any] = field(default_factory=dict)
    """The last one."""
    events: list[str] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)


def tell(
    core: client.CoreV1Api,
    node: str,
    name: str,
    spec: Mapping[str, Any],
    act: Callable[[client.CoreV1Api, str], None] | None = None,
    *,
    until: Callable[[dict[str, Any]], bool],
    seconds: float = 240,
    events: int = 0,
) -> Story:
    """Run a pod on a node, watch it until `until` its status or its deletion, delete it; return what was seen.

    `events` is how many are known to come, which a busy node writes late.
    """
    pod = {
        "metadata": {"name": name},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "restartPolicy": "Never", **spec},
    }
    made = core.create_namespaced_pod(_NAMESPACE, pod)
    seen = Story()
    acting = threading.Thread(target=act, args=(core, name)) if act else None
    if acting:
        acting.start()
    try:
        _follow(core, made, seen, until, seconds)
        seen.logs = _logs(core, made)
        seen.events = _settled(lambda: _events(core, made), events)
    finally:
        if acting:
            acting.join()
        with contextlib.suppress(client.ApiException):
            core.delete_namespaced_pod(name, _NAMESPACE, grace_period_seconds=0)
    return seen


def _follow(
    core: client.CoreV1Api, made: client.V1Pod, seen: Story, until: Callable[[dict[str, Any]], bool], seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    name = made.metadata.name
    stream = watch.Watch().stream(
        core.list_namespaced_pod,
        _NAMESPACE,
        field_selector=f"metadata.name={name}",
        resource_version=made.metadata.resource_version,
        timeout_seconds=int(seconds),
    )
    for event in stream:
        pod = event["raw_object"]
        if event["type"] == "DELETED":
            seen.phases.append("(deleted)")
            return
        _add(seen, pod)
        if until(pod["status"]):
            return
        if time.monotonic() > deadline:
            break
    raise AssertionError(f"{name} was not where it should be in {seconds} s: {seen}")


def _add(seen: Story, pod: dict[str, Any]) -> None:
    status = pod["status"]
    _append(seen.phases, status.get("phase", ""))
    for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        _append(seen.states.setdefault(one["name"], []), _words(one["state"]))
    seen.status = _plain(pod)


def _append(texts: list[str], text: str) -> None:
    if texts[-1:] != [text]:
        texts.append(text)


def _words(state: Mapping[str, Any]) -> str:
    return " ".join(
        str(word)
        for kind, detail in state.items()
        for word in (kind, detail.get("reason"), detail.get("exitCode"))
        if word is not None
    )


def _plain(pod: Mapping[str, Any]) -> dict[str, Any]:
    status = pod["status"]
    plain = {key: value for key, value in status.items() if key not in _STATUS_LEFT_OUT}
    plain["conditions"] = {
        one["type"]: " | ".join(one.get(key) or "" for key in ("status", "reason", "message"))
        for one in status.get("conditions", ())
    }
    for key in ("containerStatuses", "initContainerStatuses"):
        if key in status:
            plain[key] = {one["name"]: _plain_container(one, pod) for one in status[key]}
    return plain


def _plain_container(one: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in one.items() if key not in _CONTAINER_LEFT_OUT}
    plain |= {key: "<id>" for key in ("imageID", "containerID") if one.get(key)}
    for key in ("state", "lastState"):
        plain[key] = {
            kind: {name: text(value, pod) for name, value in detail.items() if name not in _TIMES}
            for kind, detail in one.get(key, {}).items()
        }
    return plain


def _settled(look: Callable[[], list[str]], at_least: int) -> list[str]:
    """What `look` returns once it has not changed for a while: events are written later than what they are about."""
    deadline = time.monotonic() + _EVENTS_AT_MOST
    seen, since = look(), time.monotonic()
    while time.monotonic() < deadline and (len(seen) < at_least or time.monotonic() < since + _EVENTS_QUIET):
        time.sleep(0.2)
        now = look()
        if now != seen:
            seen, since = now, time.monotonic()
    return seen


def _events(core: client.CoreV1Api, pod: client.V1Pod) -> list[str]:
    found = core.list_namespaced_event(_NAMESPACE, field_selector=f"involvedObject.uid={pod.metadata.uid}").items
    found = [one for one in found if one.source and one.source.component == "kubelet"]
    # Their names end in the time of the first of their kind.
    found.sort(key=lambda one: one.metadata.name)
    raw = core.api_client.sanitize_for_serialization(pod)
    return [
        f"{one.type} {one.reason} {one.involved_object.field_path or '-'}: {text(one.message, raw)}" for one in found
    ]


def _logs(core: client.CoreV1Api, pod: client.V1Pod) -> dict[str, str]:
    logs = {}
    for one in (*(pod.spec.init_containers or ()), *pod.spec.containers):
        try:
            # Not decoded by the client, which would give the repr of the bytes.
            reply = core.read_namespaced_pod_log(
                pod.metadata.name, _NAMESPACE, container=one.name, _preload_content=False
            )
            logs[one.name] = text(reply.data.decode(), core.api_client.sanitize_for_serialization(pod))
        except client.ApiException as error:
            logs[one.name] = f"{error.status}"
    return logs


def text(value: Any, pod: Mapping[str, Any]) -> Any:
    """A message without what differs each time."""
    if not isinstance(value, str):
        return value
    value = value.replace(pod["metadata"]["uid"], "<uid>").replace(pod["metadata"]["name"], "<pod>")
    value = re.sub(r"\b(\d+m)?\d+(\.\d+)?(ms|s)\b", "<time>", value)
    return re.sub(r"Image size: \d+ bytes", "Image size: <size>", value)

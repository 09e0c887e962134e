"""Whether a pod that the kubelet evicted had itself used up what ran out, from the kubelet's message. Pure.

The texts are those of kubernetes: pkg/kubelet/eviction/helpers.go, of several releases. For node pressure it names each
container above its request, and any use is above a request of 0: only the amount tells whose fault it was. The pod's it
was if the node would have had enough without what the pod used beyond its requests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from kubernetes.utils.quantity import parse_quantity

from airflow_gpu_provider.cluster.pod_state import PodState

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
_KEPT_FREE = {"memory": Decimal(100 * 2**20), "ephemeral-storage": Decimal(2**30)}

_DO = {
    "memory": "Request as much memory in container_resources as it uses, or take machines with more memory.",
    "ephemeral-storage": "Raise the pool's disk_size, and request as much ephemeral-storage in container_resources as"
    " it uses; or have it write to a volume.",
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
    kept_free = parse_quantity(found["threshold"]) if found else _KEPT_FREE[resource]
    uses = [use.groupdict() for use in _USE.finditer(message)]
    uses = [use for use in uses if use["kind"] == "Pod"] or uses  # the whole pod's includes its containers'
    beyond = {use["name"]: parse_quantity(use["used"]) - parse_quantity(use["asked"]) for use in uses}
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

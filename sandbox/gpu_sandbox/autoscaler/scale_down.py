"""Which nodes are not needed, by cluster-autoscaler's rules: pure decisions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from gpu_sandbox.autoscaler.cluster import GPU, Node
from gpu_sandbox.autoscaler.fitting import Pod, less, requests, why_not
from gpu_sandbox.autoscaler.groups import NodeGroup
from gpu_sandbox.autoscaler.scale_up import EXPENDABLE_BELOW
from gpu_sandbox.autoscaler.timings import AutoscalerTimings

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
SCALE_DOWN_DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
_MIRROR = "kubernetes.io/config.mirror"
_THRESHOLD = Decimal("0.5")
# Whose pods come back elsewhere; those of other controllers, and bare ones, would not.
_REPLICATED = ("ReplicationController", "Job", "ReplicaSet", "StatefulSet")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


@dataclass(frozen=True, kw_only=True)
class Removable:
    """A node that can go, and the pods that must be evicted first."""

    node: Node
    to_evict: tuple[Pod, ...]

    @property
    def empty(self) -> bool:
        return not self.to_evict


@dataclass(frozen=True, kw_only=True)
class Deletion:
    """A node that is tainted and about to go."""

    group: str
    removable: Removable
    since: float


def removable(node: Node, group: NodeGroup, others: Sequence[Node]) -> Removable | None:
    """The node as one that can go now, were it so for long enough; None if something speaks against it."""
    if node.annotations.get(SCALE_DOWN_DISABLED) == "true" or not _underused(node, group):
        return None
    pods = [pod for pod in node.pods if not _ignored(pod)]
    if any(blocks(pod) for pod in pods) or not _fit_elsewhere(pods, others):
        return None
    return Removable(node=node, to_evict=tuple(pods))


def blocks(pod: Pod) -> bool:
    """Whether the pod keeps its node: it would not come back elsewhere, or says so."""
    metadata = pod["metadata"]
    safe = (metadata.get("annotations") or {}).get(SAFE_TO_EVICT)
    if safe == "true":
        return False
    owners = [owner["kind"] for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
    replicated = any(kind in _REPLICATED for kind in owners)
    return not replicated or metadata["namespace"] == "kube-system" or safe == "false" or _has_local_storage(pod)


def unneeded_seconds(node: Node, group: NodeGroup, timings: AutoscalerTimings) -> float:
    """For how long it must be unneeded before it goes."""
    name, default = (
        ("scaledownunneededtime", timings.unneeded) if node.usable else ("scaledownunreadytime", timings.unready)
    )
    given = _duration(group.options.get(name, ""))
    return default if given is None else given / timings.speed


def _underused(node: Node, group: NodeGroup) -> bool:
    if node.has_accelerator and node.allocatable.get(GPU):
        used, option = _used(node, GPU), "scaledowngpuutilizationthreshold"
    else:
        used, option = max(_used(node, "cpu"), _used(node, "memory")), "scaledownutilizationthreshold"
    return used <= Decimal(group.options.get(option) or _THRESHOLD)


def _used(node: Node, resource: str) -> Decimal:
    asked = sum((requests(pod).get(resource, Decimal(0)) for pod in node.pods), Decimal(0))
    return asked / node.allocatable[resource] if node.allocatable.get(resource) else Decimal(0)


def _ignored(pod: Pod) -> bool:
    """Those that go with their node: DaemonSets' and static pods, and those that count for nothing."""
    metadata = pod["metadata"]
    of_daemon_set = any(owner["kind"] == "DaemonSet" for owner in metadata.get("ownerReferences") or ())
    expendable = (pod["spec"].get("priority") or 0) < EXPENDABLE_BELOW
    return of_daemon_set or expendable or _MIRROR in (metadata.get("annotations") or {})


def _has_local_storage(pod: Pod) -> bool:
    return any(
        volume.get("emptyDir") is not None or volume.get("hostPath") for volume in pod["spec"].get("volumes") or ()
    )


def _fit_elsewhere(pods: Sequence[Pod], others: Sequence[Node]) -> bool:
    free: dict[str, Mapping[str, Decimal]] = {node.name: node.free for node in others if node.usable}
    for pod in pods:
        for node in others:
            if node.name in free and why_not(pod, node.template, free=free[node.name]) is None:
                free[node.name] = less(free[node.name], requests(pod))
                break
        else:
            return False
    return True


def _duration(text: str) -> float | None:
    """Go's spelling, `10m0s`, in seconds; None for anything else, which cluster-autoscaler ignores too."""
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)

"""Which group a ProvisioningRequest is queued in, or why in none: pure decisions.

By GoogleCloudPlatform/cluster-autoscaler at 7d25050, pkg/provisioningrequests/scaleup/orchestrator.go, and the words of
scaleup/reasons/reasons.go beside it. NodepoolNotReady is missing: the groups of a sandbox are always healthy.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from decimal import Decimal

from gpu_sandbox.autoscaler.fitting import Pod, less, requests, why_not
from gpu_sandbox.autoscaler.groups import NodeGroup, NodeTemplate

POOL_LABEL = "cloud.google.com/gke-nodepool"
_SIZE_REACHED, _IN_BACKOFF = "NodepoolSizeReached", "NodepoolInBackoff"
_NOT_SCHEDULABLE = "ProvisioningRequestNotSchedulableInNodepool"
_NONE_AVAILABLE = "NoQueuedNodepoolAvailable"
_MOST_POOLS, _MOST_ERRORS = 10, 5


@dataclass(frozen=True, kw_only=True)
class Place:
    """All of a request's nodes, in one group."""

    group: NodeGroup
    nodes: int


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why no group takes it, as a condition's reason and message."""

    reason: str
    message: str


def place(
    pods: Sequence[Pod], groups: Sequence[NodeGroup], *, backed_off: Container[str], may_wait: bool
) -> Place | Refusal:
    """Find a group with room for them all, the one that takes fewest nodes.

    While a request `may_wait`, a group that is too full, but not full, counts for no reason, as in
    computeExpansionOption.
    """
    places: list[Place] = []
    skipped: list[tuple[NodeGroup, str, str]] = []
    for group in groups:
        room = _room(group, groups)
        refused = next((no for pod in pods if (no := _never(pod, group.template)) is not None), None)
        if group.name in backed_off:
            skipped.append((group, _IN_BACKOFF, ""))
        elif room <= 0:
            skipped.append((group, _SIZE_REACHED, ""))
        elif refused is not None:
            skipped.append((group, _NOT_SCHEDULABLE, refused))
        elif (nodes := _nodes_for(pods, group.template)) <= room:
            places.append(Place(group=group, nodes=nodes))
        elif not may_wait:
            skipped.append((group, _SIZE_REACHED, ""))
    return min(places, key=lambda each: each.nodes) if places else _refusal(skipped)


def _room(group: NodeGroup, groups: Sequence[NodeGroup]) -> int:
    """How many nodes more it may have. Those that requests wait for are in a group's target already."""
    own = group.max_size - group.target
    if group.shared is None:
        return own
    in_pool = sum(each.target for each in groups if each.shared and each.shared.pool == group.shared.pool)
    return min(own, group.shared.max_size - in_pool)


def _never(pod: Pod, template: NodeTemplate) -> str | None:
    return why_not(pod, template, free=template.allocatable)


def _nodes_for(pods: Sequence[Pod], template: NodeTemplate) -> int:
    """How many nodes the pods need, each of which fits on one."""
    nodes, free = 0, dict[str, Decimal]()
    for pod in pods:
        if why_not(pod, template, free=free) is not None:
            nodes, free = nodes + 1, dict(template.allocatable)
        free = less(free, requests(pod))
    return nodes


def _refusal(skipped: Sequence[tuple[NodeGroup, str, str]]) -> Refusal:
    """The reason that comes first in `reasonsPriorities`."""
    for reason, prefix in (
        (_SIZE_REACHED, "Max nodepool size reached"),
        (_IN_BACKOFF, "Nodepool in backoff after failed scale-up"),
    ):
        if pools := sorted({group.template.labels[POOL_LABEL] for group, why, _ in skipped if why == reason}):
            return Refusal(reason=reason, message=f"{prefix}, affected nodepools: {_list(pools, _MOST_POOLS)}")
    errors = {group.template.labels[POOL_LABEL]: no for group, why, no in skipped if why == _NOT_SCHEDULABLE}
    if errors:
        listed = _list([f"{pool} ({errors[pool]})" for pool in sorted(errors)], _MOST_ERRORS)
        message = "Provisioning Request's pods cannot be scheduled in the nodepool. Predicate checking errors: "
        return Refusal(reason=_NOT_SCHEDULABLE, message=message + listed)
    message = "No nodepool with QueuedProvisioning enabled is available for scale up"
    return Refusal(reason=_NONE_AVAILABLE, message=message)


def _list(names: Sequence[str], most: int) -> str:
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])

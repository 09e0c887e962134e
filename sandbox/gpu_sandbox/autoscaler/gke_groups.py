"""GKE's node pools with autoscaling on, one group for each zone, as the platform's own autoscaler takes them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from gpu_sandbox.autoscaler.groups import FailedLaunch, NodeGroup, NodeTemplate, ResizeRequest, SharedLimit
from gpu_sandbox.google import GoogleCloud, ScalableGroup

_MAX_PODS = 110
_SIMILAR_DESPITE = frozenset(
    {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "topology.gke.io/zone",
        "cloud.google.com/gke-nodepool",
    }
)


class GkeNodeGroups:
    """Implements `NodeGroups`."""

    similar_despite = _SIMILAR_DESPITE

    def __init__(self, google: GoogleCloud) -> None:
        self._google = google
        self.resize_requests = GkeResizeRequests(google)

    def look(self) -> list[NodeGroup]:
        return [_node_group(group) for group in self._google.scalable_groups()]

    def set_size(self, name: str, size: int) -> None:
        self._google.resize_group(name, size)

    def give_up_missing(self, name: str) -> int:
        return self._google.give_up_missing(name)

    def delete(self, name: str, machine: str) -> None:
        self._google.delete_from_group(name, machine)


class GkeResizeRequests:
    """Implements `ResizeRequests`."""

    def __init__(self, google: GoogleCloud) -> None:
        self._google = google

    def all(self) -> Mapping[str, ResizeRequest]:
        return {
            name: ResizeRequest(state=each.state, error=_failed(each.error))
            for name, each in self._google.resize_requests().items()
        }

    def create(self, name: str, *, group: str, nodes: int, run_seconds: float) -> FailedLaunch | None:
        return _failed(self._google.create_resize_request(name, group=group, by=nodes, run_seconds=run_seconds))

    def withdraw(self, name: str) -> None:
        self._google.withdraw_resize_request(name)


def _failed(error: tuple[str, str] | None) -> FailedLaunch | None:
    return FailedLaunch(code=error[0], message=error[1]) if error else None


def _node_group(group: ScalableGroup) -> NodeGroup:
    allocatable = {
        "pods": Decimal(_MAX_PODS),
        "cpu": Decimal(group.vcpus),
        "memory": Decimal(group.memory_bytes),
        **({"nvidia.com/gpu": Decimal(group.gpus)} if group.gpus else {}),
    }
    return NodeGroup(
        name=group.name,
        min_size=group.min_size,
        max_size=group.max_size,
        target=group.target,
        machines=frozenset(group.machines),
        template=NodeTemplate(labels=group.labels, taints=group.taints, allocatable=allocatable),
        shared=SharedLimit(pool=group.node_pool, max_size=group.pool_max_size) if group.pool_max_size else None,
        queued=group.queued,
        failed=_failed(group.error),
    )

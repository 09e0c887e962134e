"""What exists in a sandbox that would cost money: machines, desired sizes, GPU Nodes and pods with GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_sandbox.aws.observer import instances

if TYPE_CHECKING:
    from gpu_sandbox.sandbox import Sandbox

GPU = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """A night should leave all of these at zero."""

    nodes: int
    """GPU Nodes, with or without a machine behind them."""
    machines: int
    """Instances that are not terminated."""
    desired: int
    """The desired sizes of all groups together."""
    gpu_pods: int
    """Pods that hold a GPU or wait for one. One that was deleted and whose Node is gone does neither: nobody but the
    cluster's garbage collector, which comes within a minute, can say that it has ended."""

    @property
    def nothing(self) -> bool:
        return not (self.nodes or self.machines or self.desired or self.gpu_pods)

    def __str__(self) -> str:
        return f"{self.nodes} nodes, {self.machines} machines, desired size {self.desired}, {self.gpu_pods} GPU pods"


def look_for_leftovers(sandbox: Sandbox) -> Leftovers:
    """Check the cluster and the cloud now."""
    from gpu_sandbox.sandbox import SYSTEM_NODE

    nodes, pods = (_items(sandbox, kind) for kind in ("nodes", "pods"))
    names = {node["metadata"]["name"] for node in nodes}
    return Leftovers(
        nodes=sum(node["metadata"]["name"] != SYSTEM_NODE for node in nodes),
        machines=_machines(sandbox),
        desired=sum(group["desired"] for group in sandbox.cluster.groups()),
        gpu_pods=sum(_is_active(pod) and _wants_gpus(pod) and not _is_lost(pod, names) for pod in pods),
    )


def _machines(sandbox: Sandbox) -> int:
    """In AWS an instance may be in no group."""
    if sandbox.platform == "eks":
        return sum(each["State"]["Name"] != "terminated" for each in instances(sandbox.aws))
    return sum(len(group["instances"]) for group in sandbox.cluster.groups())


def _items(sandbox: Sandbox, kind: str) -> list[dict[str, Any]]:
    status, reply = sandbox.control_plane.request("GET", f"/api/v1/{kind}")
    if status != 200:
        raise OSError(f"the API server does not list {kind}: {status} {reply}")
    items: list[dict[str, Any]] = reply["items"]
    return items


def _is_active(pod: dict[str, Any]) -> bool:
    return pod["status"].get("phase") in ("Pending", "Running")


def _is_lost(pod: dict[str, Any], nodes: set[str]) -> bool:
    deleted, node = "deletionTimestamp" in pod["metadata"], pod["spec"].get("nodeName")
    return deleted and node is not None and node not in nodes


def _wants_gpus(pod: dict[str, Any]) -> bool:
    containers = pod["spec"]["containers"]
    return any(int(each.get("resources", {}).get("limits", {}).get(GPU, 0)) for each in containers)

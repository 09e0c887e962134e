"""ProvisioningRequests of GKE's class queued-provisioning.gke.io: all of a request's nodes at once, or none.

By "Run a large-scale workload with flex-start with queued provisioning" of GKE's documentation:

- A request is Accepted, or Failed for good. It has one PodSet, and its nodes are of one node pool, in one zone.
- Until there is capacity for all of them, Provisioned is False: ResourcePoolExhausted, or QuotaExceeded.
- Provisioned is True once the nodes are ready. From then on there are ten minutes to start the pods; after that nodes
  without pods are not needed any more.
- A request that is deleted before is cancelled; nodes that were on their way come, and go as not needed.
- A node pool with queued provisioning has no other nodes: pods that wait bring none (NodePool.queued_provisioning).

Its limitations ("About flex-start"): affinity between pods is not looked at, so pods that fit on one node get one. That
BookingExpired follows after the ten minutes, and the words of the conditions, are as users have seen them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from gpu_sandbox.autoscaler.cluster import Cluster
from gpu_sandbox.autoscaler.fitting import Pod, less, requests, why_not
from gpu_sandbox.autoscaler.groups import FailedLaunch, NodeGroup, NodeGroups, NodeTemplate
from gpu_sandbox.clock import Clock
from gpu_sandbox.control_plane import ControlPlane

CLASS = "queued-provisioning.gke.io"
QUEUED_TAINT = "cloud.google.com/gke-queued"
API = "/apis/autoscaling.x-k8s.io/v1"
_QUOTA = "QUOTA_EXCEEDED"
_WAITING = "Waiting for resources. Currently there are not enough resources available to fulfill the request."


@dataclass(kw_only=True)
class _Granted:
    """A request whose machines were launched."""

    machines: frozenset[str]
    provisioned_at: float | None = None


@dataclass(kw_only=True)
class ProvisioningRequests:
    """What the autoscaler does about them in each of its loops. Raises OSError while the API server is away."""

    control_plane: ControlPlane
    cloud: NodeGroups
    clock: Clock
    booking: float
    """Seconds that pods have to start on nodes that are ready."""
    _granted: dict[str, _Granted] = field(default_factory=dict, init=False)
    _said: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)

    def step(self, cluster: Cluster, groups: Sequence[NodeGroup]) -> None:
        """Take each request as far as it goes now, the oldest first."""
        queued = [group for group in groups if group.queued]
        found = self._list() if queued or self._said else []
        uids = {request["metadata"]["uid"] for request in found}
        self._granted = {uid: each for uid, each in self._granted.items() if uid in uids}
        self._said = {uid: said for uid, said in self._said.items() if uid in uids}
        for request in found:
            self._advance(request, cluster, queued)

    def mark(self) -> tuple[object, ...]:
        """Differs where something was done."""
        return tuple(self._said.items()), tuple(self._granted)

    def _list(self) -> list[Mapping[str, Any]]:
        status, answer = self.control_plane.request("GET", f"{API}/provisioningrequests")
        found = answer["items"] if status == 200 else []
        own = [request for request in found if request["spec"]["provisioningClassName"] == CLASS]
        return sorted(own, key=lambda request: str(request["metadata"]["creationTimestamp"]))

    def _advance(self, request: Mapping[str, Any], cluster: Cluster, groups: Sequence[NodeGroup]) -> None:
        uid, is_true = request["metadata"]["uid"], _true_conditions(request)
        if is_true & {"Failed", "BookingExpired"}:
            return
        if "Accepted" not in is_true:
            self._accept(request, groups)
        elif uid not in self._granted:
            self._grant(request, groups)
        else:
            self._follow(request, self._granted[uid], cluster)

    def _accept(self, request: Mapping[str, Any], groups: Sequence[NodeGroup]) -> None:
        pod = self._pod_of(request)
        if len(request["spec"]["podSets"]) > 1:
            self._say(request, "Failed", "True", "UnsupportedPodSets", "Only one PodSet is supported.")
        elif pod is None or not any(_nodes_for(pod, 1, group.template) for group in groups):
            what = "No node pool with queued provisioning has nodes for its pods."
            self._say(request, "Failed", "True", "NoMatchingNodePool", what)
        else:
            accepted = "Provisioning Request was successfully queued."
            self._say(request, "Accepted", "True", "SuccessfullyQueued", accepted)

    def _grant(self, request: Mapping[str, Any], groups: Sequence[NodeGroup]) -> None:
        """Have all of its machines launched where there is capacity for all of them."""
        pod, count = self._pod_of(request), request["spec"]["podSets"][0]["count"]
        reason, message = "ResourcePoolExhausted", _WAITING
        for group in groups:
            nodes = _nodes_for(pod, count, group.template) if pod is not None else 0
            if not nodes or group.target + nodes > group.max_size:
                continue
            launched = self.cloud.launch_together(group.name, nodes)
            if not isinstance(launched, FailedLaunch):
                self._granted[request["metadata"]["uid"]] = _Granted(machines=launched)
                return
            if launched.code == _QUOTA:
                reason, message = "QuotaExceeded", launched.message
        self._say(request, "Provisioned", "False", reason, message)

    def _follow(self, request: Mapping[str, Any], granted: _Granted, cluster: Cluster) -> None:
        nodes = [cluster.by_machine.get(machine) for machine in granted.machines]
        if granted.provisioned_at is None:
            if all(node is not None and node.usable for node in nodes):
                granted.provisioned_at = self.clock.now()
                what = "Provisioning Request was successfully provisioned."
                self._say(request, "Provisioned", "True", "Provisioned", what)
        elif self.clock.reached(granted.provisioned_at + self.booking):
            what = "Capacity booking has expired and the nodes are now candidates for scale down when underutilized."
            self._say(request, "BookingExpired", "True", "BookingExpired", what)

    def _pod_of(self, request: Mapping[str, Any]) -> Pod | None:
        """The pods that its template describes; None where there is no such template."""
        name = request["spec"]["podSets"][0]["podTemplateRef"]["name"]
        path = f"/api/v1/namespaces/{request['metadata']['namespace']}/podtemplates/{name}"
        status, template = self.control_plane.request("GET", path)
        return {"metadata": {}, "status": {}, **template["template"]} if status == 200 else None

    def _say(self, request: Mapping[str, Any], kind: str, is_so: str, reason: str, message: str) -> None:
        meta = request["metadata"]
        if self._said.get(meta["uid"]) == (kind, is_so, reason, message):
            return
        others = [each for each in _conditions(request) if each["type"] != kind]
        said = {
            "type": kind,
            "status": is_so,
            "reason": reason,
            "message": message,
            "lastTransitionTime": self.clock.utc_now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        path = f"{API}/namespaces/{meta['namespace']}/provisioningrequests/{meta['name']}/status"
        body = {"metadata": {"uid": meta["uid"]}, "status": {"conditions": [*others, said]}}
        status, _ = self.control_plane.request("PATCH", path, body, content_type="application/merge-patch+json")
        if status == 200:
            self._said[meta["uid"]] = (kind, is_so, reason, message)


def _conditions(request: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (request.get("status") or {}).get("conditions") or ()


def _true_conditions(request: Mapping[str, Any]) -> set[str]:
    return {each["type"] for each in _conditions(request) if each["status"] == "True"}


def _nodes_for(pod: Pod, count: int, template: NodeTemplate) -> int:
    """How many nodes so many of the pods need; 0 where they fit on none. GKE tolerates the queue's taint for them."""
    node = NodeTemplate(
        labels=template.labels,
        taints=[taint for taint in template.taints if taint.key != QUEUED_TAINT],
        allocatable=template.allocatable,
    )
    if why_not(pod, node, free=node.allocatable) is not None:
        return 0
    nodes, free = 0, dict[str, Decimal]()
    for _ in range(count):
        if why_not(pod, node, free=free) is not None:
            nodes, free = nodes + 1, dict(node.allocatable)
        free = less(free, requests(pod))
    return nodes

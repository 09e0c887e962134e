"""The cluster as the autoscaler sees it in one loop, and what it writes there: events, taints, evictions, status."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from gpu_sandbox.autoscaler.fitting import Pod, less, requests
from gpu_sandbox.autoscaler.groups import NodeTemplate
from gpu_sandbox.autoscaler.watching import NODES, PODS, ClusterView
from gpu_sandbox.clock import Clock
from gpu_sandbox.control_plane import ControlPlane
from gpu_sandbox.nodes import quantities
from gpu_sandbox.nodes.spec import Taint

SOURCE = "cluster-autoscaler"
STATUS_NAMESPACE = "kube-system"
STATUS_NAME = "cluster-autoscaler-status"
LAST_UPDATED = "cluster-autoscaler.kubernetes.io/last-updated"
TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"
DELETION_CANDIDATE = "DeletionCandidateOfClusterAutoscaler"
GPU = "nvidia.com/gpu"
# With one of these labels a node has GPUs, and is not ready before it shows them.
ACCELERATOR_LABELS = ("k8s.amazonaws.com/accelerator", "cloud.google.com/gke-accelerator")
# The node controller takes them off some time after the node's conditions are good; GetReadinessState waits for that.
_NOT_READY_TAINTS = frozenset(
    f"node.kubernetes.io/{name}" for name in ("not-ready", "disk-pressure", "network-unavailable")
)
_STARTUP_TAINTS = ("node.kubernetes.io/", TO_BE_DELETED, DELETION_CANDIDATE)
PROVISIONING_REQUEST = "autoscaling.gke.io/provisioning-request"
"""GKE's label of a node that came by a resize request, whose name it has."""
_ITS_OWN_LABELS = ("kubernetes.io/hostname", PROVISIONING_REQUEST)
_OVER = ("Succeeded", "Failed")
# The real one writes its status on each scan, ten seconds apart by default. So often is it written here, at any speed,
# while it says the same: each write wakes etcd and the controllers that watch ConfigMaps.
_SAME_STATUS_FOR = timedelta(seconds=10)
_TIMES_OF_LOOKS = re.compile(r"^ *(?:time|lastProbeTime): .*\n", re.MULTILINE)
_MERGE = "application/merge-patch+json"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A Node, and the pods on it that still take room."""

    name: str
    uid: str
    machine: str
    """The last part of its providerID."""
    ready: bool
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    allocatable: Mapping[str, Decimal]
    pods: tuple[Pod, ...]

    @property
    def has_accelerator(self) -> bool:
        return any(label in self.labels for label in ACCELERATOR_LABELS)

    @property
    def usable(self) -> bool:
        """Ready, in cluster-autoscaler's eyes: a node with an accelerator's label only once its GPUs are there."""
        return self.ready and not (self.has_accelerator and not self.allocatable.get(GPU))

    @property
    def being_deleted(self) -> bool:
        return self.has_taint(TO_BE_DELETED)

    @functools.cached_property
    def template(self) -> NodeTemplate:
        return NodeTemplate(labels=self.labels, taints=self.taints, allocatable=self.allocatable)

    @functools.cached_property
    def free(self) -> dict[str, Decimal]:
        return functools.reduce(less, (requests(pod) for pod in self.pods), dict(self.allocatable))

    def has_taint(self, key: str) -> bool:
        return any(taint.key == key for taint in self.taints)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """All Nodes, the pods that the scheduler found no room for, and those that it has not looked at yet."""

    nodes: Sequence[Node]
    pending: Sequence[Pod]
    undecided: Sequence[Pod]

    @functools.cached_property
    def by_machine(self) -> dict[str, Node]:
        return {node.machine: node for node in self.nodes}


def node_of(item: Mapping[str, Any], pods: Sequence[Pod]) -> Node:
    """A Node from the API; `pods` are those bound to it."""
    metadata, spec, status = item["metadata"], item["spec"], item["status"]
    taints = [Taint(key=t["key"], value=t.get("value") or "", effect=t["effect"]) for t in spec.get("taints") or ()]
    if spec.get("unschedulable"):
        taints.append(Taint(key="node.kubernetes.io/unschedulable"))
    is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    return Node(
        name=metadata["name"],
        uid=metadata["uid"],
        machine=(spec.get("providerID") or "").rpartition("/")[2],
        ready=is_ready and not any(taint.key in _NOT_READY_TAINTS for taint in taints),
        annotations=metadata.get("annotations") or {},
        labels=metadata.get("labels") or {},
        taints=tuple(taints),
        allocatable={name: quantities.parse(value) for name, value in (status.get("allocatable") or {}).items()},
        pods=tuple(pod for pod in pods if pod["status"].get("phase") not in _OVER),
    )


def template_from(node: Node) -> NodeTemplate:
    """What the group's next node would be: this one without its name and its request, and without taints that pass."""
    return NodeTemplate(
        labels={key: value for key, value in node.labels.items() if key not in _ITS_OWN_LABELS},
        taints=[taint for taint in node.taints if not taint.key.startswith(_STARTUP_TAINTS)],
        allocatable=node.allocatable,
    )


def verdict(pod: Pod) -> str | None:
    """What the scheduler said of a pod without a node: "Unschedulable", or that it is gated; empty: nothing yet.

    None for a pod that it is not to look at any more.
    """
    if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
        return None
    conditions = pod["status"].get("conditions") or ()
    scheduled = [c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]
    return str(scheduled[0].get("reason")) if scheduled else ""


@dataclass(kw_only=True)
class ClusterApi:
    """Reads by `view`, writes as the cluster's administrator. Writes raise OSError while the API server is away."""

    control_plane: ControlPlane
    view: ClusterView
    clock: Clock
    _seen: tuple[int, Cluster] | None = field(default=None, init=False)
    """What was last read, and the version that the watch had before."""
    _said: dict[tuple[str, ...], tuple[str, int]] = field(default_factory=dict, init=False)
    """The Event and how often it happened, by what it is about and says."""
    _status: tuple[str, datetime] = field(default=("", datetime.min.replace(tzinfo=UTC)), init=False)
    """What was last written, without the times of looks, and when."""

    def look(self) -> Cluster:
        """Raise ConnectionError before anything has been listed."""
        version = self.view.version
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._cluster())
        return self._seen[1]

    def _cluster(self) -> Cluster:
        pods = self.view.objects(PODS)
        on_nodes: dict[str, list[Pod]] = {}
        for pod in pods:
            if name := pod["spec"].get("nodeName"):
                on_nodes.setdefault(name, []).append(pod)
        nodes = [node_of(item, on_nodes.get(item["metadata"]["name"], ())) for item in self.view.objects(NODES)]
        return Cluster(
            nodes=nodes,
            pending=[pod for pod in pods if verdict(pod) == "Unschedulable"],
            undecided=[pod for pod in pods if verdict(pod) == ""],
        )

    def event(self, kind: str, about: Mapping[str, Any], reason: str, message: str, *, warning: bool = False) -> None:
        """About a Pod, a Node or a ConfigMap, by its name, namespace and uid. Said again, it counts up."""
        now = self.clock.utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")
        namespace = about.get("namespace") or "default"
        said = (kind, namespace, about["name"], about.get("uid", ""), reason, message)
        if said in self._said:
            name, count = self._said[said]
            again = {"lastTimestamp": now, "count": count + 1}
            path = f"/api/v1/namespaces/{namespace}/events/{name}"
            if self._call("PATCH", path, again, content_type=_MERGE)[0] == HTTPStatus.OK:
                self._said[said] = (name, count + 1)
                return
        involved = {"apiVersion": "v1", "kind": kind, "name": about["name"], "uid": about.get("uid", "")}
        if about.get("namespace"):
            involved["namespace"] = namespace
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{about['name']}."},
            "involvedObject": involved,
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": message,
            "source": {"component": SOURCE},
            "reportingComponent": SOURCE,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        status, reply = self._call("POST", f"/api/v1/namespaces/{namespace}/events", body)
        if status == HTTPStatus.CREATED:
            self._said[said] = (reply["metadata"]["name"], 1)

    def status_event(self, reason: str, message: str, *, warning: bool = False) -> None:
        """About the autoscaler itself, on its status ConfigMap."""
        about = {"name": STATUS_NAME, "namespace": STATUS_NAMESPACE}
        self.event("ConfigMap", about, reason, message, warning=warning)

    def set_taint(self, node: Node, key: str, *, effect: str, present: bool) -> bool:
        """Put a taint with the present time as its value on a node, or take it off; False if somebody was quicker."""
        status, item = self._call("GET", f"/api/v1/nodes/{quote(node.name)}")
        if status != HTTPStatus.OK:
            return False
        taints = [taint for taint in item["spec"].get("taints") or () if taint["key"] != key]
        if present:
            taints.append({"key": key, "value": str(int(self.clock.now())), "effect": effect})
        patch = {
            "metadata": {"resourceVersion": item["metadata"]["resourceVersion"]},
            "spec": {"taints": taints or None},
        }
        status, _ = self._call("PATCH", f"/api/v1/nodes/{quote(node.name)}", patch, content_type=_MERGE)
        return status == HTTPStatus.OK

    def evict(self, pod: Pod) -> None:
        """Ask for it; a PodDisruptionBudget may refuse."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        self._call("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)

    def write_status(self, text: str, *, now: datetime) -> None:
        """Put the status ConfigMap there, its time of update as an annotation; again soon only if it says more."""
        says = _TIMES_OF_LOOKS.sub("", text)
        if says == self._status[0] and now < self._status[1] + _SAME_STATUS_FOR:
            return
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": STATUS_NAME, "annotations": {LAST_UPDATED: go_time(now)}},
            "data": {"status": text},
        }
        folder = f"/api/v1/namespaces/{STATUS_NAMESPACE}/configmaps"
        status, _ = self._call("PUT", f"{folder}/{STATUS_NAME}", body)
        if status == HTTPStatus.NOT_FOUND:
            status, _ = self._call("POST", folder, body)
        if status in (HTTPStatus.OK, HTTPStatus.CREATED):
            self._status = (says, now)

    def _call(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json"
    ) -> tuple[int, Any]:
        return self.control_plane.request(method, path, body, content_type=content_type)


def go_time(moment: datetime) -> str:
    """As Go prints a time, which is how cluster-autoscaler says when its status was written."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f000 +0000 UTC")

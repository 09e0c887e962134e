"""What Karpenter says of its NodePool and NodeClaims, for the stand-in provisioner: by its source, in its words.

By kubernetes-sigs/karpenter v1.14, pkg/controllers: provisioning/provisioner.go (which NodePools and pods it takes),
nodeclaim/lifecycle (a claim's conditions), disruption/types.go and emptiness.go (why it keeps a node).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tests.sandbox.karpenter_objects import GROUP, MERGE, event, rfc3339

DISRUPTED = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
HOSTNAME = "kubernetes.io/hostname"
PLACE = {
    "karpenter.sh/capacity-type": "spot",
    "node.kubernetes.io/instance-type": "g6.xlarge",
    "topology.kubernetes.io/zone": "us-west-2a",
}
"""What the cloud gives: labels of a claim from its launch on, and of its node."""

_FINALIZER = "karpenter.sh/termination"
_DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
_KNOWN = {*PLACE, f"{GROUP}/nodepool", "topology.kubernetes.io/region", "kubernetes.io/arch", "kubernetes.io/os"}
_OF_CLOUDS = ("karpenter.k8s.aws/", "eks.amazonaws.com/")
_AWAITING = ("AwaitingReconciliation", "object is awaiting reconciliation")


@dataclass
class Karpenter:
    """One NodePool's side of Karpenter; `by` is the component that its events name."""

    api: client.ApiClient
    name: str
    labels: Mapping[str, str]
    by: str
    _said: set[tuple[str, ...]] = field(default_factory=set)
    _conditions: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._objects = client.CustomObjectsApi(self.api)
        self._core = client.CoreV1Api(self.api)

    # -- pods ------------------------------------------------------------------------------------------------------

    def takes(self, pod: Any, *, nodes: int) -> bool:
        """Whether it asks for a machine for a pod; why not is told to the pod, if it is told at all."""
        pool = self._node_pool()
        if pool is None:
            return False
        why = _refusal(pod, pool)
        limit = (pool["spec"].get("limits") or {}).get("nvidia.com/gpu")
        if not why and limit is not None and nodes >= int(limit):
            why = f"all available instance types exceed limits for nodepool (NodePool={self.name})"
        if why:
            self.tell(of_pod(pod), "Warning", "FailedScheduling", f"Failed to schedule pod, {why}")
        return not why

    def _node_pool(self) -> dict[str, Any] | None:
        """Return its NodePool; None where Karpenter ignores it, and says nothing."""
        try:
            pool: dict[str, Any] = self._objects.get_cluster_custom_object(GROUP, "v1", "nodepools", self.name)
        except ApiException as error:
            if error.status != 404:
                raise
            return None
        conditions = (pool.get("status") or {}).get("conditions") or ()
        is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        is_ignored = not is_ready or "replicas" in pool["spec"] or "deletionTimestamp" in pool["metadata"]
        return None if is_ignored else pool

    # -- a claim's life --------------------------------------------------------------------------------------------

    def asks(self, claim: str) -> None:
        """Create a claim, for which there is no machine yet."""
        own = {key: value for key, value in self.labels.items() if key != f"{GROUP}/nodepool"}
        spec = {
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
            "requirements": [{"key": key, "operator": "In", "values": [value]} for key, value in own.items()],
        }
        meta = {"name": claim, "labels": {f"{GROUP}/nodepool": self.name}, "finalizers": [_FINALIZER]}
        body = {"apiVersion": f"{GROUP}/v1", "kind": "NodeClaim", "metadata": meta, "spec": spec}
        self._objects.create_cluster_custom_object(GROUP, "v1", "nodeclaims", body)
        self._conditions[claim] = {}
        for type in ("Launched", "Registered", "Initialized"):
            self._set(claim, type, "Unknown", *_AWAITING, write=type == "Initialized")

    def fails(self, claim: str, message: str) -> None:
        """Say that there is no capacity, and give the claim up (launch.go)."""
        about = _claim(claim)
        self.tell(about, "Warning", "InsufficientCapacityError", f"NodeClaim {claim} event: {message}")
        self.gone(claim)

    def is_refused(self, claim: str, reason: str, message: str) -> None:
        """Say why the cloud does not launch a claim's machine; it is asked again and again, for five minutes."""
        self._set(claim, "Launched", "Unknown", reason, message)

    def launches(self, claim: str) -> str:
        """Give a claim its machine; return the machine's providerID."""
        provider_id = f"aws:///us-west-2a/i-{claim}"
        self._patch(claim, {"metadata": {"labels": {**self.labels, **PLACE}}})
        self._set(claim, "Launched", "True", "Launched", write=False)
        self._set(claim, "Registered", "Unknown", "NodeNotFound", "Node not registered with cluster", write=False)
        self._patch_status(claim, providerID=provider_id)
        return provider_id

    def joins(self, claim: str, node: str) -> None:
        """Say which node has become of a claim."""
        self._set(claim, "Registered", "True", "Registered", write=False)
        what = 'Resource "nvidia.com/gpu" was requested but not registered'
        self._set(claim, "Initialized", "Unknown", "ResourceNotRegistered", what, write=False)
        self._patch_status(claim, nodeName=node)

    def is_initialized(self, claim: str, node: str) -> bool:
        """Whether its node has all that was asked for; from then on it may be removed."""
        if self._conditions[claim]["Initialized"]["status"] != "True":
            if not int((self._core.read_node(node).status.allocatable or {}).get("nvidia.com/gpu", "0")):
                return False
            self._set(claim, "Initialized", "True", "Initialized")
        return True

    def ends(self, claim: str, node: str, why: str) -> None:
        """Taint a node, and delete its claim: it stays until its machine has ended."""
        self._core.patch_node(node, {"spec": {"taints": [DISRUPTED]}})  # beside those that it has: merged by their key
        self.tell(_claim(claim), "Normal", "DisruptionTerminating", f"Disrupting NodeClaim: {why}")
        self._objects.delete_cluster_custom_object(GROUP, "v1", "nodeclaims", claim)

    def gone(self, claim: str) -> None:
        """Let a claim go, whatever became of it, with the last event, which does not name it (operatorpkg, status)."""
        with suppress(ApiException):  # somebody was faster
            self._patch(claim, {"metadata": {"finalizers": None}})
            self._objects.delete_cluster_custom_object(GROUP, "v1", "nodeclaims", claim)
        self._conditions.pop(claim, None)
        about = {"apiVersion": f"{GROUP}/v1", "kind": "NodeClaim", "name": ""}
        said = event(about, "Normal", "Finalized", f"Finalized {_FINALIZER}", at=rfc3339(datetime.now(UTC)), by=self.by)
        self._core.create_namespaced_event("default", said)

    # -- why it keeps a node ---------------------------------------------------------------------------------------

    def keeps(self, claim: str, node: str) -> bool:
        """Whether it leaves an empty node where it is; it says why in events."""
        disruption = (self._node_pool() or {"spec": {}})["spec"].get("disruption") or {}
        annotations = self._core.read_node(node).metadata.annotations or {}
        about = (_claim(claim), {"kind": "Node", "name": node})
        if not self.is_initialized(claim, node):
            return self._keeps(about, "DisruptionBlocked", "Node isn't initialized")
        if annotations.get(_DO_NOT_DISRUPT) == "true":
            why = f'Disruption is blocked through the "{_DO_NOT_DISRUPT}" annotation'
            return self._keeps(about, "DisruptionBlocked", why)
        if disruption.get("consolidateAfter") == "Never":
            return self._keeps(about, "Unconsolidatable", f'NodePool "{self.name}" has consolidation disabled')
        if any(each["nodes"] in ("0", "0%") for each in disruption.get("budgets") or ()):
            what = "No allowed disruptions for disruption reason Empty due to blocking budget"
            return self._keeps(({"kind": "NodePool", "name": self.name},), "DisruptionBlocked", what)
        return False

    def _keeps(self, about: tuple[Mapping[str, str], ...], reason: str, message: str) -> bool:
        for each in about:
            self.tell(each, "Normal", reason, message)
        return True

    # -- writing ---------------------------------------------------------------------------------------------------

    def tell(self, about: Mapping[str, str], type: str, reason: str, message: str) -> None:
        """Write an event, once."""
        key = (about.get("uid") or about["name"], reason, message)
        if key in self._said:
            return
        self._said.add(key)
        body = event(about, type, reason, message, at=rfc3339(datetime.now(UTC)), by=self.by)
        self._core.create_namespaced_event(about.get("namespace", "default"), body)

    def _set(self, claim: str, type: str, status: str, reason: str, message: str = "", *, write: bool = True) -> None:
        said = {"type": type, "status": status, "reason": reason, "message": message}
        before = self._conditions[claim].get(type, {})
        if {**before, **said} == before:
            return
        changed = rfc3339(datetime.now(UTC)) if before.get("status") != status else before["lastTransitionTime"]
        self._conditions[claim][type] = {**said, "lastTransitionTime": changed}
        if write:
            self._patch_status(claim)

    def _patch_status(self, claim: str, **status: str) -> None:
        body = {"status": {**status, "conditions": list(self._conditions[claim].values())}}
        self._objects.patch_cluster_custom_object_status(GROUP, "v1", "nodeclaims", claim, body, **MERGE)

    def _patch(self, claim: str, body: Mapping[str, Any]) -> None:
        self._objects.patch_cluster_custom_object(GROUP, "v1", "nodeclaims", claim, body, **MERGE)


def of_pod(pod: Any) -> dict[str, str]:
    """Return what an event about a pod names it by."""
    return {"kind": "Pod", "name": pod.metadata.name, "namespace": pod.metadata.namespace, "uid": pod.metadata.uid}


def _claim(name: str) -> dict[str, str]:
    return {"apiVersion": f"{GROUP}/v1", "kind": "NodeClaim", "name": name}


def _refusal(pod: Any, pool: Mapping[str, Any]) -> str:
    template = pool["spec"]["template"]
    known = {*_KNOWN, *((template.get("metadata") or {}).get("labels") or {})}
    known |= {each["key"] for each in template["spec"].get("requirements") or ()}
    for key, operator in _asked(pod):
        if key == HOSTNAME:
            return f"using label {key} is not allowed as it might interfere with the internal provisioning logic"
        if key not in known and not key.startswith(_OF_CLOUDS) and operator not in ("NotIn", "DoesNotExist"):
            return f'incompatible requirements, label "{key}" does not have known values'
    return ""


def _asked(pod: Any) -> Iterator[tuple[str, str]]:
    """Yield the labels that a pod has to find, or not to find, on its node."""
    yield from ((key, "In") for key in pod.spec.node_selector or {})
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    for term in required.node_selector_terms if required else ():
        yield from ((each.key, each.operator) for each in term.match_expressions or ())

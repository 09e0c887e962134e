"""ProvisioningRequests of GKE's class queued-provisioning.gke.io: all of a request's nodes at once, or none.

By GKE's own autoscaler, GoogleCloudPlatform/cluster-autoscaler at 7d25050, below pkg/provisioningrequests:

- A request begins with Accepted=False, which gives a reason while no group takes it. Two minutes after its creation it
  is Failed for that reason (scaleup/orchestrator.go).
- It is Accepted when one group, of one zone, is chosen for it and a resize request is created there. There it waits,
  whatever other zones have: Provisioned=False, with the error of the last attempt. Its class details have the resize
  request's name (manager/manager.go), and the nodes have it as a label.
- If Compute Engine refuses the resize request, it is Failed at once, and the group is backed off from unless what was
  asked is wrong (reconciler/reasons/reasons.go).
- It is Provisioned when the virtual machines are there, before they are nodes
  (reconciler/resize_request_reconciler.go). Ten minutes later it is BookingExpired, even where pods run, and after its
  run duration CapacityRevoked (reconciler/provisioning_request_finalizer.go).
- A request that is deleted while it waits is cancelled.

Nodes go as all others do, ten minutes after their last pod. Pods that wait bring none to such a node pool. By "About
flex-start", affinity between pods is not looked at, so pods that fit on one node get one. Not played: the search for
capacity in several zones (OBTAINABILITY), ValidUntilSeconds, and the deletion of requests that ended a week ago.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpu_sandbox.autoscaler.acceptance import POOL_LABEL, Place, Refusal, place
from gpu_sandbox.autoscaler.backoff import Backoffs
from gpu_sandbox.autoscaler.cluster import PROVISIONING_REQUEST
from gpu_sandbox.autoscaler.fitting import Pod
from gpu_sandbox.autoscaler.groups import FailedLaunch, NodeGroup, ResizeRequest, ResizeRequests
from gpu_sandbox.autoscaler.timings import AutoscalerTimings
from gpu_sandbox.clock import Clock
from gpu_sandbox.control_plane import ControlPlane
from gpu_sandbox.faults import Faults

CLASS = "queued-provisioning.gke.io"
API = "/apis/autoscaling.x-k8s.io/v1"
_TOLERATED = {"key": "cloud.google.com/gke-queued", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
_EXPIRED = (
    "Capacity booking for the Provisioning Request has expired and the nodes are now candidates for scale down when "
    "underutilized."
)
_REVOKED = "Capacity provisioned for the Provisioning Request was reclaimed and is no longer available in the cluster."
_SEVEN_DAYS = 7 * 86400.0
# What a resize request's error makes of a request, by code: a condition's reason.
_REFUSED = {
    "INVALID_ARGUMENT": "InvalidArgument",
    "QUEUING_INFEASIBLE_NO_CAPACITY": "QueuingInfeasibleNoCapacity",
    "INVALID_MACHINE_TYPE": "InvalidMachineType",
    "INVALID_GPU_TYPE": "InvalidGPUType",
    "AGGREGATE_RESERVATION_NOT_EXIST": "ZoneNotSupported",
    "PERMISSION_DENIED": "PermissionDenied",
    "CONDITION_NOT_MET": "ConditionNotMet",
    "UNSUPPORTED_OPERATION": "UnsupportedOperation",
}
_NO_BACKOFF = ("INVALID_ARGUMENT", "UNSUPPORTED_OPERATION")
_FAILED = {
    "QUOTA_EXCEEDED": "QuotaExceeded",
    "ZONE_RESOURCE_POOL_EXHAUSTED": "ResourcePoolExhausted",
    "IP_SPACE_EXHAUSTED": "IPSpaceExhausted",
    "PERMISSIONS_ERROR": "PermissionsError",
    "VM_EXTERNAL_IP_ACCESS_POLICY_CONSTRAINT": "VMExternalIPAccessPolicyConstraint",
}


@dataclass(kw_only=True)
class _Known:
    """A request that was seen, and what became of it."""

    since: float
    resize_request: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    missing_since: float | None = None
    provisioned_at: float = 0.0
    revoked_at: float = 0.0
    """In `Faults.deadline_seconds`."""


@dataclass(kw_only=True)
class ProvisioningRequests:
    """What the autoscaler does about them in each of its loops. Raises OSError while the API server is away."""

    control_plane: ControlPlane
    resize_requests: ResizeRequests
    backoffs: Backoffs
    faults: Faults
    clock: Clock
    timings: AutoscalerTimings
    _known: dict[str, _Known] = field(default_factory=dict, init=False)
    _written: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    _sizes: dict[str, int] = field(default_factory=dict, init=False)
    """The sizes of groups that grew in this loop."""

    def step(self, groups: Sequence[NodeGroup]) -> Mapping[str, int]:
        """Take each request as far as it goes now, the oldest first. Return the new sizes of groups."""
        self._sizes = {}
        queued = [group for group in groups if group.queued]
        found = self._list() if queued or self._known else []
        if found is None:
            return {}
        self._forget({request["metadata"]["uid"] for request in found})
        resize_requests = self.resize_requests.all() if found else {}
        for request in found:
            known = self._known.setdefault(request["metadata"]["uid"], _Known(since=self.clock.now()))
            self._advance(request, known, queued, resize_requests.get(known.resize_request))
        return self._sizes

    def mark(self) -> tuple[object, ...]:
        """Differs where something was done."""
        return tuple(self._written.items()), tuple(self._known)

    def _list(self) -> list[Mapping[str, Any]] | None:
        status, answer = self.control_plane.request("GET", f"{API}/provisioningrequests")
        if status != 200:
            return None
        own = [request for request in answer["items"] if request["spec"]["provisioningClassName"] == CLASS]
        return sorted(own, key=lambda request: str(request["metadata"]["creationTimestamp"]))

    def _forget(self, there: set[str]) -> None:
        for uid in self._known.keys() - there:
            self.resize_requests.withdraw(self._known.pop(uid).resize_request)
            self._written.pop(uid, None)

    def _advance(
        self, request: Mapping[str, Any], known: _Known, groups: Sequence[NodeGroup], waits: ResizeRequest | None
    ) -> None:
        is_true = {each["type"] for each in _conditions(request) if each["status"] == "True"}
        if is_true & {"Failed", "CapacityRevoked"}:
            return
        if not _conditions(request):
            self._begin(request)
        elif known.resize_request and "Accepted" not in is_true:
            self._accept(request, known)
        elif "Accepted" not in is_true:
            self._offer(request, known, groups)
        elif "Provisioned" not in is_true:
            self._follow(request, known, waits)
        elif "BookingExpired" not in is_true:
            if self.clock.reached(known.provisioned_at + self.timings.booking):
                self._set_condition(request, "BookingExpired", "True", "BookingExpired", _EXPIRED)
        elif self.faults.deadline_reached(known.revoked_at):
            self._set_condition(request, "CapacityRevoked", "True", "CapacityRevoked", _REVOKED)

    def _begin(self, request: Mapping[str, Any]) -> None:
        if len(request["spec"]["podSets"]) > 1:
            message = "Provisioning Request doesn't support multiple PodSets, please define only 1."
            self._set_condition(request, "Failed", "True", "MultiplePodSetsUnsupported", message)
        else:
            self._set_condition(request, "Accepted", "False", "NotAccepted", "Provisioning Request wasn't accepted.")

    def _offer(self, request: Mapping[str, Any], known: _Known, groups: Sequence[NodeGroup]) -> None:
        may_wait = not self.clock.reached(known.since + self.timings.acceptance)
        pods = self._pods_of(request)
        if not pods:
            name = request["spec"]["podSets"][0]["podTemplateRef"]["name"]
            missing = f"missing pod templates, 1 pod templates were referenced, 1 templates were missing: {name}"
            end = f"will fail soon as it is {missing}" if may_wait else f"failed because there were {missing}"
            found: Place | Refusal = Refusal(reason="MissingPodTemplates", message=f"Provisioning Request {end}")
        else:
            grown = [replace(group, target=self._sizes.get(group.name, group.target)) for group in groups]
            backed_off = [group.name for group in groups if self.backoffs.why(group.name) is not None]
            found = place(pods, grown, backed_off=backed_off, may_wait=may_wait)
        if isinstance(found, Place):
            self._queue(request, known, found)
        elif may_wait:
            self._set_condition(request, "Accepted", "False", found.reason, found.message)
        else:
            self._set_condition(request, "Failed", "True", found.reason, found.message)

    def _queue(self, request: Mapping[str, Any], known: _Known, found: Place) -> None:
        seconds = _run_seconds(request)
        if seconds is None:
            message = "Additional parameter maxRunDurationSeconds could not be parsed."
            self._set_condition(request, "Failed", "True", "InvalidArgumentMaxRunDurationParseError", message)
            return
        name, group = resize_request_name(**_identity(request)), found.group
        try:
            refused = self.resize_requests.create(name, group=group.name, nodes=found.nodes, run_seconds=seconds)
        except ValueError:  # the node pool has just been deleted
            return
        details = _details(request, group, name)
        if refused is not None:
            reason, message = _refusal(refused, group)
            self._set_condition(request, "Failed", "True", reason, message, details)
            if refused.code not in _NO_BACKOFF:
                self.backoffs.failed(group.name, refused)
            return
        known.resize_request, known.details = name, details
        self._sizes[group.name] = group.target + found.nodes
        self._accept(request, known)

    def _accept(self, request: Mapping[str, Any], known: _Known) -> None:
        message = "Provisioning Request was successfully queued."
        self._set_condition(request, "Accepted", "True", "SuccessfullyQueued", message, known.details)

    def _follow(self, request: Mapping[str, Any], known: _Known, waits: ResizeRequest | None) -> None:
        if waits is None:
            known.missing_since = known.missing_since or self.clock.now()
            if self.clock.reached(known.missing_since + self.timings.acceptance):
                message = "The corresponding Resize Request was missing."
                self._set_condition(request, "Failed", "True", "MissingResizeRequest", message)
        elif waits.state == "SUCCEEDED":
            known.provisioned_at = self.clock.now()
            known.revoked_at = self.faults.deadline_seconds() + (_run_seconds(request) or _SEVEN_DAYS)
            message = "Provisioning Request was successfully provisioned."
            self._set_condition(request, "Provisioned", "True", "Provisioned", message)
        elif waits.state == "CANCELLED":
            message = "Provisioning Request failed because Resize Request got cancelled."
            self._set_condition(request, "Failed", "True", "InternalErrorResizeRequestGotCancelled", message)
        elif waits.error is not None and waits.state == "FAILED":
            known_code = _FAILED.get(waits.error.code)
            unknown = f'Received unrecognized error: [{waits.error.code}] "{waits.error.message}"'
            message = waits.error.message if known_code else unknown
            self._set_condition(request, "Failed", "True", known_code or "InternalError", message)
        elif waits.error is not None:
            reason = _FAILED.get(waits.error.code, "InternalError")
            self._set_condition(request, "Provisioned", "False", reason, waits.error.message)

    def _pods_of(self, request: Mapping[str, Any]) -> list[Pod]:
        """The pods that its template describes, as PodsForProvisioningRequest has them; none without that template.

        They tolerate the queue's taint, and do not select the nodes of a request.
        """
        pod_set = request["spec"]["podSets"][0]
        name, namespace = pod_set["podTemplateRef"]["name"], request["metadata"]["namespace"]
        status, found = self.control_plane.request("GET", f"/api/v1/namespaces/{namespace}/podtemplates/{name}")
        if status != 200:
            return []
        spec = found["template"]["spec"]
        selector = {
            key: value for key, value in (spec.get("nodeSelector") or {}).items() if key != PROVISIONING_REQUEST
        }
        spec = {**spec, "nodeSelector": selector, "tolerations": [*(spec.get("tolerations") or ()), _TOLERATED]}
        return [{"metadata": {}, "status": {}, "spec": spec}] * int(pod_set["count"])

    def _set_condition(
        self,
        request: Mapping[str, Any],
        kind: str,
        is_so: str,
        reason: str,
        message: str,
        details: Mapping[str, str] | None = None,
    ) -> None:
        meta = request["metadata"]
        if self._written.get(meta["uid"]) == (kind, is_so, reason, message):
            return
        others = [each for each in _conditions(request) if each["type"] != kind]
        condition = {
            "type": kind,
            "status": is_so,
            "reason": reason,
            "message": message,
            "lastTransitionTime": self.clock.utc_now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        state = {"conditions": [*others, condition], **({"provisioningClassDetails": details} if details else {})}
        path = f"{API}/namespaces/{meta['namespace']}/provisioningrequests/{meta['name']}/status"
        body = {"metadata": {"uid": meta["uid"]}, "status": state}
        status, _ = self.control_plane.request("PATCH", path, body, content_type="application/merge-patch+json")
        if status == 200:
            self._written[meta["uid"]] = (kind, is_so, reason, message)


def resize_request_name(namespace: str, name: str) -> str:
    """By ResizeRequestName in pkg/cloudprovider/gke/gceclient/resizerequest/resize_request.go."""
    digest = hashlib.sha256(f"{namespace}/{name}".encode()).hexdigest()
    return f"gke-{namespace[:20]}-{name[:20]}-{digest[:16]}"


def _identity(request: Mapping[str, Any]) -> dict[str, str]:
    return {key: request["metadata"][key] for key in ("namespace", "name")}


def _details(request: Mapping[str, Any], group: NodeGroup, resize_request: str) -> dict[str, str]:
    """By detailsFromSpec in manager/manager.go."""
    labels = group.template.labels
    return {
        "NodeGroupName": group.name.rpartition("/")[2],
        "ResizeRequestName": resize_request,
        "NodePoolName": labels[POOL_LABEL],
        "AcceleratorType": labels.get("cloud.google.com/gke-accelerator", ""),
        "SelectedZone": labels["topology.kubernetes.io/zone"],
        "NodePoolAutoProvisioned": "false",
        "PodTemplateName": request["spec"]["podSets"][0]["podTemplateRef"]["name"],
        "ProvisioningMode": "resize_request",
    }


def _refusal(why: FailedLaunch, group: NodeGroup) -> tuple[str, str]:
    zone = group.template.labels["topology.kubernetes.io/zone"]
    messages = {
        "AGGREGATE_RESERVATION_NOT_EXIST": "Provisioning Request is not supported in this zone. Try different "
        "locations.",
        "QUEUING_INFEASIBLE_NO_CAPACITY": "Could not enqueue the Provisioning Request due to insufficient capacity in "
        f"zone {zone}. Try different locations or hardware.",
    }
    return _REFUSED.get(why.code, "InternalErrorFailedToQueue"), messages.get(why.code, why.message)


def _run_seconds(request: Mapping[str, Any]) -> float | None:
    """How long its machines run; None where the parameter is no number."""
    given = (request["spec"].get("parameters") or {}).get("maxRunDurationSeconds", "")
    try:
        return float(int(given)) if given else _SEVEN_DAYS
    except ValueError:
        return None


def _conditions(request: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found: Iterable[Mapping[str, Any]] = (request.get("status") or {}).get("conditions") or ()
    return list(found)

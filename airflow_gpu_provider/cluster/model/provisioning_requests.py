"""ProvisioningRequests: what asks an autoscaler for the nodes of all pods of a training at once.

Their conditions are those of kubernetes/autoscaler,
cluster-autoscaler/apis/provisioningrequest/autoscaling.x-k8s.io/v1, and their reasons those of GKE's autoscaler:
GoogleCloudPlatform/cluster-autoscaler at 7d25050, pkg/provisioningrequests, scaleup/reasons and reconciler/reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Self

from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.cluster.model.status_conditions import Condition, conditions_of

PLURAL = "provisioningrequests"
API_GROUP = "autoscaling.x-k8s.io"

Cause = Literal["stock", "quota", "spec", "permission"]

_ENDS = ("Failed", "CapacityRevoked", "BookingExpired")
_IN_ORDER = (*_ENDS, "Provisioned", "Accepted")
_REASONS: dict[str, Cause] = {
    "PermissionDenied": "permission",
    "PermissionsError": "permission",
    "VMExternalIPAccessPolicyConstraint": "permission",
    "ProvisioningRequestNotSchedulableInNodepool": "spec",
    "ProvisioningRequestSingleZoneInfeasible": "spec",
    "NoQueuedNodepoolAvailable": "spec",
    "InvalidArgument": "spec",
    "InvalidArgumentMaxRunDurationParseError": "spec",
    "MultiplePodSetsUnsupported": "spec",
    "InvalidMachineType": "spec",
    "InvalidGPUType": "spec",
    "UnsupportedOperation": "spec",
    "ZoneNotSupported": "spec",
    "ClusterNodeLimitExceeded": "spec",
    "OutOfResources": "spec",
    "IPSpaceExhausted": "spec",
}
"""Those that no waiting changes. OutOfResources is the limit of node auto-provisioning on the whole cluster."""


@dataclass(frozen=True, kw_only=True)
class ProvisioningRequest:
    """One request; `owner` is the uid of the Kueue Workload that it is for, `attempt` counts those for one Workload."""

    name: str
    owner: str
    attempt: int = 1
    conditions: dict[str, Condition] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read one. Kueue names it <workload>-<check>-<attempt> (its admissionchecks/provisioning/provisioning.go)."""
        meta: dict[str, Any] = raw["metadata"]
        number = meta["name"].rpartition("-")[2]
        return cls(
            name=meta["name"],
            owner=next((each["uid"] for each in meta.get("ownerReferences") or () if each["kind"] == "Workload"), ""),
            attempt=int(number) if number.isdecimal() else 1,
            conditions=conditions_of(raw),
        )

    @property
    def has_failed(self) -> bool:
        """Whether it brings no nodes, or the nodes that it has brought were not used in time."""
        counts = self._counts
        return counts is not None and counts.is_true and counts.type in _ENDS

    @property
    def cause(self) -> Cause:
        """What keeps nodes from coming by it: "stock" where it may pass, and where the reason is unknown."""
        reason = self._counts.reason if self._counts else ""
        return "quota" if "quota" in reason.lower() else _REASONS.get(reason, "stock")

    @property
    def in_words(self) -> str:
        """Its state in the API's own words."""
        if (found := self._counts) is None:
            return f"ProvisioningRequest {self.name} is pending"
        words = ": ".join(filter(None, (found.reason, found.message.rstrip("."))))
        return f"ProvisioningRequest {self.name}: {found.type}={found.is_true}{f', {words}' if words else ''}"

    @property
    def _counts(self) -> Condition | None:
        """The condition that counts now. An end that is false is none; that it is not accepted yet has a reason."""
        there = (self.conditions[kind] for kind in _IN_ORDER if kind in self.conditions)
        return next((each for each in there if each.is_true or each.type not in _ENDS), None)

"""ProvisioningRequests: nodes asked of the cluster's autoscaler for all pods of a gang at once, and what it answers.

kubernetes/autoscaler, cluster-autoscaler/apis/provisioningrequest/autoscaling.x-k8s.io/v1/types.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.pod_state import Json
from airflow_gpu_provider.cluster.rest import list_items
from airflow_gpu_provider.cluster.status_conditions import Condition, conditions_of
from airflow_gpu_provider.errors import ObjectRejected

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

API_GROUP = "autoscaling.x-k8s.io"
API_VERSION = f"{API_GROUP}/v1"
PLURAL = "provisioningrequests"
REQUEST_ANNOTATION = "autoscaling.x-k8s.io/consume-provisioning-request"
CLASS_ANNOTATION = "autoscaling.x-k8s.io/provisioning-class-name"
PARAMETER_PREFIX = "provreq.kueue.x-k8s.io/"
"""Of a Job's annotations that are a request's parameters: Kueue's, which makes requests by the same ones."""

_PATH = f"/apis/{API_VERSION}/{PLURAL}"
_IN_ORDER = ("Failed", "CapacityRevoked", "BookingExpired", "Provisioned", "Accepted")


@dataclass(frozen=True, kw_only=True)
class ProvisioningRequest:
    """One request. `job` is the uid of the Job that it is for."""

    name: str
    job: str
    conditions: Mapping[str, Condition] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read a request as the API server sends it."""
        meta = raw["metadata"]
        return cls(
            name=meta["name"],
            job=next((each["uid"] for each in meta.get("ownerReferences") or () if each["kind"] == "Job"), ""),
            conditions=conditions_of(raw),
        )

    def has(self, condition: str) -> bool:
        """Whether this condition is true."""
        return condition in self.conditions and self.conditions[condition].is_true

    @property
    def is_over(self) -> bool:
        """Whether it brings nothing any more: it has failed, or pods were not there in time for its nodes."""
        return any(map(self.has, _IN_ORDER[:3]))

    @property
    def is_provisioned(self) -> bool:
        """Whether its nodes are there, and are kept for its pods."""
        return self.has("Provisioned") and not self.is_over

    @property
    def reason(self) -> str:
        """The reason of the condition that counts now; empty while it has none."""
        kind = self._kind
        return self.conditions[kind].reason if kind else ""

    @property
    def in_words(self) -> str:
        """Its state in the API's own words."""
        kind = self._kind
        if not kind:
            return f"ProvisioningRequest {self.name} is pending"
        found = self.conditions[kind]
        words = ": ".join(filter(None, (found.reason, found.message.rstrip("."))))
        return f"ProvisioningRequest {self.name}: {kind}={found.is_true}{f', {words}' if words else ''}"

    @property
    def _kind(self) -> str:
        """The condition that counts now. One that is false tells something only of Provisioned."""
        counts = (kind for kind in _IN_ORDER if self.has(kind) or (kind == "Provisioned" and kind in self.conditions))
        return next(counts, "")


def list_provisioning_requests(api: ApiClient, selector: str) -> dict[str, ProvisioningRequest]:
    """Return the requests with these labels, in all namespaces, by the uids of their Jobs.

    Raises:
        ObjectRejected: The cluster does not know the kind.
        GpuError: They cannot be listed.
    """
    try:
        listed = list_items(api, _PATH, resource=PLURAL, labelSelector=selector)
    except ObjectNotFound as error:
        raise ObjectRejected(
            f"The cluster has no {API_VERSION} ProvisioningRequest, by which nodes come with queued_provisioning.",
            "Upgrade it to GKE 1.32.2-gke.1652000 or newer, or leave queued_provisioning out of the pool.",
        ) from error
    found = map(ProvisioningRequest.parse, listed)
    return {each.job: each for each in found if each.job}

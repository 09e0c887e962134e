"""Puts released manifests into a cluster whose API server may be away, or not serve a new kind yet."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from gpu_sandbox.control_plane import ControlPlane
from gpu_sandbox.errors import ComponentFailed

CRD = "CustomResourceDefinition"
_POLL = 0.05
_DISCOVERY = "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList"
_PATHS = {
    CRD: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "ClusterTrainingRuntime": "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes",
}


class Installation:
    """Creates objects in the cluster until `deadline`, of time.monotonic(); each method may raise ComponentFailed."""

    def __init__(self, control_plane: ControlPlane, deadline: float) -> None:
        self._control_plane = control_plane
        self._deadline = deadline

    def resources(self, crds: Iterable[Mapping[str, Any]]) -> None:
        """Create custom resource definitions; return when objects of them can be created."""
        created = list(crds)
        for crd in created:
            self.create(crd)
        for crd in created:
            self._wait_until_served(crd["spec"])

    def create(self, wanted: Mapping[str, Any]) -> None:
        """Create it; an answer that did not come is waited for anew, and then says that it is there (409)."""
        status, reply = self._answer("POST", _PATHS[wanted["kind"]], wanted)
        if status not in (201, 409):
            raise ComponentFailed(f"{wanted['kind']} {wanted['metadata']['name']} was refused: {str(reply)[:2000]}")

    def _wait_until_served(self, crd: Mapping[str, Any]) -> None:
        # That it is established is not enough: its API group is registered some moments later, and listed in the
        # discovery, which controllers read once when they start, some moments after that.
        group, plural = crd["group"], crd["names"]["plural"]
        versions = {each["name"] for each in crd["versions"] if each["served"]}
        storage = next(each["name"] for each in crd["versions"] if each["storage"])
        while self._answer("GET", f"/apis/{group}/{storage}/{plural}")[0] != 200 or not versions <= self._listed(
            group, plural
        ):
            if time.monotonic() > self._deadline:
                raise ComponentFailed(f"the API server did not serve {plural}.{group} in time")
            time.sleep(_POLL)

    def _listed(self, group: str, plural: str) -> set[str]:
        """The versions in which the discovery lists this resource."""
        _, discovery = self._answer("GET", "/apis", accept=_DISCOVERY)
        return {
            version["version"]
            for found in discovery["items"]
            if found["metadata"]["name"] == group
            for version in found["versions"]
            if any(each["resource"] == plural for each in version.get("resources") or ())
        }

    def _answer(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        while True:
            try:
                return self._control_plane.request(method, path, body, **headers)
            except ConnectionError:
                if time.monotonic() > self._deadline:
                    raise

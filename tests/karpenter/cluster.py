"""A sandbox's cluster with the real Karpenter: its NodePools, claims and events, and the pools that go by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from kubernetes import client, config

from airflow_gpu_provider import KubernetesGpuPool
from gpu_sandbox.karpenter import Karpenter
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import eventually

GROUP, CLASSES = "karpenter.sh", "karpenter.kwok.sh"
NODE_POOL = f"{GROUP}/nodepool"
ZONE = "topology.kubernetes.io/zone"
INSTANCE_TYPE, CAPACITY_TYPE = "node.kubernetes.io/instance-type", f"{GROUP}/capacity-type"
QUICK = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "0s"}
NEVER = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"}


def requirement(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": [*values]}


class Cluster:
    """One for all tests of a worker: what they make here, `clear` removes."""

    def __init__(self, sandbox: Sandbox, karpenter: Karpenter) -> None:
        self.sandbox = sandbox
        self.karpenter = karpenter
        self.core = client.CoreV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
        self.objects = client.CustomObjectsApi(self.core.api_client)
        self.node_class("default")

    # -- what Karpenter goes by ----------------------------------------------------------------------------------

    def node_class(self, name: str) -> None:
        body = {"apiVersion": f"{CLASSES}/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": name}, "spec": {}}
        self.objects.create_cluster_custom_object(CLASSES, "v1alpha1", "kwoknodeclasses", body)

    def set_node_class_ready(self, name: str, *, ready: bool, message: str = "") -> None:
        """Say so in its status, as a cloud's own controller of node classes does."""
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        said = {
            "type": "Ready",
            "status": str(ready),
            "reason": "Checked",
            "message": message,
            "lastTransitionTime": at,
        }
        body = {"status": {"conditions": [said]}}
        self.objects.patch_cluster_custom_object_status(CLASSES, "v1alpha1", "kwoknodeclasses", name, body)

    def node_pool(
        self,
        name: str,
        *,
        types: Sequence[str] = ("g6.xlarge",),
        requirements: Sequence[Mapping[str, Any]] | None = None,
        labels: Mapping[str, str] | None = None,
        node_class: str = "default",
        disruption: Mapping[str, Any] = QUICK,
        ready: bool = True,
        template: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> KubernetesGpuPool:
        """Create a NodePool, by default of machines on demand with one GPU that go when empty; return its pool.

        `template` is more of its template's spec, `spec` more of its own. It returns when Karpenter has looked at it.
        """
        on_demand = requirement(CAPACITY_TYPE, "In", "on-demand")
        of_template = {
            "nodeClassRef": {"group": CLASSES, "kind": "KWOKNodeClass", "name": node_class},
            "requirements": [requirement(INSTANCE_TYPE, "In", *types), on_demand]
            if requirements is None
            else [*requirements],
            "expireAfter": "Never",
            **(template or {}),
        }
        body = {
            "apiVersion": f"{GROUP}/v1",
            "kind": "NodePool",
            "metadata": {"name": name},
            "spec": {
                "template": {"metadata": {"labels": dict(labels or {})}, "spec": of_template},
                "disruption": dict(disruption),
                **spec,
            },
        }
        self.objects.create_cluster_custom_object(GROUP, "v1", "nodepools", body)
        if ready:
            self.until_ready(name)
        return self.pool(name)

    def until_ready(self, name: str, status: str = "True") -> None:
        """Wait until Karpenter has found a NodePool ready, or not."""
        eventually(lambda: condition(self.nodepool(name), "Ready").get("status") == status, seconds=60)

    def pool(self, node_pool: str, **changes: Any) -> KubernetesGpuPool:
        """The package's pool of that NodePool's nodes."""
        spec = {
            "name": node_pool,
            "provisioner": "karpenter",
            "node_selector_labels": {NODE_POOL: node_pool},
            "gpus_per_node": 1,
            "max_runtime": timedelta(hours=1),
        }
        return KubernetesGpuPool(**{**spec, **changes})

    def patch_node_pool(self, name: str, spec: Mapping[str, Any]) -> None:
        self.objects.patch_cluster_custom_object(GROUP, "v1", "nodepools", name, {"spec": dict(spec)})

    def delete_node_pool(self, name: str) -> None:
        self.objects.delete_cluster_custom_object(GROUP, "v1", "nodepools", name)

    def hold(self, plural: str, name: str) -> None:
        """Keep an object that is deleted from going, by a finalizer; it goes by `let_go`."""
        self._set_finalizers(plural, name, ["tests/held"])

    def let_go(self, plural: str, name: str) -> None:
        self._set_finalizers(plural, name, None)

    def _set_finalizers(self, plural: str, name: str, finalizers: Sequence[str] | None) -> None:
        body = {"metadata": {"finalizers": finalizers}}
        self.objects.patch_cluster_custom_object(GROUP, "v1", plural, name, body)

    # -- what Karpenter does -------------------------------------------------------------------------------------

    def nodepool(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.objects.get_cluster_custom_object(GROUP, "v1", "nodepools", name)
        return found

    def node_pools(self) -> list[dict[str, Any]]:
        return list(self.objects.list_cluster_custom_object(GROUP, "v1", "nodepools")["items"])

    def claims(self, node_pool: str) -> list[dict[str, Any]]:
        of_it = f"{NODE_POOL}={node_pool}"
        listed = self.objects.list_cluster_custom_object(GROUP, "v1", "nodeclaims", label_selector=of_it)
        return list(listed["items"])

    def delete_claim(self, name: str) -> None:
        self.objects.delete_cluster_custom_object(GROUP, "v1", "nodeclaims", name)

    def nodes(self, node_pool: str) -> list[Any]:
        return list(self.core.list_node(label_selector=f"{NODE_POOL}={node_pool}").items)

    def set_node_ready(self, name: str, *, ready: bool) -> None:
        """Say so in its status, as its kubelet does, or the control plane where that is silent."""
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        said = {"type": "Ready", "status": str(ready), "reason": "Tested", "lastTransitionTime": at}
        path, body = f"/api/v1/nodes/{name}/status", {"status": {"conditions": [said]}}
        kind = "application/strategic-merge-patch+json"
        code, reply = self.sandbox.control_plane.request("PATCH", path, body, content_type=kind)
        assert code == 200, reply

    def events(self, name: str) -> list[str]:
        """What is told of objects of this name in `default`: reason and message."""
        listed = self.core.list_namespaced_event("default", field_selector=f"involvedObject.name={name}").items
        return [f"{event.reason}: {event.message}" for event in listed]

    def clear(self) -> None:
        """Remove pods and NodePools; their machines go while the next test begins."""
        self.karpenter.cloud.reset()
        self.core.delete_collection_namespaced_pod("default", grace_period_seconds=0)
        client.BatchV1Api(self.core.api_client).delete_collection_namespaced_job(
            "default", propagation_policy="Background"
        )
        self.objects.delete_collection_cluster_custom_object(GROUP, "v1", "nodepools")
        self.core.delete_collection_namespaced_event("default")


def condition(object: Mapping[str, Any], type: str) -> dict[str, Any]:
    """The object's condition of this type; {} where it has none."""
    conditions = object.get("status", {}).get("conditions") or ()
    return next((dict(each) for each in conditions if each["type"] == type), {})

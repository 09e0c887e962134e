"""A cluster with Karpenter's objects, said in few words, and the platform of a pool that Karpenter brings nodes for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.clouds.kubernetes.provisioned import ProvisionedPlatform
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient

NOW = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
SELECTOR = {"karpenter.sh/nodepool": "gpu"}
READY = {"type": "Ready", "status": "True", "reason": "Ready"}
PLACE = {
    "karpenter.sh/capacity-type": "spot",
    "node.kubernetes.io/instance-type": "g6.xlarge",
    "topology.kubernetes.io/zone": "us-west-2c",
}
_KARPENTER = "apis/karpenter.sh/v1"


def pool(**fields: Any) -> KubernetesGpuPool:
    spec = {"name": "train", "provisioner": "karpenter", "node_selector_labels": SELECTOR, "gpus_per_node": 1}
    return KubernetesGpuPool(**{**spec, **fields})


def stamp(minutes_ago: float = 0) -> str:
    return f"{NOW - timedelta(minutes=minutes_ago):%Y-%m-%dT%H:%M:%SZ}"


def condition(type: str, status: str = "True", reason: str = "", message: str = "", ago: float = 0) -> dict[str, str]:
    return {"type": type, "status": status, "reason": reason, "message": message, "lastTransitionTime": stamp(ago)}


class Cluster:
    """An API server with what Karpenter keeps in it; times are minutes ago."""

    def __init__(self) -> None:
        self.server = ApiServer(now=lambda: NOW)
        self._events = 0

    def platform(self, **fields: Any) -> ProvisionedPlatform:
        found = ProvisionedPlatform(pool(**fields))
        found.__dict__["_api"] = FakeApiClient(self.server)
        return found

    def node_pool(
        self,
        name: str = "gpu",
        *conditions: Mapping[str, str],
        used: Mapping[str, str] | None = None,
        group: str = "karpenter.k8s.aws",
        **spec: Any,
    ) -> None:
        template = {"spec": {"nodeClassRef": {"group": group, "name": "gpu"}, "requirements": []}}
        status = {"conditions": list(conditions or (READY,)), "resources": dict(used or {})}
        raw = {"metadata": {"name": name}, "spec": {"template": template, **spec}, "status": status}
        self.server.put(f"{_KARPENTER}/nodepools/{name}", raw)

    def claim(
        self, name: str, *conditions: Mapping[str, str], ago: float = 1, deleting: bool = False, **status: Any
    ) -> None:
        labels = {**SELECTOR, **(PLACE if "providerID" in status else {})}
        meta = {"name": name, "labels": labels, "creationTimestamp": stamp(ago)}
        if deleting:
            meta["deletionTimestamp"] = stamp(ago)
        raw = {"metadata": meta, "spec": {}, "status": {"conditions": list(conditions), **status}}
        self.server.put(f"{_KARPENTER}/nodeclaims/{name}", raw)

    def launched(self, name: str, *conditions: Mapping[str, str], ago: float = 1, **status: Any) -> None:
        """A claim with a machine, which has not joined yet."""
        self.claim(
            name,
            condition("Launched", ago=ago),
            *conditions,
            ago=ago,
            providerID=f"aws:///us-west-2c/i-{name}",
            **status,
        )

    def refused(self, name: str, reason: str, message: str, ago: float = 1) -> None:
        self.claim(name, condition("Launched", "Unknown", reason, message, ago), ago=ago)

    def node(self, name: str, machine: str, ago: float = 1, **fields: Any) -> None:
        meta = {"name": name, "labels": {**SELECTOR, **PLACE}, "creationTimestamp": stamp(ago)}
        spec = {"providerID": f"aws:///us-west-2c/{machine}", **fields}
        status = {"conditions": [condition("Ready", ago=ago)], "allocatable": {"nvidia.com/gpu": "1"}}
        self.server.put(f"api/v1/nodes/{name}", {"metadata": meta, "spec": spec, "status": status})

    def event(self, claim: str, reason: str, message: str, ago: float, type: str = "Warning") -> None:
        self._events += 1
        name = f"{claim or 'gone'}.{self._events}"
        about = {"kind": "NodeClaim", **({"name": claim} if claim else {})}
        raw = {"metadata": {"name": name, "namespace": "default"}, "involvedObject": about, "type": type}
        said = {"reason": reason, "message": message, "lastTimestamp": stamp(ago)}
        self.server.put(f"api/v1/namespaces/default/events/{name}", {**raw, **said})

    def no_capacity(self, claim: str, message: str = "insufficient capacity", ago: float = 1) -> None:
        self.event(claim, "InsufficientCapacityError", f"NodeClaim {claim} event: {message}", ago)

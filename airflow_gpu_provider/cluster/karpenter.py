"""What Karpenter, and EKS Auto Mode after it, keeps in a cluster: NodePools, NodeClaims, and launches that failed.

Its own rules are followed: https://karpenter.sh/docs/concepts/scheduling/. Labels of the cloud or of Kubernetes are
known to its catalogue of machines; any other has to stand in a NodePool, or no machine of it ever carries it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.clock import parse_time
from airflow_gpu_provider.cluster.events import time_of
from airflow_gpu_provider.cluster.node_requirements import Requirement, is_met
from airflow_gpu_provider.cluster.nodes import GPU_RESOURCE
from airflow_gpu_provider.cluster.rest import call, list_items
from airflow_gpu_provider.pools import Taint

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

NODE_POOL_LABEL = "karpenter.sh/nodepool"
AUTO_MODE_GROUP = "eks.amazonaws.com"
"""The API group of Auto Mode's NodeClasses; a Karpenter that somebody installed uses its cloud's own."""

_EC2_GROUP = "karpenter.k8s.aws"
_POOLS = "/apis/karpenter.sh/v1/nodepools"
_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
_EVENTS = "/api/v1/namespaces/default/events"  # where events about objects without a namespace live
_KNOWN_DOMAINS = ("kubernetes.io", "k8s.io", "k8s.aws", "amazonaws.com", "karpenter.sh", "azure.com", "gke.io")
_CATEGORIES = ("karpenter.k8s.aws/instance-category", "eks.amazonaws.com/instance-category")
_GPU_CATEGORIES = ("g", "p")  # EC2's instance families with NVIDIA GPUs begin with these
_OUT_OF_STOCK = "InsufficientCapacityError"
_FAILURES = (_OUT_OF_STOCK, "NodeClassNotReady")


@dataclass(frozen=True, kw_only=True)
class NodePool:
    """A NodePool: what machines it may bring.

    Attributes:
        node_class_group, node_class: API group and name of its node class.
        labels: Labels that its nodes get.
        requirements: What its machines have to be, as Kubernetes' node selector requirements.
        not_ready: Why it brings nothing now, in its own words; empty when it is ready.
    """

    name: str
    node_class_group: str
    node_class: str = ""
    labels: Mapping[str, str]
    requirements: tuple[Requirement, ...]
    taints: tuple[Taint, ...]
    not_ready: str = ""

    @property
    def is_auto_mode(self) -> bool:
        """Whether EKS Auto Mode runs it."""
        return self.node_class_group == AUTO_MODE_GROUP

    def refuses(self, selector: Mapping[str, str], tolerated: tuple[Taint, ...]) -> str:
        """Return why it would add no node for a GPU pod with this selector and these tolerations; else empty.

        A taint of nvidia.com/gpu is tolerated anyway.
        """
        if self.not_ready:
            return f"it is not ready ({self.not_ready})"
        for key, value in selector.items():
            if not self._can_have(key, value):
                return f"its nodes cannot have the label {key}={value}"
        for requirement in self.requirements:
            if requirement["key"] in _CATEGORIES and not _has_gpu_category(requirement):
                return f"its {requirement['key']} has no GPUs: {', '.join(requirement.get('values') or ())}"
        for taint in self.taints:
            if taint.key != GPU_RESOURCE and taint.effect != "PreferNoSchedule" and taint not in tolerated:
                return f"the pool does not tolerate its taint {taint}"
        return ""

    def _can_have(self, key: str, value: str) -> bool:
        if key == NODE_POOL_LABEL:
            return value == self.name
        if key in self.labels:
            return self.labels[key] == value
        asked = [requirement for requirement in self.requirements if requirement["key"] == key]
        if asked:
            return all(is_met(requirement, value) for requirement in asked)
        domain = key.partition("/")[0] if "/" in key else ""
        return any(domain == known or domain.endswith(f".{known}") for known in _KNOWN_DOMAINS)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read a NodePool as the API server sends it."""
        template = raw["spec"]["template"]
        spec = template.get("spec") or {}
        conditions = (raw.get("status") or {}).get("conditions") or ()
        failed = [c for c in conditions if c["type"] == "Ready" and c["status"] == "False"]
        return cls(
            name=raw["metadata"]["name"],
            node_class_group=(spec.get("nodeClassRef") or {}).get("group") or "",
            node_class=(spec.get("nodeClassRef") or {}).get("name") or "",
            labels=(template.get("metadata") or {}).get("labels") or {},
            requirements=tuple(spec.get("requirements") or ()),
            taints=tuple(
                Taint(key=t["key"], value=t.get("value") or "", effect=t["effect"]) for t in spec.get("taints") or ()
            ),
            not_ready=": ".join(filter(None, (failed[0].get("reason"), failed[0].get("message")))) if failed else "",
        )


@dataclass(frozen=True, kw_only=True)
class NodeClaim:
    """One machine that Karpenter has asked for, from the moment of asking to the end of its node.

    Attributes:
        machine: The cloud's name for the machine; the claim's own before there is one.
        has_node: Its node has joined.
        launched_at: When the cloud gave it; None before.
        problem: Why it has not been launched, in Karpenter's words; else empty.
    """

    name: str
    labels: Mapping[str, str]
    requirements: tuple[Requirement, ...]
    machine: str
    has_node: bool
    deleting: bool
    created_at: datetime
    launched_at: datetime | None
    problem: str = ""

    def serves(self, selector: Mapping[str, str]) -> bool:
        """Whether its node has, or will have, these labels. Before the launch they stand in its requirements."""
        return all(self.labels.get(key) == value or self._asks_for(key, value) for key, value in selector.items())

    def _asks_for(self, key: str, value: str) -> bool:
        if key in self.labels:
            return False
        return any(r["key"] == key and r["operator"] == "In" and r["values"] == [value] for r in self.requirements)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read a NodeClaim as the API server sends it."""
        meta, status = raw["metadata"], raw.get("status") or {}
        launched: Mapping[str, str] = next((c for c in status.get("conditions") or () if c["type"] == "Launched"), {})
        is_launched = launched.get("status") == "True"
        return cls(
            name=meta["name"],
            labels=meta.get("labels") or {},
            requirements=tuple((raw.get("spec") or {}).get("requirements") or ()),
            machine=(status.get("providerID") or "").rpartition("/")[2] or meta["name"],
            has_node=bool(status.get("nodeName")),
            deleting="deletionTimestamp" in meta,
            created_at=datetime.fromisoformat(meta["creationTimestamp"]),
            launched_at=parse_time(launched.get("lastTransitionTime")) if is_launched else None,
            problem=launched.get("message", "") if launched.get("reason") == "LaunchFailed" else "",
        )


@dataclass(frozen=True, kw_only=True)
class FailedLaunch:
    """A launch that failed, by Karpenter's event; the claim itself is deleted, and asked for anew."""

    claim: str
    at: datetime
    message: str
    out_of_stock: bool

    def is_of(self, node_pool: str) -> bool:
        """Whether it was for this NodePool: claims are named after theirs, with a random last part."""
        return self.claim.rpartition("-")[0] == node_pool


def list_node_pools(api: ApiClient) -> tuple[NodePool, ...] | None:
    """Return the NodePools; None where the cluster knows no such thing."""
    try:
        return tuple(NodePool.parse(raw) for raw in list_items(api, _POOLS, resource="nodepools.karpenter.sh"))
    except ObjectNotFound:
        return None


def brings_bottlerocket(api: ApiClient, node_pool: NodePool) -> bool:
    """Return True if a NodePool's machines run Bottlerocket, whose NVIDIA images have a device plugin of their own."""
    if node_pool.node_class_group != _EC2_GROUP:
        return False
    path = f"/apis/{_EC2_GROUP}/v1/ec2nodeclasses/{node_pool.node_class}"
    try:
        spec = call(api, "get", path, resource="ec2nodeclasses.karpenter.k8s.aws").get("spec") or {}
    except ObjectNotFound:
        return False  # a NodePool without its node class brings nothing
    aliases = [str(term.get("alias") or "") for term in spec.get("amiSelectorTerms") or ()]
    return spec.get("amiFamily") == "Bottlerocket" or any(alias.startswith("bottlerocket@") for alias in aliases)


def list_node_claims(api: ApiClient, selector: Mapping[str, str]) -> tuple[NodeClaim, ...]:
    """Return the NodeClaims for nodes with these labels, by name."""
    claims = (NodeClaim.parse(raw) for raw in list_items(api, _CLAIMS, resource="nodeclaims.karpenter.sh"))
    return tuple(sorted((claim for claim in claims if claim.serves(selector)), key=lambda claim: claim.name))


def list_failed_launches(api: ApiClient) -> list[FailedLaunch]:
    """Return the failed launches that events still tell of (an hour, where nobody has set otherwise), oldest first."""
    raw = list_items(api, _EVENTS, resource="events", fieldSelector="involvedObject.kind=NodeClaim,type=Warning")
    failed = [
        FailedLaunch(
            claim=event["involvedObject"]["name"],
            at=time_of(event),
            message=(event.get("message") or "").partition(" event: ")[2] or event.get("message") or "",
            out_of_stock=event.get("reason") == _OUT_OF_STOCK,
        )
        for event in raw
        if event.get("reason") in _FAILURES
    ]
    return sorted(failed, key=lambda each: each.at)


def _has_gpu_category(requirement: Requirement) -> bool:
    return any(is_met(requirement, category) for category in _GPU_CATEGORIES)

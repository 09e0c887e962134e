"""What Karpenter, and EKS Auto Mode after it, keeps in a cluster: NodePools, NodeClaims, and what became of launches.

Its own rules are followed: https://karpenter.sh/docs/concepts/scheduling/, and where that is silent the source of
kubernetes-sigs/karpenter v1.14: pkg/apis/v1 (labels, conditions), pkg/controllers/provisioning/provisioner.go (the
NodePools that it ignores), pkg/controllers/nodeclaim/lifecycle (what becomes of a launch). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.cluster.model.events import time_of
from airflow_gpu_provider.cluster.model.node_requirements import Requirement, is_met
from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.cluster.model.quantity import amount
from airflow_gpu_provider.cluster.model.status_conditions import Condition, conditions_of
from airflow_gpu_provider.pools import Taint
from airflow_gpu_provider.untrusted import plain

NODE_POOL_LABEL = "karpenter.sh/nodepool"
AUTO_MODE_GROUP = "eks.amazonaws.com"
"""The API group of Auto Mode's NodeClasses; a Karpenter that somebody installed uses its cloud's own."""

# What its catalogue of machines knows (labels.go), beside the clouds' own; any other label has to stand in a NodePool.
_WELL_KNOWN = (
    "karpenter.sh/capacity-type",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "node.kubernetes.io/windows-build",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    # Names of old that it translates.
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
)
_CLOUD_DOMAINS = ("k8s.aws", "amazonaws.com", "azure.com", "gke.io")
_CATEGORIES = ("karpenter.k8s.aws/instance-category", "eks.amazonaws.com/instance-category")
_GPU_CATEGORIES = ("g", "p")  # EC2's instance families with NVIDIA GPUs begin with these
NO_CAPACITY = "InsufficientCapacityError"
"""Why a launch failed, in its events: the cloud has no such machine, or the account may not have one more."""

_FAILURES = (NO_CAPACITY, "NodeClassNotReady")
_STEPS = ("Launched", "Registered", "Initialized")
"""The conditions of a NodeClaim, in the order in which they come true (nodeclaim_status.go)."""


@dataclass(frozen=True, kw_only=True)
class NodePool:
    """A NodePool: what machines it may bring.

    Attributes:
        node_class_group, node_class: API group and name of its node class.
        requirements: What its machines have to be, as Kubernetes' node selector requirements.
        ignored: Why Karpenter leaves it out, without a word to any pod; empty where it does not.
        unhealthy: What became of its last machines, where they did not launch or join (NodeRegistrationHealthy).
        limits, in_use: How much of what all its machines may have, and have.
        consolidates: Empty nodes of it are removed at some time.
    """

    name: str
    node_class_group: str
    node_class: str = ""
    labels: Mapping[str, str]
    requirements: tuple[Requirement, ...]
    taints: tuple[Taint, ...]
    ignored: str = ""
    unhealthy: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    in_use: Mapping[str, Any] = field(default_factory=dict)
    consolidates: bool = True

    @property
    def is_auto_mode(self) -> bool:
        return self.node_class_group == AUTO_MODE_GROUP

    def refuses(self, selector: Mapping[str, str], tolerated: tuple[Taint, ...]) -> str:
        """Return why it would add no node for a GPU pod with this selector and these tolerations; else empty.

        A taint of nvidia.com/gpu is tolerated anyway.
        """
        return self.ignored or self.mismatch(selector, tolerated)

    def mismatch(self, selector: Mapping[str, str], tolerated: tuple[Taint, ...]) -> str:
        """Return what of it does not fit such a pod, whether or not it is ready; else empty."""
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
        of_cloud = any(domain == known or domain.endswith(f".{known}") for known in _CLOUD_DOMAINS)
        return key in _WELL_KNOWN or of_cloud

    @property
    def used_up(self) -> str:
        """Which of its limits leave no room for another machine, like "nvidia.com/gpu: 4 of 4"; empty where none."""
        full = (
            f"{name}: {self.in_use.get(name, 0)} of {limit}"
            for name, limit in self.limits.items()
            if amount(self.in_use.get(name, 0)) >= amount(limit)
        )
        return ", ".join(full)

    @property
    def gpus_allowed(self) -> int | None:
        """How many GPUs all its machines together may have; None where no limit says it."""
        return int(amount(self.limits[GPU_RESOURCE])) if GPU_RESOURCE in self.limits else None

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        template = raw["spec"]["template"]
        spec = template.get("spec") or {}
        conditions, disruption = conditions_of(raw), raw["spec"].get("disruption") or {}
        healthy = conditions.get("NodeRegistrationHealthy")
        return cls(
            name=raw["metadata"]["name"],
            node_class_group=(spec.get("nodeClassRef") or {}).get("group") or "",
            node_class=(spec.get("nodeClassRef") or {}).get("name") or "",
            labels=(template.get("metadata") or {}).get("labels") or {},
            requirements=tuple(spec.get("requirements") or ()),
            taints=tuple(map(Taint.of_json, spec.get("taints") or ())),
            ignored=_why_ignored(raw, conditions),
            unhealthy=str(healthy) if healthy and healthy.status == "False" else "",
            limits=raw["spec"].get("limits") or {},
            in_use=(raw.get("status") or {}).get("resources") or {},
            consolidates=disruption.get("consolidateAfter") != "Never",
        )


def _why_ignored(raw: Mapping[str, Any], conditions: Mapping[str, Condition]) -> str:
    if "deletionTimestamp" in raw["metadata"]:
        return "it is being deleted"
    if raw["spec"].get("replicas") is not None:
        return "it is static (replicas), which brings no node for a pod"
    ready = conditions.get("Ready")
    if ready is None:
        return "it is not ready (no controller has set its status: does its provisioner run?)"
    if ready.is_true:
        return ""
    # Ready itself only names the conditions that it depends on.
    causes = (conditions[name] for name in ("ValidationSucceeded", "NodeClassReady") if name in conditions)
    return f"it is not ready ({'; '.join(str(each) for each in causes if not each.is_true) or ready})"


@dataclass(frozen=True, kw_only=True)
class NodeClaim:
    """One machine that Karpenter has asked for, from the moment of asking to the end of its node.

    Attributes:
        machine: The cloud's name for the machine; the claim's own before there is one.
        node: Its node's name; empty before that has joined.
        launched_at: When the cloud gave it; None before.
        lacks: The first of its steps that is not done, in Karpenter's words; None where all are, or none was tried.
        ended: Whether the cloud was told to end the machine: after its node was drained (nodeclaim/termination.go).
    """

    name: str
    labels: Mapping[str, str]
    requirements: tuple[Requirement, ...]
    machine: str
    node: str
    deleting: bool
    created_at: datetime
    launched_at: datetime | None
    lacks: Condition | None = None
    ended: bool = False

    @property
    def problem(self) -> str:
        """Why it has not been launched, in Karpenter's words; else empty. It is asked for again for five minutes."""
        return str(self.lacks) if self.lacks and self.launched_at is None else ""

    def serves(self, selector: Mapping[str, str]) -> bool:
        """Whether its node has, or will have, these labels. Before the launch they stand in its requirements."""
        return all(self.labels.get(key) == value or self._asks_for(key, value) for key, value in selector.items())

    def _asks_for(self, key: str, value: str) -> bool:
        if key in self.labels:
            return False
        return any(r["key"] == key and r["operator"] == "In" and r["values"] == [value] for r in self.requirements)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        meta, status, conditions = raw["metadata"], raw.get("status") or {}, conditions_of(raw)
        steps = [conditions[name] for name in _STEPS if name in conditions]
        lacks = next((each for each in steps if not each.is_true), None)
        launched = conditions.get("Launched")
        return cls(
            name=meta["name"],
            labels=meta.get("labels") or {},
            requirements=tuple((raw.get("spec") or {}).get("requirements") or ()),
            machine=(status.get("providerID") or "").rpartition("/")[2] or meta["name"],
            node=status.get("nodeName") or "",
            deleting="deletionTimestamp" in meta,
            created_at=datetime.fromisoformat(meta["creationTimestamp"]),
            launched_at=launched.since if launched and launched.is_true else None,
            lacks=None if lacks is None or lacks.is_awaited else lacks,
            ended="InstanceTerminating" in conditions and conditions["InstanceTerminating"].is_true,
        )


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A launch that is over, by Karpenter's events. The claim of one that failed is deleted, and requested again.

    Attributes:
        reason: The event's, NO_CAPACITY say; empty where it worked.
    """

    claim: str
    at: datetime
    reason: str = ""
    message: str = ""

    def is_of(self, node_pool: str) -> bool:
        """Whether it was for this NodePool: claims are named after theirs, with a random last part."""
        return self.claim.rpartition("-")[0] == node_pool

    @classmethod
    def of_event(cls, event: Json) -> Self | None:
        """Return the launch that an event reports as over; None for other events."""
        # Of a claim that is gone operatorpkg's status controller tells without its name (reason Finalized).
        claim = event["involvedObject"].get("name") or ""
        reason, message = event.get("reason"), plain(event.get("message") or "")
        if reason in _FAILURES:
            why = message.partition(" event: ")[2] or message
            return cls(claim=claim, at=time_of(event), reason=reason, message=why)
        # operatorpkg's status controller: "Status condition transitioned, Type: Launched, Status: Unknown -> True, ..."
        if reason == "Launched" and "-> True" in message:
            return cls(claim=claim, at=time_of(event))
        return None


def _has_gpu_category(requirement: Requirement) -> bool:
    return any(is_met(requirement, category) for category in _GPU_CATEGORIES)

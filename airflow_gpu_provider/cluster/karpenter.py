"""What Karpenter, and EKS Auto Mode after it, keeps in a cluster: NodePools, NodeClaims, and what became of launches.

And why it keeps a machine that nobody uses.

Its own rules are followed: https://karpenter.sh/docs/concepts/scheduling/, and where that is silent the source of
kubernetes-sigs/karpenter v1.14: pkg/apis/v1 (labels, conditions), pkg/controllers/provisioning/provisioner.go (the
NodePools that it ignores), pkg/controllers/nodeclaim/lifecycle (what becomes of a launch), pkg/controllers/disruption
(types.go, emptiness.go, events/events.go: it removes no node whose claim is not initialized, nor one of a NodePool with
`consolidateAfter: Never`, nor more than the NodePool's budgets allow; the last it says in events only).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Self

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.events import time_of
from airflow_gpu_provider.cluster.node_requirements import Requirement, is_met
from airflow_gpu_provider.cluster.nodes import DO_NOT_DISRUPT
from airflow_gpu_provider.cluster.rest import ApiClient, find, list_items
from airflow_gpu_provider.cluster.status_conditions import Condition, conditions_of
from airflow_gpu_provider.pools import Taint
from airflow_gpu_provider.untrusted import plain

NODE_POOL_LABEL = "karpenter.sh/nodepool"
AUTO_MODE_GROUP = "eks.amazonaws.com"
"""The API group of Auto Mode's NodeClasses; a Karpenter that somebody installed uses its cloud's own."""

EVENTS = "/api/v1/namespaces/default/events"
"""Where events about objects without a namespace are, NodePools and NodeClaims among them."""

_EC2_GROUP = "karpenter.k8s.aws"
_POOLS = "/apis/karpenter.sh/v1/nodepools"
_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
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
            if _amount(self.in_use.get(name, 0)) >= _amount(limit)
        )
        return ", ".join(full)

    @property
    def gpus_allowed(self) -> int | None:
        """How many GPUs all its machines together may have; None where no limit says it."""
        return int(_amount(self.limits[GPU_RESOURCE])) if GPU_RESOURCE in self.limits else None

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
    found = find(api, path, resource="ec2nodeclasses.karpenter.k8s.aws")
    spec = (found or {}).get("spec") or {}  # a NodePool without its node class brings nothing
    aliases = [str(term.get("alias") or "") for term in spec.get("amiSelectorTerms") or ()]
    return spec.get("amiFamily") == "Bottlerocket" or any(alias.startswith("bottlerocket@") for alias in aliases)


def list_node_claims(api: ApiClient, selector: Mapping[str, str]) -> tuple[NodeClaim, ...]:
    """Return the NodeClaims for nodes with these labels, by name."""
    claims = (NodeClaim.parse(raw) for raw in list_items(api, _CLAIMS, resource="nodeclaims.karpenter.sh"))
    return tuple(sorted((claim for claim in claims if claim.serves(selector)), key=lambda claim: claim.name))


def list_launches(api: ApiClient) -> list[Launch]:
    """Return the launches that events still tell of (an hour, where nobody has set otherwise), oldest first."""
    raw = list_items(api, EVENTS, resource="events", fieldSelector="involvedObject.kind=NodeClaim")
    return sorted(filter(None, map(_launch, raw)), key=lambda each: each.at)


def _launch(event: Mapping[str, Any]) -> Launch | None:
    # Of a claim that is gone operatorpkg's status controller tells without its name (reason Finalized).
    claim = event["involvedObject"].get("name") or ""
    reason, message = event.get("reason"), plain(event.get("message") or "")
    if reason in _FAILURES:
        why = message.partition(" event: ")[2] or message
        return Launch(claim=claim, at=time_of(event), reason=reason, message=why)
    # operatorpkg's status controller: "Status condition transitioned, Type: Launched, Status: Unknown -> True, ..."
    if reason == "Launched" and "-> True" in message:
        return Launch(claim=claim, at=time_of(event))
    return None


def _amount(quantity: Any) -> Decimal:
    from kubernetes.utils.quantity import parse_quantity  # loads the whole client, which this module does not

    return Decimal(parse_quantity(quantity))


def _has_gpu_category(requirement: Requirement) -> bool:
    return any(is_met(requirement, category) for category in _GPU_CATEGORIES)


# -- why a machine stays -------------------------------------------------------------------------------------

Event = Mapping[str, Any]

# How long each holds: as long as it is so, it is said again after two minutes, or fifteen (its pkg/events/recorder.go).
_HOLD = {"DisruptionBlocked": timedelta(minutes=3), "Unconsolidatable": timedelta(minutes=16)}


@dataclass(frozen=True, kw_only=True)
class KeptMachine:
    """A machine that stays.

    Attributes:
        why: In Karpenter's words; empty where it has said nothing.
        reported_at: When it said so; None for what is so now.
    """

    claim: str
    why: str = ""
    reported_at: datetime | None = None


def why_kept(
    api: ApiClient, machines: Collection[str], now: datetime, annotated: Collection[str] = ()
) -> dict[str, KeptMachine]:
    """Return, by the cloud's name for the machine, why each of them stays that has a NodeClaim.

    One whose claim is being deleted does not stay, and is left out. The nodes of those that are `annotated` carry
    karpenter.sh/do-not-disrupt: Karpenter's event about it comes two minutes late, as the second one about a node.
    """
    try:
        claims = [each for each in list_node_claims(api, {}) if each.machine in machines and not each.deleting]
    except ObjectNotFound:
        return {}
    if not claims:
        return {}
    never = {pool.name for pool in list_node_pools(api) or () if not pool.consolidates}
    events = [event for reason in _HOLD for event in _events(api, reason, now)]
    return {claim.machine: _kept(claim, never, events, claim.machine in annotated) for claim in claims}


def _kept(claim: NodeClaim, never: Collection[str], events: Iterable[Event], is_annotated: bool) -> KeptMachine:
    pool = claim.labels.get(NODE_POOL_LABEL, "")
    if claim.lacks is not None:
        never_goes = f"it removes no node that is not initialized ({claim.lacks})"
        return KeptMachine(claim=claim.name, why=never_goes if claim.node else str(claim.lacks))
    if pool in never:
        return KeptMachine(claim=claim.name, why=f"NodePool {pool} has consolidateAfter: Never")
    if is_annotated:
        return KeptMachine(claim=claim.name, why=f"node {claim.node} carries {DO_NOT_DISRUPT}")
    about = {("NodeClaim", claim.name), ("Node", claim.node), ("NodePool", pool)}
    newest = max((event for event in events if _about(event) in about), key=time_of, default=None)
    if newest is None:
        return KeptMachine(claim=claim.name)
    return KeptMachine(claim=claim.name, why=_words(newest), reported_at=time_of(newest))


def _events(api: ApiClient, reason: str, now: datetime) -> list[dict[str, Any]]:
    """Return the events of this reason that still hold, but those about disruption for another one than emptiness."""
    found = list_items(api, EVENTS, resource="events", fieldSelector=f"reason={reason}")
    hold = (each for each in found if now - time_of(each) <= _HOLD[reason])
    return [each for each in hold if "disruption reason" not in _words(each) or "reason Empty" in _words(each)]


def _about(event: Event) -> tuple[str, str]:
    about = event.get("involvedObject") or {}
    return about.get("kind") or "", about.get("name") or ""


def _words(event: Event) -> str:
    return plain(event.get("message") or "")

"""Requests for what Karpenter, and EKS Auto Mode after it, keeps in a cluster (`karpenter`, `kept_machines`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from airflow_gpu_provider.cluster.api.rest import ApiClient, find, list_items
from airflow_gpu_provider.cluster.model.karpenter import Launch, NodeClaim, NodePool
from airflow_gpu_provider.cluster.model.kept_machines import HOLD, KeptMachine, is_still_true, kept_machine
from airflow_gpu_provider.cluster.model.refusals import ObjectNotFound

EVENTS = "/api/v1/namespaces/default/events"
"""Where events about objects without a namespace are, NodePools and NodeClaims among them."""

_EC2_GROUP = "karpenter.k8s.aws"
_POOLS = "/apis/karpenter.sh/v1/nodepools"
_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"


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
    return sorted(filter(None, map(Launch.of_event, raw)), key=lambda each: each.at)


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
    events = [event for reason in HOLD for event in _events(api, reason, now)]
    return {claim.machine: kept_machine(claim, never, events, claim.machine in annotated) for claim in claims}


def _events(api: ApiClient, reason: str, now: datetime) -> list[dict[str, Any]]:
    found = list_items(api, EVENTS, resource="events", fieldSelector=f"reason={reason}")
    return [each for each in found if is_still_true(each, now)]

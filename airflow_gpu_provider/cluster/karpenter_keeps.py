"""Why Karpenter, or EKS Auto Mode after it, keeps a machine that nobody uses, and by which claim it goes.

Karpenter removes no node whose claim is not initialized, nor one of a NodePool with `consolidateAfter: Never`, nor more
than the NodePool's budgets allow; the last it says in events only (its pkg/controllers/disruption: types.go,
emptiness.go, events/events.go).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.events import time_of
from airflow_gpu_provider.cluster.karpenter import EVENTS, NODE_POOL_LABEL, NodeClaim, list_node_claims, list_node_pools
from airflow_gpu_provider.cluster.nodes import DO_NOT_DISRUPT
from airflow_gpu_provider.cluster.rest import list_items

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

Event = Mapping[str, Any]

# How long each holds: as long as it is so, it is said again after two minutes, or fifteen (its pkg/events/recorder.go).
_HOLD = {"DisruptionBlocked": timedelta(minutes=3), "Unconsolidatable": timedelta(minutes=16)}


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A machine that stays.

    Attributes:
        claim: Its NodeClaim.
        why: In Karpenter's words; empty where it has said nothing.
        reported_at: When it said so; None for what is so now.
    """

    claim: str
    why: str = ""
    reported_at: datetime | None = None


def why_kept(
    api: ApiClient, machines: Collection[str], now: datetime, annotated: Collection[str] = ()
) -> dict[str, Kept]:
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


def _kept(claim: NodeClaim, never: Collection[str], events: Iterable[Event], is_annotated: bool) -> Kept:
    pool = claim.labels.get(NODE_POOL_LABEL, "")
    if claim.lacks is not None:
        never_goes = f"it removes no node that is not initialized ({claim.lacks})"
        return Kept(claim=claim.name, why=never_goes if claim.node else str(claim.lacks))
    if pool in never:
        return Kept(claim=claim.name, why=f"NodePool {pool} has consolidateAfter: Never")
    if is_annotated:
        return Kept(claim=claim.name, why=f"node {claim.node} carries {DO_NOT_DISRUPT}")
    about = {("NodeClaim", claim.name), ("Node", claim.node), ("NodePool", pool)}
    newest = max((event for event in events if _about(event) in about), key=time_of, default=None)
    if newest is None:
        return Kept(claim=claim.name)
    return Kept(claim=claim.name, why=_words(newest), reported_at=time_of(newest))


def _events(api: ApiClient, reason: str, now: datetime) -> list[dict[str, Any]]:
    """Return the events of this reason that still hold, but those about disruption for another one than emptiness."""
    found = list_items(api, EVENTS, resource="events", fieldSelector=f"reason={reason}")
    hold = (each for each in found if now - time_of(each) <= _HOLD[reason])
    return [each for each in hold if "disruption reason" not in _words(each) or "reason Empty" in _words(each)]


def _about(event: Event) -> tuple[str, str]:
    about = event.get("involvedObject") or {}
    return about.get("kind") or "", about.get("name") or ""


def _words(event: Event) -> str:
    return str(event.get("message") or "")

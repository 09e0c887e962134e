"""Why Karpenter, or EKS Auto Mode after it, keeps a machine that nobody uses, and by which claim it goes.

Karpenter removes no node whose claim is not initialized, nor one of a NodePool with `consolidateAfter: Never`, nor more
than the NodePool's budgets allow; the last it says in events only (its pkg/controllers/disruption: types.go,
emptiness.go, events/events.go).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.events import time_of
from airflow_gpu_provider.cluster.rest import list_items

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

Raw = Mapping[str, Any]

KARPENTERS = ("karpenter", "auto-mode")
"""The provisioners of a pool that have NodePools and NodeClaims."""

_GROUP = "/apis/karpenter.sh/v1"
_EVENTS = "/api/v1/namespaces/default/events"  # where events about objects without a namespace live
_NODE_POOL_LABEL = "karpenter.sh/nodepool"
_REASONS = ("DisruptionBlocked", "Unconsolidatable")


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A machine that stays.

    Attributes:
        claim: Its NodeClaim.
        why: In Karpenter's words; empty where it has said nothing.
        said_at: When it said so; None for what is so now.
    """

    claim: str
    why: str = ""
    said_at: datetime | None = None


def why_kept(api: ApiClient, machines: Collection[str]) -> dict[str, Kept]:
    """Return, by the cloud's name for the machine, why each of them stays that has a NodeClaim.

    One whose claim is being deleted does not stay, and is left out.
    """
    try:
        claims = list_items(api, f"{_GROUP}/nodeclaims", resource="nodeclaims.karpenter.sh")
        pools = list_items(api, f"{_GROUP}/nodepools", resource="nodepools.karpenter.sh")
    except ObjectNotFound:
        return {}
    mine = {_machine(claim): claim for claim in claims if "deletionTimestamp" not in claim["metadata"]}
    mine = {machine: claim for machine, claim in mine.items() if machine in machines}
    if not mine:
        return {}
    never = {pool["metadata"]["name"] for pool in pools if _removes_none(pool)}
    said = [event for reason in _REASONS for event in _events(api, reason)]
    return {machine: _kept(claim, never, said) for machine, claim in mine.items()}


def _kept(claim: Raw, never: Collection[str], said: Iterable[Raw]) -> Kept:
    name, pool = claim["metadata"]["name"], (claim["metadata"].get("labels") or {}).get(_NODE_POOL_LABEL, "")
    node = (claim.get("status") or {}).get("nodeName") or ""
    if why := _not_initialized(claim):
        return Kept(claim=name, why=f"it removes no node that is not initialized ({why})")
    if pool in never:
        return Kept(claim=name, why=f"NodePool {pool} has consolidateAfter: Never")
    about = {("NodeClaim", name), ("Node", node), ("NodePool", pool)}
    told = [event for event in said if _about(event) in about]
    newest = max(told, key=time_of, default=None)
    return Kept(claim=name) if newest is None else Kept(claim=name, why=_words(newest), said_at=time_of(newest))


def _not_initialized(claim: Raw) -> str:
    for condition in (claim.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Initialized" and condition["status"] != "True":
            words = ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
            return words or f"Initialized is {condition['status']}"
    return ""


def _machine(claim: Raw) -> str:
    provider_id = (claim.get("status") or {}).get("providerID") or ""
    return provider_id.rpartition("/")[2] or str(claim["metadata"]["name"])


def _removes_none(pool: Raw) -> bool:
    return (pool["spec"].get("disruption") or {}).get("consolidateAfter") == "Never"


def _events(api: ApiClient, reason: str) -> list[dict[str, Any]]:
    """Return the events of this reason, but those about disruption for another reason than emptiness."""
    found = list_items(api, _EVENTS, resource="events", fieldSelector=f"reason={reason}")
    return [each for each in found if "disruption reason" not in _words(each) or "reason Empty" in _words(each)]


def _about(event: Raw) -> tuple[str, str]:
    about = event.get("involvedObject") or {}
    return about.get("kind") or "", about.get("name") or ""


def _words(event: Raw) -> str:
    return str(event.get("message") or "")

"""KeptMachine: why Karpenter keeps a machine that nobody uses. Pure.

By the source of kubernetes-sigs/karpenter v1.14, pkg/controllers/disruption (types.go, emptiness.go, events/events.go):
it removes no node whose claim is not initialized, nor one of a NodePool with `consolidateAfter: Never`, nor more than
the NodePool's budgets allow; the last only its events report.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_gpu_provider.cluster.model.events import time_of
from airflow_gpu_provider.cluster.model.karpenter import NODE_POOL_LABEL, NodeClaim
from airflow_gpu_provider.cluster.model.node import DO_NOT_DISRUPT
from airflow_gpu_provider.untrusted import plain

Event = Mapping[str, Any]
# How long each holds: as long as it is so, it is said again after two minutes, or fifteen (its pkg/events/recorder.go).
HOLD = {"DisruptionBlocked": timedelta(minutes=3), "Unconsolidatable": timedelta(minutes=16)}


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


def is_still_true(event: Event, now: datetime) -> bool:
    """Return True if an event for one of the reasons of HOLD still holds, and is not about another disruption.

    That is one for another cause than emptiness.
    """
    if now - time_of(event) > HOLD[str(event.get("reason"))]:
        return False
    return "disruption reason" not in _words(event) or "reason Empty" in _words(event)


def kept_machine(claim: NodeClaim, never: Collection[str], events: Iterable[Event], is_annotated: bool) -> KeptMachine:
    """Return why a claim's machine stays.

    Args:
        never: The NodePools that never remove an empty node.
        events: Those for the reasons of HOLD that are still true.
        is_annotated: Its node carries karpenter.sh/do-not-disrupt.
    """
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


def _about(event: Event) -> tuple[str, str]:
    about = event.get("involvedObject") or {}
    return about.get("kind") or "", about.get("name") or ""


def _words(event: Event) -> str:
    return plain(event.get("message") or "")

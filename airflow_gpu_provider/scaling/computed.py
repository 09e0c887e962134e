"""For which share of a run's working time its GPUs computed, as far as they were sampled. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from airflow_gpu_provider.cluster.usage import RunUsage, Span, union

_ALL = 0.95
"""The share of the working time from which what is known stands for all of it."""


@dataclass(frozen=True, kw_only=True)
class ComputedShare:
    """How much the GPUs computed; both between 0 and 1.

    Attributes:
        share: Of the GPUs' time in pods that were sampled.
        known: For which share of the working time there was such a pod on the node.
    """

    share: float
    known: float

    def to_json(self) -> dict[str, Any]:
        return {"share": round(self.share, 3), "known": round(self.known, 3)}

    def in_words(self) -> str:
        """Return it as what follows "working"."""
        of = "" if self.known >= _ALL else f", as far as is known: for {self.known * 100:.0f} % of it"
        return f"of which the GPUs computed {self.share * 100:.0f} %{of}"


def computed_share(run: RunUsage) -> ComputedShare | None:
    """Return it for one run; None where no pod's GPUs were sampled for any time."""
    pods = run.computed.values()
    weights = [pod.gpus * _seconds([pod.span]) for pod in pods]
    if not sum(weights):
        return None
    computed = sum(pod.share * weight for pod, weight in zip(pods, weights, strict=True))
    sampled: dict[str, list[Span]] = defaultdict(list)
    for pod in pods:
        sampled[pod.node].append(pod.span)
    known = sum(_seconds(union(spans)) for spans in sampled.values())
    worked = sum(_seconds(union((*run.worked.get(node, ()), *sampled[node]))) for node in {*run.worked, *sampled})
    return ComputedShare(share=computed / sum(weights), known=known / worked)


def _seconds(spans: Iterable[Span]) -> float:
    return sum((end - start).total_seconds() for start, end in spans)

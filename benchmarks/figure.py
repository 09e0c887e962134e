"""Figure: one thing measured on both sides in one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Figure:
    """`ours` and `peer` are medians over `n` measurements, in `unit`."""

    name: str
    unit: str
    ours: float
    peer: float
    n: int

    @property
    def ratio(self) -> float:
        return round(self.ours / self.peer, 4) if self.peer else 0.0


def table(figures: Sequence[Figure]) -> list[str]:
    """Return the figures as a Markdown table."""
    rows = ["| what | unit | ours | peer | ours / peer | n |", "|---|---|---|---|---|---|"]
    return rows + [f"| {f.name} | {f.unit} | {f.ours:.4g} | {f.peer:.4g} | {f.ratio:.3g} | {f.n} |" for f in figures]

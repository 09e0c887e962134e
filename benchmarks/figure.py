"""Figure: one thing measured on both sides in one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Figure:
    """`ours` and `peer` are in `unit`; `n` says over how many measurements. Without a peer there is no ratio."""

    name: str
    unit: str
    ours: float
    peer: float | None
    n: int

    @property
    def ratio(self) -> float | None:
        return round(self.ours / self.peer, 4) if self.peer else None


def table(figures: Sequence[Figure]) -> list[str]:
    """Return the figures as a Markdown table."""
    rows = ["| what | unit | ours | peer | ours / peer | n |", "|---|---|---|---|---|---|"]
    return rows + [
        f"| {f.name} | {f.unit} | {f.ours:.4g} | {_cell(f.peer, 4)} | {_cell(f.ratio, 3)} | {f.n} |" for f in figures
    ]


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}g}"

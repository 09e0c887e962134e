"""What machines cost by the prices in the pool's spec; unknown without them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

UNKNOWN = "unknown"
"""The value of a cost if the spec gives no price."""


def cost_since(price: float | None, since: datetime | None, now: datetime) -> float | None:
    """Return what a machine has cost since then, by its price per hour; None: unknown."""
    if price is None or since is None:
        return None
    return round(price * max(0.0, (now - since).total_seconds()) / 3600, 4)


def total(costs: Iterable[float | None]) -> float | None:
    """Return the sum of the costs; None if one of them is unknown."""
    known: list[float] = []
    for cost in costs:
        if cost is None:
            return None
        known.append(cost)
    return round(sum(known), 4)


def in_words(cost: float | None, currency: str, *, at_least: bool = False) -> str:
    """Return a human-readable cost; `at_least`: it may be more."""
    return UNKNOWN if cost is None else f"{'at least ' if at_least else ''}{cost:.2f} {currency}"

"""What machines cost by the prices of the pool's spec, or of its cloud's list; unknown without them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from airflow_gpu_provider.money.prices import LIST_PRICE
from airflow_gpu_provider.pools import GpuPool

UNKNOWN = "unknown"
"""The value of a cost if the spec gives no price."""


def cost_since(price: float | None, since: datetime | None, now: datetime) -> float | None:
    """Return what a machine has cost since then, by its price per hour; None: unknown."""
    if price is None or since is None:
        return None
    return round(price * max(0.0, (now - since).total_seconds()) / 3600, 4)


def sum_known(costs: Sequence[float | None]) -> float | None:
    """Return the sum of the costs; None if one of them is unknown."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def total(costs: Iterable[float | None]) -> float | None:
    """Return the sum of the costs, rounded; None if one of them is unknown."""
    found = sum_known([*costs])
    return None if found is None else round(found, 4)


def cost_in_words(cost: float | None, currency: str, *, at_least: bool = False, by: str = "") -> str:
    """Return a human-readable cost; `at_least`: it may be more. `by` says whose price that is; see `price_source`."""
    if cost is None:
        return UNKNOWN
    return f"{'at least ' if at_least else ''}{cost:.2f} {currency}{f' ({by})' if by == LIST_PRICE else ''}"


def price_source(pool: GpuPool) -> str:
    """Return whose prices the costs of a pool go by: "list price", the cloud's, or "spec"; empty without prices."""
    if pool.has_list_prices:
        return LIST_PRICE
    return "" if pool.price_per_hour is None else "spec"

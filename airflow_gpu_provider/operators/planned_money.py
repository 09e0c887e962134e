"""How long a run's `max_cost` would last at each price that its pool's nodes may have: for a plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta

from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.prices import ListPrices, typed_prices
from airflow_gpu_provider.pools.run_budget import rate_in_words
from airflow_gpu_provider.scaling.wait.wait_loop import format_seconds


def money_lines(pool: GpuPool, max_cost: float, nodes: int, listed: ListPrices | None) -> Iterator[str]:
    """Yield a line for each price, the dearest first, to which a run is held, and one for each that is unknown.

    Args:
        pool: The (rendered) pool.
        max_cost: What the run may cost; nothing of it is spent.
        nodes: How many nodes it wants.
        listed: What the cloud lists, if the pool goes by that.
    """
    limit, whose = pool.max_price_per_hour, dict[float, list[str]]()
    for name, price in _prices(pool, listed).items():
        if price is not None and (limit is None or price <= limit):
            whose.setdefault(price, []).append(name)
    for price in sorted(whose, reverse=True):
        lasts = f"lasts {format_seconds(timedelta(hours=max_cost / (nodes * price)))}" if price else "is never used up"
        of = f" ({', '.join(whose[price])})" if any(whose[price]) else ""
        yield f"max_cost={max_cost:g} {lasts} for {rate_in_words(pool, nodes, nodes * price)}{of}"
    for group, why in listed.unknown.items() if listed else ():
        yield f"max_cost={max_cost:g} cannot be held, as the price of {group} is not known: {why}"


def _prices(pool: GpuPool, listed: ListPrices | None) -> Mapping[str, float | None]:
    """Return what nodes cost, by group where the cloud lists it, else by market."""
    if listed is not None:
        return listed.per_hour
    return {market.lower().replace("_", "-"): price for market, price in typed_prices(pool).items()}

"""How long a run's max_cost would last, in words, for a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_gpu_provider.money.budget import least, reserve
from airflow_gpu_provider.money.prices import in_words, rate_in_words
from airflow_gpu_provider.pools.switch import unwatched_for
from airflow_gpu_provider.times import format_seconds

if TYPE_CHECKING:
    from airflow_gpu_provider.money.prices import ListPrices
    from airflow_gpu_provider.pools import GpuPool


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
        per_hour, of = nodes * price, f" ({', '.join(whose[price])})" if any(whose[price]) else ""
        hours = (max_cost - reserve(pool, per_hour)) / per_hour if price else 0.0
        lasts = f"lasts {format_seconds(timedelta(hours=hours))}" if price else "is never used up"
        if max_cost < least(pool, per_hour):
            lasts = f"is not enough, which {least(pool, per_hour):g} is,"
        yield f"max_cost={max_cost:g} {lasts} for {rate_in_words(pool, nodes, per_hour)}{of}"
    if whose and (dearest := nodes * max(whose)):
        yield (
            f"of max_cost={max_cost:g}, {in_words(pool, reserve(pool, dearest))} are kept back: what the dearest"
            f" machines cost in {format_seconds(unwatched_for(pool))} after SIGTERM, until the cloud ends them"
            " while nobody looks"
        )
    for group, why in listed.unknown.items() if listed else ():
        yield f"max_cost={max_cost:g} cannot be held, as the price of {group} is not known: {why}"


def _prices(pool: GpuPool, listed: ListPrices | None) -> Mapping[str, float | None]:
    """Return what nodes cost, by group where the cloud lists it, else by market."""
    if listed is not None:
        return listed.per_hour
    return {market.lower().replace("_", "-"): price for market, price in pool.typed_prices.items()}

"""The order in which a pool with prefer="price" takes its candidates, in words for a plan. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from airflow_gpu_provider.money.prices import UNKNOWN_PRICE, PriceRecord, is_reserved, money, node_costs, tiers
from airflow_gpu_provider.pools.candidates import Candidate


def order_lines(record: PriceRecord, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Return a line with the place of each candidate and its reason; none for a pool that does not prefer by price."""
    costs = node_costs(record, candidates)
    if not costs:
        return ()
    found = enumerate(tiers(candidates, lambda each: costs[each.group]), 1)
    return tuple(f'prefer="price", {number}.: {_in_words(tier)}: {_why(record, tier, costs)}' for number, tier in found)


def _in_words(tier: Iterable[Candidate]) -> str:
    zones: dict[str, list[str]] = {}
    for each in tier:
        zones.setdefault(each.machine, []).append(each.zone)
    return "; ".join(f"{machine} in {', '.join(names)}" if all(names) else machine for machine, names in zones.items())


def _why(record: PriceRecord, tier: Sequence[Candidate], costs: Mapping[str, float]) -> str:
    if all(is_reserved(each) for each in tier):
        return "reserved"
    low, high = min(costs[each.group] for each in tier), max(costs[each.group] for each in tier)
    if low == UNKNOWN_PRICE:
        return "at a price that is not known"
    if low == high:
        return f"{money(record.pool, low)} an hour"
    return f"{low:.4f} to {money(record.pool, high)} an hour, equally cheap, in the spec's order"

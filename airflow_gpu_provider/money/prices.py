"""What machines cost: the prices that a spec gives, or those of its cloud's list, the most that it pays, and which of
them are cheapest. Pure data.

A list price is what the cloud asks of everybody: without the discounts of an account, and without disks and traffic.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

from airflow_gpu_provider.pools.candidates import Candidate
from airflow_gpu_provider.pools.values import time_of
from airflow_gpu_provider.untrusted import loads, one_line

if TYPE_CHECKING:
    from airflow_gpu_provider.pools.gpu_pool import GpuPool


LIST_PRICE = "list price"
"""What is said beside each number that comes of such a price."""

_LONGEST_REASON = 300

EQUALLY_CHEAP = 0.05
"""What costs up to so much more than the cheapest counts as equally cheap: else each new price would move a run."""

UNKNOWN_PRICE = math.inf

_Item = TypeVar("_Item")


@dataclass(frozen=True, kw_only=True)
class ListPrices:
    """What a cloud lists for a machine of each group, an hour, in the currency of the pool.

    Attributes:
        at: When the cloud was asked.
        per_hour: By group.
        unknown: Why there is no price, by group.
        took: How many seconds this process has read, and for how many it would at most; None where that is not known.
    """

    at: datetime
    per_hour: Mapping[str, float] = field(default_factory=dict, hash=False)
    unknown: Mapping[str, str] = field(default_factory=dict, hash=False)
    took: tuple[float, float] | None = field(default=None, compare=False)

    def with_older(self, older: ListPrices | None) -> ListPrices:
        """Return them with the prices that are no longer told."""
        if older is None:
            return self
        known = {**older.per_hour, **self.per_hour}
        return replace(self, per_hour=known, unknown={g: why for g, why in self.unknown.items() if g not in known})

    def dump(self) -> str:
        """Return it as text, for an annotation."""
        unknown = {group: why[:_LONGEST_REASON] for group, why in self.unknown.items()}
        return json.dumps({"at": self.at.isoformat(), "per_hour": dict(self.per_hour), "unknown": unknown})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `dump` wrote; raises ValueError or TypeError."""
        record = loads(text)
        if not isinstance(record, dict) or not isinstance(record.get("per_hour"), dict):
            raise ValueError(f"{text[:60]} are no prices")
        unknown = dict(record.get("unknown") or {})
        return cls(
            at=time_of(str(record.get("at"))),
            per_hour={str(group): amount_of(price) for group, price in record["per_hour"].items()},
            unknown={str(group): one_line(str(why), _LONGEST_REASON) for group, why in unknown.items()},
        )


def amount_of(value: Any) -> float:
    """Return an amount of money of a record; raises ValueError or TypeError where it is none."""
    amount = float(value)
    if not 0 <= amount < math.inf:
        raise ValueError(f"{amount} is no amount of money")
    return amount


@dataclass(frozen=True, kw_only=True)
class PriceRecord:
    """What is known of a pool's prices: its spec, and what its cloud's list said at different times.

    Attributes:
        readings: The oldest first. A group that a later one does not price keeps its price.
    """

    pool: GpuPool
    readings: tuple[ListPrices, ...] = ()

    @classmethod
    def of(cls, pool: GpuPool, readings: Iterable[ListPrices | None]) -> Self:
        """Return the record of readings in any order; those that are None, or said twice, are left out."""
        found = {each.dump(): each for each in readings if each is not None} if pool.has_list_prices else {}
        return cls(pool=pool, readings=tuple(sorted(found.values(), key=lambda each: each.at)))

    def price(self, group: str, market: str, at: datetime | None = None) -> float | None:
        """Return what a machine costs an hour at a moment, by default now; None if nobody says.

        Before the first price of a group was read, it was that one.
        """
        if not self.pool.has_list_prices:
            return self.pool.price(market)
        priced = [each for each in self.readings if group in each.per_hour]
        before = [each for each in priced if at is None or each.at <= at]
        return (before[-1] if before else priced[0]).per_hour[group] if priced else None

    def changes(self, group: str) -> Iterator[datetime]:
        """Yield the moments from which a machine of the group costs something else."""
        last: float | None = None
        for each in self.readings:
            price = each.per_hour.get(group, last)
            if last is not None and price != last:
                yield each.at
            last = price

    def why_unknown(self, group: str) -> str:
        """Return why the list does not say what a machine of the group costs; empty where it does, or was not asked."""
        reasons = [each.unknown[group] for each in self.readings if group in each.unknown]
        is_priced = any(group in each.per_hour for each in self.readings)
        return "" if is_priced or not reasons else reasons[-1]


@dataclass(frozen=True, kw_only=True)
class TooDear:
    """A candidate that costs more than the pool's `max_price_per_hour`."""

    candidate: Candidate
    price: float
    why: str


def too_dear(record: PriceRecord, candidates: Iterable[Candidate]) -> tuple[TooDear, ...]:
    """Return the candidates that cost more than the pool pays; one whose price is unknown is kept.

    So is what is reserved: it is paid for whether a run uses it or not, and another machine would be paid for besides.
    """
    pool, limit = record.pool, record.pool.max_price_per_hour
    found: list[TooDear] = []
    for each in candidates if limit is not None else ():
        price = None if is_reserved(each) else record.price(each.group, each.market)
        if limit is not None and price is not None and price > limit:
            why = f"{money(pool, price)} an hour is more than max_price_per_hour={limit:g}"
            found.append(TooDear(candidate=each, price=price, why=why))
    return tuple(found)


def node_costs(record: PriceRecord, candidates: Iterable[Candidate]) -> Mapping[str, float]:
    """Return by what a pool with prefer="price" orders its groups: what a node of each costs per hour.

    A node is the unit: of each machine type a run wants equally many, each with the GPUs of the pool's smallest type
    (`GpuPool.nodes_for`), so that a machine with more of them counts its whole price.

    What is reserved costs nothing more, as it is paid for whether a run uses it or not; a price that is not known
    counts as UNKNOWN_PRICE. Empty for a pool that does not prefer by price.
    """
    if record.pool.prefer != "price":
        return {}
    return {each.group: _cost(record, each) for each in candidates}


def _cost(record: PriceRecord, candidate: Candidate) -> float:
    if is_reserved(candidate):
        return 0.0
    price = record.price(candidate.group, candidate.market)
    return UNKNOWN_PRICE if price is None else price


def is_reserved(candidate: Candidate) -> bool:
    return bool(candidate.reservation) or candidate.market not in ("ON_DEMAND", "SPOT")


def equally_cheap(items: Sequence[_Item], cost: Callable[[_Item], float]) -> list[_Item]:
    """Return the cheapest of some, and what costs at most EQUALLY_CHEAP more, in the order in which they are given."""
    least = min(map(cost, items), default=0.0)
    return [each for each in items if cost(each) <= least * (1 + EQUALLY_CHEAP)]


def tiers(items: Iterable[_Item], cost: Callable[[_Item], float]) -> Iterator[list[_Item]]:
    """Yield all of them, those that are equally cheap together, the cheapest first."""
    left = list(items)
    while left:
        tier = equally_cheap(left, cost)
        yield tier
        left = [each for each in left if each not in tier]


def money(pool: GpuPool, amount: float, *, digits: int | None = None) -> str:
    """Return an amount for people, like "0.8048 USD (list price)"; default: four digits of small ones."""
    if digits is None:
        digits = 2 if amount >= 10 or amount == 0 else 4
    return f"{amount:.{digits}f} {pool.currency}{f' ({LIST_PRICE})' if pool.has_list_prices else ''}"


def price_lines(record: PriceRecord, candidates: Iterable[Candidate]) -> tuple[str, ...]:
    """Return a line about the price of each candidate, those of one price together, and about what is not known."""
    pool = record.pool

    def words(each: Candidate) -> str:
        price, why = record.price(each.group, each.market), record.why_unknown(each.group)
        kept = "; it is kept, whatever max_price_per_hour says" if pool.max_price_per_hour is not None else ""
        unknown = f"unknown{f' ({why})' if why else ''}{kept}"
        return f": {unknown if price is None else f'{money(pool, price)} an hour'}"

    has_prices = pool.has_list_prices or pool.max_price_per_hour is not None
    return _of_alike((each, words(each)) for each in candidates if has_prices)


def too_dear_lines(found: Iterable[TooDear]) -> tuple[str, ...]:
    """Return a line about the candidates that cost too much, those of one price together."""
    return _of_alike((each.candidate, f" is not tried: {each.why}") for each in found)


def _of_alike(lines: Iterable[tuple[Candidate, str]]) -> tuple[str, ...]:
    """Return a line for each machine and what is said of it, with all zones of which it is said."""
    zones: dict[tuple[str, str], list[str]] = {}
    for each, words in lines:
        zones.setdefault((each.machine, words), []).append(each.zone)
    return tuple(
        f"{machine}{f' in {places}' if (places := ', '.join(filter(None, names))) else ''}{words}"
        for (machine, words), names in zones.items()
    )


def in_words(pool: GpuPool, amount: float) -> str:
    """Return an amount for people, like "12.50 USD"."""
    return money(pool, amount, digits=2)


def rate_in_words(pool: GpuPool, nodes: int, per_hour: float) -> str:
    """Return what nodes cost an hour for people, like "2 nodes at 1.60 USD an hour in all"."""
    rate = f"{in_words(pool, per_hour)} an hour"
    return f"1 node at {rate}" if nodes == 1 else f"{nodes} nodes at {rate} in all"

"""The most that an acceptance can cost, printed before it begins. Pure.

One node at a time, a night at a time. A night's demand ends at a fixed moment; the cloud's own switch ends the machine
a margin later, also where this process is killed; and a machine is charged until its termination has ended:
EKS drains a node that does not answer for about a quarter of an hour more.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.decide.decisions import SWITCH_MARGIN

GOING = timedelta(minutes=20)
"""How long a machine may be charged after its termination was requested."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What `nights` nights of one node cost at the most.

    Attributes:
        nights: How often a node comes, at the most; a night that fails does not come again.
        night: How long a night's demand lives.
        price: What one node costs an hour.
        currency: The currency of that price.
    """

    nights: int
    night: timedelta
    price: float
    currency: str

    @property
    def minutes_of_a_night(self) -> float:
        """The worst case: until the switch has ended the machine."""
        return (self.night + SWITCH_MARGIN + GOING).total_seconds() / 60

    @property
    def minutes(self) -> float:
        return self.nights * self.minutes_of_a_night

    @property
    def bound(self) -> float:
        return self.price * self.minutes / 60

    def in_words(self) -> str:
        """Return the bound and how it comes about, for people."""
        return (
            f"At most {self.bound:.2f} {self.currency}:"
            f" {self.nights} nights of one node, each {self.minutes_of_a_night:.0f} minutes in"
            f" the worst case ({self.night.total_seconds() / 60:.0f} until its demand ends,"
            f" {SWITCH_MARGIN.total_seconds() / 60:.0f} until the cloud's own switch,"
            f" {GOING.total_seconds() / 60:.0f} for the machine to go), at {self.price:g} {self.currency} an hour."
            " Disks, addresses and traffic are not in it."
        )


def price_of(pool: GpuPool, given: float | None) -> float:
    """Return what a node of the pool costs an hour at the most: what was given, else the spec's dearest market.

    Raises:
        PoolSpecError: Nobody says the price, or it is not a positive number; without it there is no bound.
    """
    markets = getattr(pool, "capacity_types", ())
    prices = [given] if given is not None else [pool.price(market) for market in markets]
    if given is not None and not 0 < given < float("inf"):
        what = f"A node does not cost {given:g} {pool.currency} an hour: what the acceptance costs has no bound."
        raise PoolSpecError(what, "Give --price as a number above zero.")
    known = [price for price in prices if price is not None and 0 < price < float("inf")]
    if not known or len(known) < len(prices):
        raise PoolSpecError(
            f"Pool {pool.name}: the spec has no price per hour for {' and '.join(markets) or 'its market'}, so"
            " the cost of the acceptance has no bound.",
            "Set --price, or price_per_hour in the spec as a number.",
            pool=pool.name,
        )
    return max(known)

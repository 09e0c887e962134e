"""The pools of an acceptance: the spec's, under a name of their own, one node large; and the most it can cost. Pure.

One node at a time, a night at a time. A night's demand ends at a fixed moment; the cloud's own switch ends the machine
a margin later, also where this process is killed; and a machine is charged until its termination has ended: EKS drains
a node that does not answer for about a quarter of an hour more.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.switch import SWITCH_MARGIN

_LONGEST_NAME = 24  # of 40: the names of groups are made of it, and those have limits of their own


def accepted(pool: GpuPool, night: timedelta) -> GpuPool:
    """Return the pool that is tried: the same groups as the spec's, named otherwise, for one node and one night."""
    if not pool.types_field:
        raise PoolSpecError(
            f"Pool {pool.name} is a {type(pool).__name__}, whose nodes this package does not create.",
            "Use the spec of a pool that has its own, like an EksGpuPool or a GkeGpuPool; `airflow gpu doctor` checks"
            " any pool.",
            pool=pool.name,
        )
    if pool.manage != "full":
        raise PoolSpecError(
            f"Pool {pool.name} has external groups (manage={pool.manage!r}); an acceptance creates its own.",
            f"Name {pool.types_field} in place of the groups, and leave manage out.",
            pool=pool.name,
        )
    if pool.is_autoscaled:
        raise PoolSpecError(
            f"An autoscaler adds the nodes of pool {pool.name} (scaling={pool.scaling!r}): an acceptance does not"
            " try these.",
            'Use the same spec with scaling="direct".',
            pool=pool.name,
        )
    return pool.for_one_night(_named("accept", pool.name), night)


def with_impossible_first(pool: GpuPool) -> GpuPool:
    """Return a pool of another name that would rather have a machine type that does not exist."""
    return pool.with_unknown_type_first(_named("fallback", pool.name.removeprefix("accept-")))


def _named(prefix: str, name: str) -> str:
    return f"{prefix}-{name}"[:_LONGEST_NAME].rstrip("-")


GOING = timedelta(minutes=20)
"""How long a machine may be charged after its termination was requested."""


@dataclass(frozen=True, kw_only=True)
class AcceptanceCost:
    """What `nights` nights of one node cost at the most, at `price` an hour; a night that fails does not come again."""

    nights: int
    night: timedelta
    price: float
    currency: str

    @property
    def minutes_of_a_night(self) -> float:
        """The worst case: until the switch has ended the machine."""
        return (self.night + SWITCH_MARGIN + GOING).total_seconds() / 60

    @property
    def bound(self) -> float:
        return self.price * self.nights * self.minutes_of_a_night / 60

    def in_words(self) -> str:
        return (
            f"At most {self.bound:.2f} {self.currency}:"
            f" {self.nights} nights of one node, each {self.minutes_of_a_night:.0f} minutes in"
            f" the worst case ({self.night.total_seconds() / 60:.0f} until its demand ends,"
            f" {SWITCH_MARGIN.total_seconds() / 60:.0f} until the cloud's own switch,"
            f" {GOING.total_seconds() / 60:.0f} for the machine to go), at {self.price:g} {self.currency} an hour."
            " Disks, addresses and traffic are not in it."
        )


def price_of(pool: GpuPool, given: float | None) -> float:
    """Return what a node of the pool costs an hour at the most: what was given, else the spec's dearest market."""
    prices = [given] if given is not None else [pool.price(market) for market in pool.markets]
    if given is not None and not 0 < given < float("inf"):
        what = f"A node does not cost {given:g} {pool.currency} an hour: what the acceptance costs has no bound."
        raise PoolSpecError(what, "Give --price as a number above zero.")
    known = [price for price in prices if price is not None and 0 < price < float("inf")]
    if not known or len(known) < len(prices):
        raise PoolSpecError(
            f"Pool {pool.name}: the spec has no price per hour for {' and '.join(pool.markets) or 'its market'}, so"
            " the cost of the acceptance has no bound.",
            "Set --price, or price_per_hour in the spec as a number.",
            pool=pool.name,
        )
    return max(known)

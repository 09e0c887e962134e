"""Budget: what a run may cost, how much of that it has spent, and how long the rest lasts. Pure data.

A part is kept back for machines that run on, after their pods got SIGTERM, while nobody looks (pools/switch.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow_gpu_provider.errors import BudgetExceeded, PoolSpecError, PriceUnknown
from airflow_gpu_provider.money.prices import ListPrices, amount_of, in_words, rate_in_words
from airflow_gpu_provider.pools.switch import TIME_TO_STOP, unwatched_for
from airflow_gpu_provider.pools.values import is_template, time_of
from airflow_gpu_provider.untrusted import loads, one_line

if TYPE_CHECKING:
    from airflow_gpu_provider.pools.gpu_pool import GpuPool

_FOREVER = timedelta(days=3650)
_WORK = timedelta(minutes=1)
_BOOT_AND_WORK = timedelta(minutes=4)
"""What has to be left where machines have yet to boot: Ensure and the device plugin take a minute or more of it."""

_LONGEST_REASON = 300


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What one block of a run may cost, as reckoned at one moment.

    Attributes:
        limit: The most, in the currency of the pool.
        spent: What it had cost by then, all tries of the run together.
        at: When that was.
        per_hour: What the nodes that it wants cost an hour, if all are of the dearest kind that the pool may have.
        reserve: What is kept back of the limit: what they cost from SIGTERM until the cloud has ended them by itself.
        raised: Why `limit` is more than its DAG says; empty where it is not.
    """

    limit: float
    spent: float
    at: datetime
    per_hour: float
    reserve: float = 0.0
    raised: str = ""

    def used_at(self, share: float) -> datetime:
        """Return when so much of the money for work is used at the latest, from 0 to 1; it may be past."""
        left = share * max(self.limit - self.reserve, 0.0) - self.spent
        if self.per_hour * (_FOREVER / timedelta(hours=1)) <= abs(left):
            return self.at + (_FOREVER if left >= 0 else -_FOREVER)
        return self.at + timedelta(hours=left / self.per_hour)

    def begun_at(self, begin: datetime) -> Self:
        """Return it by when the bill begins, which is with the demand: nothing is spent before that."""
        return self if self.spent else replace(self, at=max(self.at, begin))

    def raised_as(self, given: Budget | None) -> Self:
        """Return it with the limit to which a person has raised the former budget, if that is more."""
        if given is None or not given.raised:
            return self
        return replace(self, limit=max(self.limit, given.limit), raised=given.raised)

    def left_at(self, now: datetime) -> float:
        """Return what is left of the money then at least."""
        return min(
            max(self.limit - self.spent - self.per_hour * ((now - self.at) / timedelta(hours=1)), 0.0), self.limit
        )

    @property
    def ends_at(self) -> datetime:
        """When pods get SIGTERM: when all of the money but the reserve is used at the latest."""
        return self.used_at(1.0)

    @property
    def stops_by(self) -> datetime:
        """Until when its nodes are wanted: a pod that got SIGTERM at the end of the money writes a checkpoint."""
        return self.ends_at + TIME_TO_STOP

    @property
    def lasts(self) -> timedelta:
        """For how long it is enough, counted from `at`."""
        return self.ends_at - self.at

    def dump(self) -> str:
        """Return it as text, for an annotation."""
        values = {"limit": self.limit, "spent": self.spent, "at": self.at.isoformat(), "per_hour": self.per_hour}
        raised = {"raised": self.raised} if self.raised else {}
        return json.dumps({**values, "reserve": self.reserve, **raised})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `dump` wrote; raises ValueError or TypeError."""
        record = loads(text)
        if not isinstance(record, dict):
            raise ValueError(f"{text[:60]} is no budget")
        amounts = {name: amount_of(record.get(name, "")) for name in ("limit", "spent", "per_hour", "reserve")}
        raised = one_line(str(record.get("raised", "")), _LONGEST_REASON)
        return cls(**amounts, at=time_of(str(record.get("at"))), raised=raised)


def budget_of(
    pool: GpuPool,
    limit: float,
    *,
    nodes: int,
    spent: float | None,
    at: datetime,
    listed: ListPrices | None,
    are_there: Callable[[], bool] = lambda: False,
) -> Budget:
    """Reckon a run's budget.

    Args:
        spent: What it has cost so far; None: not known.
        are_there: Returns whether none of its nodes has to be started; called only if that decides.

    Raises:
        PriceUnknown: What nodes cost, or have cost, is not known.
        BudgetExceeded: What is left is not enough for four minutes - for one, if its nodes are there - and for the time
            that machines may run on after that.
    """
    if spent is None:
        raise PriceUnknown(
            f"Pool {pool.name}: max_cost={limit:g}, and what the run has cost so far is not known.",
            "Give prices as numbers, or leave max_cost out. Where the log has a Lease that cannot be read, start"
            " another run.",
            pool=pool.name,
        )
    per_hour = nodes * dearest(pool, listed)
    found = Budget(limit=limit, spent=spent, at=at, per_hour=per_hour, reserve=reserve(pool, per_hour))
    if found.lasts < _WORK or (found.lasts < _BOOT_AND_WORK and not are_there()):
        raise BudgetExceeded(
            f"Pool {pool.name}: the run has cost {in_words(pool, spent)} of max_cost={limit:g}, and the rest is not"
            f" enough for {rate_in_words(pool, nodes, per_hour)}: they may cost {in_words(pool, found.reserve)} after"
            f" SIGTERM, while nobody looks (docs/cost.md).",
            f"Raise max_cost to {least(pool, per_hour, spent):g} or more, and clear the block's tasks.",
            pool=pool.name,
        )
    return found


def money_is_used(pool: GpuPool, budget: Budget, because: str = "", **details: Any) -> BudgetExceeded:
    """Return the error of a run whose money for work is used; `because` is how its pod ended, if it had one."""
    return BudgetExceeded(
        f"The run's max_cost of {budget.limit:g} {pool.currency} for pool {pool.name} is used at the latest by now,"
        f" counted at {in_words(pool, budget.per_hour)} an hour"
        f" with {in_words(pool, budget.reserve)} kept back for machines that nobody ends.{because and f' {because}'}",
        "Raise max_cost, and clear the block's tasks; a training that has a checkpoint resumes from it.",
        **(details or {"pool": pool.name}),
    )


def reserve(pool: GpuPool, per_hour: float) -> float:
    """Return what machines for so much an hour cost from SIGTERM until the cloud has ended them by itself."""
    return per_hour * (unwatched_for(pool) / timedelta(hours=1))


def least(pool: GpuPool, per_hour: float, spent: float = 0.0) -> float:
    """Return the least `max_cost` with which machines boot and a training begins, in whole cents."""
    work = per_hour * (_BOOT_AND_WORK / timedelta(hours=1))
    return math.ceil(100 * (spent + reserve(pool, per_hour) + work) + 1) / 100


def dearest(pool: GpuPool, listed: ListPrices | None) -> float:
    """Return what a node of the dearest kind costs that the pool may have.

    Raises:
        PriceUnknown: The price of one that it may have is not known.
    """
    unknown = dict(listed.unknown) if listed else {}
    prices = list(listed.per_hour.values()) if listed else _known(pool)
    limit = pool.max_price_per_hour
    kept = [price for price in prices if limit is None or price <= limit]
    if unknown or not kept:
        why = "; ".join(f"{group}: {reason}" for group, reason in unknown.items()) or "no price is given"
        raise PriceUnknown(
            f"Pool {pool.name}: max_cost needs the price of each node that may come, and some are not known ({why}).",
            "Have the cloud tell them (docs/cost.md), give them as numbers, or name other machines.",
            pool=pool.name,
        )
    return max(kept)


def _known(pool: GpuPool) -> list[float]:
    """Return the spec's prices; none where it lacks one of a market that it names."""
    prices = pool.typed_prices.values()
    return [] if None in prices else [price for price in prices if price is not None]


def as_amount(value: Any) -> float:
    """Return a rendered max_cost as a number, which may be text; raises PoolSpecError where it is none above zero."""
    try:
        amount = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        amount = math.nan
    if not 0 < amount < math.inf:
        raise PoolSpecError(f"max_cost={value!r}.", "Give a number above 0, in the currency of the pool's prices.")
    return amount


def check_max_cost(pool: Any, max_cost: Any) -> None:
    """Refuse a max_cost that cannot be held, as far as is known when the DAG is parsed.

    Raises:
        PoolSpecError: It is no number above zero, or not enough for one node, or the pool gives no price for a market
            of its own.
    """
    if max_cost is None or is_template(max_cost):
        return
    amount = as_amount(max_cost)
    if not getattr(pool, "is_rendered", False) or pool.has_list_prices:
        return
    if _known(pool):
        enough = least(pool, per_hour := dearest(pool, None))
        if amount < enough:
            raise PoolSpecError(
                f"Pool {pool.name}: max_cost={amount:g} is not enough for {rate_in_words(pool, 1, per_hour)}, which may"
                f" cost {in_words(pool, reserve(pool, per_hour))} after SIGTERM, while nobody looks (docs/cost.md).",
                f"Raise max_cost to {enough:g} or more.",
                pool=str(pool.name),
            )
        return
    raise PoolSpecError(
        f"Pool {pool.name}: max_cost={amount:g} needs the price of each kind of node.",
        'Set price_per_hour="list" on the pool, or a price for each of its capacity types.',
        pool=str(pool.name),
    )

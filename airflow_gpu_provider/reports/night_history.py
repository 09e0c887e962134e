"""The last nights of a block: how long they waited, pulled and ran, what they lost and cost. Pure.

Each scale-down carries the record of the one before on, with its own night, so that the next Ensure reads one value.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow_gpu_provider.pools.values import time_of
from airflow_gpu_provider.times import format_time

if TYPE_CHECKING:
    from airflow_gpu_provider.clouds.base import Group
    from airflow_gpu_provider.cluster.model.pod_state import Json

HISTORY = "history"
"""XCom key of a scale-down's record (docs/xcom.md)."""

MOST_NIGHTS = 30
MOST_BYTES = 4096
ENOUGH_NIGHTS = 5
"""With fewer nights nothing is concluded from them."""

_HASH = 8  # hex digits of a run's id
_WHOLE_PLACES = 3  # of a cost


@dataclass(frozen=True, kw_only=True)
class Night:
    """One run of a block. Times are in seconds; what is not known is None.

    Attributes:
        run: Names its DAG run: the beginning of the SHA-256 of its id.
        at: When the nodes were asked for.
        wait: From then until the first node was usable.
        pull: The longest that a training waited for its images.
        ran: From the first usable node to the end of the last work.
        cost: In the pool's currency.
        state: "success" or "failed"; empty where it is not known.
        losses: How many machines it lost, by group.
    """

    run: str
    at: datetime
    wait: int | None = None
    pull: int | None = None
    ran: int | None = None
    cost: float | None = None
    state: str = ""
    losses: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def done_at(self) -> datetime | None:
        """When its work ended."""
        if self.wait is None or self.ran is None:
            return None
        return self.at + timedelta(seconds=self.wait + self.ran)

    @classmethod
    def of(
        cls,
        run_id: str,
        usage: Json,
        *,
        ensured: Json | None,
        timelines: Iterable[Sequence[Json]] = (),
        groups: Iterable[Group] = (),
        state: str = "",
    ) -> Self | None:
        """Return a run's night; None where no machine of it is known.

        Args:
            usage: The XCom `usage` of its scale-down.
            ensured: The result of its Ensure, None where that is not there.
            timelines: The XComs `timeline` of its trainings.
            groups: The pool's, with what they have lost.
        """
        lanes = usage.get("timeline") or ()
        usable = [time_of(each["usable_at"]) for each in lanes if each.get("usable_at")]
        launched = [time_of(each["launched_at"]) for each in lanes]
        asked = [time_of(each["at"]) for each in (ensured or {}).get("timeline") or ()]
        if not launched:
            return None
        at, worked = min([*asked, *launched]), [time_of(span[1]) for each in lanes for span in each.get("worked") or ()]
        first = max(at, min(usable)) if usable else None
        machines = {each["machine"] for each in lanes}
        losses = {
            group.name: sum(loss.machine in machines and loss.at >= at for loss in group.losses) for group in groups
        }
        total = (usage.get("cost") or {}).get("total")
        return cls(
            run=run_of(run_id),
            at=at,
            wait=_seconds(at, first),
            pull=max((_pulled(each) for each in timelines), default=None),
            ran=_seconds(first, max(worked, default=None)),
            cost=round(float(total), _WHOLE_PLACES) if isinstance(total, int | float) else None,
            state=state,
            losses={name: number for name, number in losses.items() if number},
        )


def _row_of(night: Night) -> list[object]:
    """Return a night as a row, without losses where there are none."""
    at = format_time(night.at.replace(microsecond=0))
    row: list[object] = [night.run, at, night.wait, night.pull, night.ran, night.cost, night.state]
    return [*row, dict(night.losses)] if night.losses else row


def _night_of(row: Any) -> Night:
    """Read a row; raises ValueError, TypeError or AttributeError where it is none."""
    run, at, wait, pull, ran, cost, state, *more = row
    return Night(
        run=str(run),
        at=time_of(at),
        wait=_whole(wait),
        pull=_whole(pull),
        ran=_whole(ran),
        cost=None if cost is None else float(cost),
        state=str(state),
        losses={str(name): int(number) for name, number in (more[0] if more else {}).items()},
    )


def run_of(run_id: str) -> str:
    """Return what names a run in a record."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:_HASH]


@dataclass(frozen=True, kw_only=True)
class NightHistory:
    """The last nights of a block, the oldest first: at most MOST_NIGHTS, and MOST_BYTES as JSON."""

    nights: tuple[Night, ...] = ()

    @classmethod
    def parse(cls, raw: object) -> Self:
        """Read what `to_json` wrote; rows that are none are left out."""
        nights = []
        for row in raw if isinstance(raw, list) else ():
            try:
                nights.append(_night_of(row))
            except (TypeError, ValueError, AttributeError):
                continue
        return cls(nights=tuple(nights)).within_bounds()

    def to_json(self) -> list[list[object]]:
        return [_row_of(each) for each in self.nights]

    def with_night(self, night: Night) -> Self:
        """Return it with a night, in place of that of the same run, which was cleared."""
        others = (each for each in self.nights if each.run != night.run)
        return replace(self, nights=tuple(sorted((*others, night), key=lambda each: each.at))).within_bounds()

    def within_bounds(self) -> Self:
        nights = self.nights[-MOST_NIGHTS:]
        while len(json.dumps([_row_of(each) for each in nights])) > MOST_BYTES:
            nights = nights[1:]
        return replace(self, nights=nights)

    def in_words(self, currency: str) -> str:
        """Return it for a task's log; empty where there are too few nights to conclude anything from."""
        if len(self.nights) < ENOUGH_NIGHTS:
            return ""
        parts = [
            f"{len(self.nights)} earlier nights of this block",
            *_spread("nodes after", [each.wait for each in self.nights]),
            *_spread("work for", [each.ran for each in self.nights]),
        ]
        if costs := [each.cost for each in self.nights if each.cost is not None]:
            parts.append(f"{sum(costs) / len(costs):.2f} {currency} on average")
        if losses := sum((Counter(each.losses) for each in self.nights), Counter[str]()):
            parts.append(f"machines lost: {', '.join(f'{number} of {name}' for name, number in losses.most_common())}")
        return "; ".join(parts)


def percentile(values: Iterable[float | None], share: float) -> float | None:
    """Return the least value that so great a share of the known ones does not exceed; None without any."""
    known = sorted(value for value in values if value is not None)
    return known[max(0, math.ceil(share * len(known)) - 1)] if known else None


def _spread(what: str, seconds: Sequence[float | None]) -> list[str]:
    usual, most = percentile(seconds, 0.5), percentile(seconds, 0.9)
    if usual is None or most is None:
        return []
    return [f"{what} {_in_minutes(usual)} (nine of ten: at most {_in_minutes(most)})"]


def _in_minutes(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _pulled(timeline: Sequence[Json]) -> int:
    """Return how long the first attempt's images took together."""
    pulls = (each for each in timeline if each.get("image") and each.get("attempt", 1) == 1)
    return round(sum(float(each["seconds"]) for each in pulls))


def _seconds(start: datetime | None, end: datetime | None) -> int | None:
    return None if start is None or end is None else max(0, round((end - start).total_seconds()))


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)

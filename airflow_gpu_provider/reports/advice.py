"""What a block's last nights say about the next: when to start, what it loses, and what else it could run on. Pure.

Figures are of the nights that Airflow still has; nothing is concluded from fewer than ENOUGH_NIGHTS.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.pools.values import time_of
from airflow_gpu_provider.reports.night_history import ENOUGH_NIGHTS, Night, percentile, run_of

if TYPE_CHECKING:
    from airflow_gpu_provider.cluster.model.pod_state import Json

LITTLE_USE = 0.5
"""Below this share of computing time a smaller machine may do."""

_NEVER = 1e-9  # losses in a training

CHECKPOINT_EVERY = timedelta(minutes=15)
RESTART = timedelta(minutes=10)
"""What is assumed of a training with checkpoints: how often it saves one, and how long another machine takes."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One line: what it is about, and the figure or the sentence."""

    pool: str
    block: str
    about: str
    text: str


@dataclass(frozen=True, kw_only=True)
class BlockNights:
    """What is known of a block's nights.

    Attributes:
        bills: The XCom `usage` of each run's last scale-down, by the run's id.
        computed: The share of time that the GPUs of each training computed (`computed_fraction`).
        prices: What a node costs an hour now, by group; empty where that is not known.
        unpriced: Why not.
    """

    pool: str
    block: str
    nights: Sequence[Night]
    bills: Mapping[str, Json] = field(default_factory=dict)
    computed: Sequence[float] = ()
    currency: str = "USD"
    prices: Mapping[str, float] = field(default_factory=dict)
    unpriced: str = ""


def advise(block: BlockNights, *, done_by: time, has_checkpoint: bool | None = None) -> list[Advice]:
    """Return what the nights show.

    Args:
        done_by: When the work is to be over, in the zone in which the start is told.
        has_checkpoint: Whether its trainings save any; None if unknown.
    """
    nights = block.nights
    if len(nights) < ENOUGH_NIGHTS:
        text = f"{_nights(len(nights))} are known; nothing is concluded from fewer than {ENOUGH_NIGHTS}"
        return [Advice(pool=block.pool, block=block.block, about="nights", text=text)]
    found = [
        ("nights", _ends(nights)),
        ("wait for nodes", _spread([each.wait for each in nights])),
        ("image pull", _spread([each.pull for each in nights])),
        ("work", _spread([each.ran for each in nights])),
        (f"done by {done_by:%H:%M}", _start(nights, done_by)),
        *(("losses", line) for line in _losses(block)),
        *(("spot", line) for line in _spot(block, has_checkpoint)),
        *(("cost", line) for line in _costs(block)),
        ("GPUs", _use(block.computed)),
        *(("other machines", line) for line in _others(block)),
    ]
    return [Advice(pool=block.pool, block=block.block, about=about, text=text) for about, text in found if text]


def expected_hours(work: float, losses_per_hour: float, *, has_checkpoint: bool) -> float:
    """Return the hours that a training of `work` hours takes on average where machines are lost at a constant rate.

    Without checkpoints it begins again after each loss: (e^(lT) - 1) / l, the mean time until a Poisson process of rate
    l leaves a gap of T (W. Feller, An Introduction to Probability Theory, vol. 1, success runs). With checkpoints every
    c hours each loss costs half of that and a restart r: T (1 + l (r + c / 2)).
    """
    rate = losses_per_hour
    if rate * work < _NEVER:
        return work
    if not has_checkpoint:
        return math.expm1(min(rate * work, 700.0)) / rate
    return work * (1 + rate * (_hours(RESTART) + _hours(CHECKPOINT_EVERY) / 2))


def _ends(nights: Sequence[Night]) -> str:
    states = Counter(each.state or "unknown" for each in nights)
    parts = [f"{states[state]} {word}" for state, word in _STATES.items() if states[state]]
    return f"{_nights(len(nights))}: {', '.join(parts)}"


_STATES = {"success": "succeeded", "failed": "failed", "unknown": "with an end that is not known"}


def _start(nights: Sequence[Night], done_by: time) -> str:
    """Return when to start so that nine of ten such nights are over by then."""
    lasting = [each.wait + each.ran for each in nights if each.wait is not None and each.ran is not None]
    most = percentile(lasting, 0.9)
    if most is None:
        return ""
    start = datetime.combine(datetime.min.date() + timedelta(days=366), done_by) - timedelta(seconds=most)
    minute = start - timedelta(seconds=start.second, microseconds=start.microsecond)
    return f"start at {minute:%H:%M} to be done by {done_by:%H:%M} in nine of ten nights"


def _losses(block: BlockNights) -> Iterator[str]:
    hours = _node_hours(block)
    lost = sum((Counter(each.losses) for each in block.nights), Counter[str]())
    for group, number in lost.most_common():
        rate = f", {number / hours[group]:.2f} an hour" if hours.get(group) else ""
        yield f"{number} of {group} in {hours.get(group, 0.0):.1f} node hours{rate}"


def _spot(block: BlockNights, has_checkpoint: bool | None) -> Iterator[str]:
    """Yield what losses cost a training in time, at the rate of the block's spot machines."""
    spot = {lane["group"] for lane in _lanes(block) if lane.get("market") == "SPOT"}
    hours = sum(each for group, each in _node_hours(block).items() if group in spot)
    lost = sum(number for night in block.nights for group, number in night.losses.items() if group in spot)
    work = percentile([each.ran for each in block.nights], 0.5)
    if not hours or not lost or not work:
        return
    rate, work = lost / hours, work / 3600
    ways = [way for way in (False, True) if has_checkpoint in (None, way)]
    for way in ways:
        times = expected_hours(work, rate, has_checkpoint=way) / work
        factor = f"{times:.1f} times" if times < 100 else "more than 100 times"
        how = "with checkpoints" if way else "without a checkpoint"
        yield f"{how}: {factor} the hours, at {rate:.2f} losses an hour"


def _costs(block: BlockNights) -> Iterator[str]:
    """Yield what a finished run costs, by the machine types that the nights used: failed ones are paid for too."""
    by_run = {run_of(run_id): bill for run_id, bill in block.bills.items()}
    spent: dict[str, float] = defaultdict(float)
    finished, at_least = Counter[str](), set[str]()
    for night in block.nights:
        bill = by_run.get(night.run)
        types = sorted({str(lane.get("instance_type") or "?") for lane in (bill or {}).get("timeline") or ()})
        cost = None if bill is None else (bill.get("cost") or {}).get("total")
        if bill is None or not isinstance(cost, int | float) or not types:
            continue
        name = " and ".join(types)
        spent[name] += cost
        finished[name] += night.state == "success"
        at_least |= {name} if bill.get("at_least") else set()
    for name, total in sorted(spent.items()):
        least = "at least " if name in at_least else ""
        if finished[name]:
            each = f"{least}{total / finished[name]:.2f} {block.currency}"
            yield f"{each} for each of {finished[name]} finished runs on {name}"
        else:
            yield f"{least}{total:.2f} {block.currency} on {name}, and no run is known to have finished"


def _use(computed: Sequence[float]) -> str:
    if not computed:
        return ""
    share = sum(computed) / len(computed)
    smaller = "; try a machine one size smaller" if share < LITTLE_USE else ""
    return f"computed {share * 100:.0f} % of the time{smaller}"


def _others(block: BlockNights) -> Iterator[str]:
    """Yield what the same node hours would have cost elsewhere."""
    hours = sum(_node_hours(block).values())
    if not block.prices:
        yield f"not compared: {block.unpriced}" if block.unpriced else ""
        return
    for group, price in sorted(block.prices.items(), key=lambda item: (item[1], item[0])):
        amount = f"{hours * price:.2f} {block.currency}"
        yield f"{amount} for these {hours:.1f} node hours on {group}, at today's price; its speed is another"


def _lanes(block: BlockNights) -> Iterator[Mapping[str, Any]]:
    runs = {each.run for each in block.nights}
    for run_id, bill in block.bills.items():
        if run_of(run_id) in runs:
            yield from bill.get("timeline") or ()


def _node_hours(block: BlockNights) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for lane in _lanes(block):
        found[str(lane.get("group"))] += _hours(time_of(lane["gone_at"]) - time_of(lane["launched_at"]))
    return found


def _spread(seconds: Sequence[float | None]) -> str:
    usual, most = percentile(seconds, 0.5), percentile(seconds, 0.9)
    return "" if usual is None or most is None else f"p50 {_in_minutes(usual)}, p90 {_in_minutes(most)}"


def _in_minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _hours(duration: timedelta) -> float:
    return duration.total_seconds() / 3600


def _nights(number: int) -> str:
    return "1 night" if number == 1 else f"{number} nights"

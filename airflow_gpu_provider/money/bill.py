"""What a run's nodes did and cost: each machine's time, divided among phases and among the runs that share it. Pure.

Every moment of a machine's life is charged to runs, in equal parts if there are several:
- while pods with GPUs of any runs run there: those runs, as working time;
- otherwise the runs that want nodes of the pool at that moment, as booting time until the node is Ready, then as idle
time; - if there are none: the run that last did, because it left the machine. Before the first (an existing machine):
no run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Literal, Self

from airflow_gpu_provider.money.amounts import UNKNOWN, price_source, sum_known
from airflow_gpu_provider.money.prices import PriceRecord
from airflow_gpu_provider.money.run_usage import MachineUse, RunUsage, Span, union
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.times import format_time

_ALL = 0.95
"""The known share of the working time above which it stands for all of it."""


@dataclass(frozen=True, kw_only=True)
class ComputedShare:
    """How much the GPUs computed; both between 0 and 1.

    Attributes:
        share: Of the GPUs' time in pods that were sampled.
        known: The share of the working time with such a pod on the node.
    """

    share: float
    known: float

    def to_json(self) -> dict[str, Any]:
        return {"share": round(self.share, 3), "known": round(self.known, 3)}

    def in_words(self) -> str:
        """Return it as the text after "working"."""
        of = "" if self.known >= _ALL else f", as far as is known: for {self.known * 100:.0f} % of it"
        return f"of which the GPUs computed {self.share * 100:.0f} %{of}"


def computed_share(run: RunUsage) -> ComputedShare | None:
    """Return it for one run; None if no pod's GPUs were sampled."""
    pods = run.computed.values()
    weights = [pod.gpus * _seconds([pod.span]) for pod in pods]
    if not sum(weights):
        return None
    computed = sum(pod.share * weight for pod, weight in zip(pods, weights, strict=True))
    sampled: dict[str, list[Span]] = defaultdict(list)
    for pod in pods:
        sampled[pod.node].append(pod.span)
    known = sum(_seconds(union(spans)) for spans in sampled.values())
    worked = sum(_seconds(union((*run.worked.get(node, ()), *sampled[node]))) for node in {*run.worked, *sampled})
    return ComputedShare(share=computed / sum(weights), known=known / worked)


def _seconds(spans: Iterable[Span]) -> float:
    return sum((end - start).total_seconds() for start, end in spans)


Phase = Literal["booting", "working", "idle"]
PHASES: tuple[Phase, ...] = ("booting", "working", "idle")

IDLE_AUTOSCALER = timedelta(minutes=10)
"""After how long cluster-autoscaler removes an unneeded node, by default: --scale-down-unneeded-time."""

MOST_LANES = 64
"""How many machines a bill for XCom lists: those that ran longest."""

MUCH_IDLE = 0.1
"""The share of idle time above which the task's log warns about it."""

LONG_IDLE = timedelta(minutes=5)
"""The same for a machine's idle time: drivers and images take minutes, and nobody can do much about it."""

Shares = Mapping[DemandKey, Mapping[Phase, float]]


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One machine's life; `worked` is when pods with GPUs, of whichever run, ran there."""

    machine: MachineUse
    worked: tuple[Span, ...] = ()

    def to_json(self) -> dict[str, Any]:
        machine = self.machine
        return {
            "machine": machine.id,
            "node": machine.node,
            "group": machine.group,
            "market": machine.market,
            "instance_type": machine.instance_type or None,
            "launched_at": format_time(machine.launched_at),
            "usable_at": format_time(machine.usable_at) if machine.usable_at else None,
            "gone_at": format_time(machine.seen_until),
            "worked": [[format_time(at) for at in span] for span in self.worked],
        }


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What one run's nodes did, in node-seconds, and what that cost.

    Attributes:
        seconds: By phase.
        cost: By phase; None if a machine's price is unknown.
        currency: The currency of the costs; empty where prices are in several, whose costs are not added up.
        price_source: Whose prices they go by: `cost.price_source`.
        pool: Its pool; of several bills together that of the first.
        machines: How many machines it used, alone or shared.
        at_least: Why the numbers may be too low; empty if they are complete.
        lanes: When each of these machines was launched, usable, at work and gone.
        autoscaler: What it would have been with an autoscaler that removes a node when it has been idle for
            `IDLE_AUTOSCALER`; None in such a bill itself.
        over_max_cost: What it cost more than its run's `max_cost`; 0 within it, without one, or where that is unknown.
        computed: How much of the working time the GPUs computed; None if unknown.
        idle_before_release: The part of the idle seconds that its tasks could have left out: up to when its scale-down
            began, or to its last work where that is not known.
        is_lost: What was recorded of its run could not be read once, so that its cost is not known.
    """

    seconds: Mapping[Phase, float]
    cost: Mapping[Phase, float | None]
    currency: str
    machines: int
    pool: str = ""
    price_source: str = ""
    at_least: str = ""
    lanes: Sequence[Lane] = ()
    autoscaler: Bill | None = None
    over_max_cost: float = 0.0
    computed: ComputedShare | None = None
    idle_before_release: float = 0.0
    is_lost: bool = False

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def total_cost(self) -> float | None:
        return sum_known([*self.cost.values()])

    @property
    def is_idle(self) -> bool:
        """Whether its tasks left machines idle for long: for minutes each, and more than a tenth of the time."""
        idle = self.idle_before_release
        return idle > MUCH_IDLE * self.total_seconds and idle > LONG_IDLE.total_seconds() * self.machines

    def lacking(self, what: str) -> Self:
        """Return it with a reason why the run's true cost may be more; itself where there is none."""
        return replace(self, at_least="; ".join(filter(None, (self.at_least, what)))) if what else self

    def to_json(self) -> dict[str, Any]:
        """Return it for XCom: whole tenths of node-seconds, and money to four places or "unknown" (docs/xcom.md)."""
        longest = sorted(self.lanes, key=lambda lane: lane.machine.launched_at - lane.machine.seen_until)
        shown = sorted(longest[:MOST_LANES], key=lambda lane: lane.machine.launched_at)
        found = {
            "pool": self.pool or None,
            "machines": self.machines,
            "at_least": self.at_least or None,
            "computed": self.computed.to_json() if self.computed else None,
            **self._amounts(),
            "over_max_cost": round(self.over_max_cost, 4) or None,
            "currency": self.currency or None,
            "price_source": self.price_source or None,
            "timeline": [lane.to_json() for lane in shown],
            "timeline_left_out": len(self.lanes) - len(shown),
        }
        if self.autoscaler is not None:
            minutes = round(IDLE_AUTOSCALER.total_seconds() / 60)
            found["autoscaler"] = {"idle_minutes": minutes, **self.autoscaler._amounts()}
        return found

    def _amounts(self) -> dict[str, Any]:
        costs: dict[str, float | None] = {**dict(self.cost.items()), "total": self.total_cost}
        return {
            "node_seconds": {phase: round(seconds, 1) for phase, seconds in self.seconds.items()},
            "cost": {name: UNKNOWN if cost is None else round(cost, 4) for name, cost in costs.items()},
        }


_LOST = "what had been recorded of the run could not be read"


def bill(
    pool: GpuPool,
    key: DemandKey,
    runs: Sequence[RunUsage],
    machines: Iterable[MachineUse],
    *,
    at_least: str = "",
    release_began: datetime | None = None,
) -> Bill:
    """Return the bill of one run, from what is known about all runs that used the pool; more as in `Bill`."""
    own = next((run for run in runs if run.key == key), RunUsage.new(key))
    until, idle = release_began or _last_work(key, runs), 0.0
    amounts, by_autoscaler = _Amounts(pool), _Amounts(pool)
    prices = PriceRecord.of(pool, (each for run in runs for each in run.prices))
    lanes = []
    for machine in machines:
        mine = shares(machine, runs).get(key)
        if not mine:
            continue
        lanes.append(Lane(machine=machine, worked=_worked(machine, runs)))
        for part, price in priced_parts(prices, machine):
            cost_of_part = shares(part, runs).get(key, {})
            amounts.add(price, cost_of_part)
            by_autoscaler.add(price, cost_of_part)
        idle += _idle_until(until, machine, key, runs)
        last_price = prices.price(machine.group, machine.market, machine.seen_until)
        by_autoscaler.add(last_price, {"idle": _idle_after(machine, key, runs)})
    lost = _LOST if own.is_lost else ""
    autoscaler = by_autoscaler.bill(machines=len(lanes), at_least=at_least).lacking(lost)
    computed, whole = computed_share(own), amounts.bill(machines=len(lanes), at_least=at_least).lacking(lost)
    over = 0.0 if own.max_cost is None else max(0.0, (whole.total_cost or 0.0) - own.max_cost)
    whole = replace(whole, lanes=lanes, autoscaler=autoscaler, over_max_cost=over)
    return replace(whole, computed=computed, idle_before_release=idle, is_lost=own.is_lost)


def priced_parts(prices: PriceRecord, machine: MachineUse) -> Iterator[tuple[MachineUse, float | None]]:
    """Yield the parts of a machine's time in which it cost the same, and what that was an hour."""
    start, end = machine.launched_at, machine.seen_until
    cuts = [start, *(at for at in prices.changes(machine.group) if start < at < end), end]
    for since, until in pairwise(cuts):
        part = replace(machine, launched_at=since, seen_until=until)
        yield part, prices.price(machine.group, machine.market, since)


def _last_work(key: DemandKey, runs: Iterable[RunUsage]) -> datetime | None:
    ends = [end for run in runs if run.key == key for spans in run.worked.values() for _, end in spans]
    return max(ends, default=None)


def _idle_until(at: datetime | None, machine: MachineUse, key: DemandKey, runs: Sequence[RunUsage]) -> float:
    if at is None or at <= machine.launched_at:
        return 0.0
    return shares(replace(machine, seen_until=min(at, machine.seen_until)), runs).get(key, {}).get("idle", 0.0)


class _Amounts:
    """Sums up node-seconds and what they cost."""

    def __init__(self, pool: GpuPool) -> None:
        self._pool = pool
        self._seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self._cost: dict[Phase, float | None] = dict.fromkeys(PHASES, 0.0)

    def add(self, price: float | None, parts: Mapping[Phase, float]) -> None:
        for phase, part in parts.items():
            self._seconds[phase] += part
            so_far = self._cost[phase]
            self._cost[phase] = None if price is None or so_far is None else so_far + price * part / 3600

    def bill(self, *, machines: int, at_least: str) -> Bill:
        return Bill(
            seconds=self._seconds,
            cost=self._cost,
            currency=self._pool.currency,
            pool=self._pool.name,
            price_source=price_source(self._pool),
            machines=machines,
            at_least=at_least,
        )


def _worked(machine: MachineUse, runs: Iterable[RunUsage]) -> tuple[Span, ...]:
    return union(span for run in runs for span in run.worked.get(machine.node, ())) if machine.node else ()


def _idle_after(machine: MachineUse, key: DemandKey, runs: Sequence[RunUsage]) -> float:
    """Return for how many seconds longer an autoscaler would have kept the machine, if that is this run's to pay.

    It removes a node that has been unneeded for ten minutes (cluster-autoscaler's --scale-down-unneeded-time), and not
    earlier: the run, or runs, whose work or demand was the last on the machine pay for these minutes.
    """
    used = [(end, run.key) for run in runs for _, end in run.worked.get(machine.node, ()) if machine.node]
    used = used or [(machine.usable_at or machine.launched_at, key) for key in _last(runs, machine.seen_until)]
    last = max((end for end, _ in used), default=machine.seen_until)
    payers = {payer for end, payer in used if end == last}
    kept = (last + IDLE_AUTOSCALER - machine.seen_until).total_seconds()
    return max(0.0, kept) / len(payers) if key in payers else 0.0


def shares(machine: MachineUse, runs: Sequence[RunUsage]) -> Shares:
    """Return to which runs each second of the machine is charged, and in which phase: from the first demand on."""
    start, end = machine.launched_at, machine.seen_until
    usable_at = machine.usable_at or end
    spans = [span for run in runs for span in (*run.wanted, *run.worked.get(machine.node, ()))]
    cuts = sorted({start, end, *(at for at in (usable_at, *(at for span in spans for at in span)) if start < at < end)})
    found: dict[DemandKey, dict[Phase, float]] = defaultdict(lambda: defaultdict(float))
    for since, until in pairwise(cuts):
        working = [run.key for run in runs if machine.node and _covers(run.worked.get(machine.node, ()), since)]
        phase: Phase = "working" if working else "booting" if since < usable_at else "idle"
        owners = working or [run.key for run in runs if _covers(run.wanted, since)] or _last(runs, since)
        for owner in owners:
            found[owner][phase] += (until - since).total_seconds() / len(owners)
    return found


def _covers(spans: Iterable[Span], at: datetime) -> bool:
    return any(start <= at < end for start, end in spans)


def _last(runs: Sequence[RunUsage], at: datetime) -> list[DemandKey]:
    """Return the run, or the runs, that wanted nodes last before a moment at which no run does."""
    ends = [(end, run.key) for run in runs for _, end in run.wanted if end <= at]
    last = max((end for end, _ in ends), default=None)
    return list(dict.fromkeys(key for end, key in ends if end == last))

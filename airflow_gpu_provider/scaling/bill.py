"""What a run's nodes did and cost: each machine's time, divided among phases and among the runs that share it. Pure.

Every moment of a machine's life is charged to runs, in equal parts if there are several:
- while pods with GPUs of any runs run there: those runs, as working time;
- else the runs that want nodes of the pool at that moment, as booting time until the node is Ready, then as idle time;
- if there are none: the run that last did, because it left the machine. Before any did (an existing machine): no run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal

from airflow_gpu_provider.cluster.demand import DemandKey
from airflow_gpu_provider.cluster.usage import MachineUse, RunUsage, Span
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.cost import UNKNOWN

Phase = Literal["booting", "working", "idle"]
PHASES: tuple[Phase, ...] = ("booting", "working", "idle")

MUCH_IDLE = 0.1
"""The share of idle time from which the task's log warns about it."""

Shares = Mapping[DemandKey, Mapping[Phase, float]]


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What one run's nodes did, in node-seconds, and what that cost.

    Attributes:
        seconds: By phase.
        cost: By phase; None where a machine's price is not known.
        machines: How many machines it used, alone or shared.
        at_least: Why it may have been more; empty where the numbers are complete.
    """

    seconds: Mapping[Phase, float]
    cost: Mapping[Phase, float | None]
    machines: int
    at_least: str = ""

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def total_cost(self) -> float | None:
        costs = [cost for cost in self.cost.values() if cost is not None]
        return sum(costs) if len(costs) == len(PHASES) else None

    @property
    def idle_share(self) -> float:
        """Idle time as a share of all, between 0 and 1."""
        return self.seconds["idle"] / self.total_seconds if self.total_seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it for XCom: whole tenths of node-seconds, and money to four places or "unknown"."""
        costs: dict[str, float | None] = {**dict(self.cost.items()), "total": self.total_cost}
        return {
            "machines": self.machines,
            "at_least": self.at_least or None,
            "node_seconds": {phase: round(seconds, 1) for phase, seconds in self.seconds.items()},
            "cost": {name: UNKNOWN if cost is None else round(cost, 4) for name, cost in costs.items()},
        }


def bill(
    pool: GpuPool, key: DemandKey, runs: Sequence[RunUsage], machines: Iterable[MachineUse], *, at_least: str = ""
) -> Bill:
    """Return the bill of one run, from what is known of all runs that used the pool; `at_least` as in `Bill`."""
    seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
    cost: dict[Phase, float | None] = dict.fromkeys(PHASES, 0.0)
    number = 0
    for machine in machines:
        mine = shares(machine, runs).get(key)
        if not mine:
            continue
        number += 1
        price = pool.price(machine.market)
        for phase, part in mine.items():
            seconds[phase] += part
            so_far = cost[phase]
            cost[phase] = None if price is None or so_far is None else so_far + price * part / 3600
    return Bill(seconds=seconds, cost=cost, machines=number, at_least=at_least)


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

"""Night: a DAG run on GPU nodes in two lines, from what its tasks left in XCom. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_gpu_provider.cost.amounts import in_words
from airflow_gpu_provider.pools.prices import LIST_PRICE
from airflow_gpu_provider.scaling.wait.wait_loop import format_seconds

Json = Mapping[str, Any]

_WAITS = ("waited for its turn", "waited for a node")
_NAMED = 3
"""Failed tasks that the message names; of more it gives the number."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How a task failed.

    Attributes:
        task: Its id, with the map index of a mapped task: "train[3]".
        type: The error's type, such as "GpuOutOfMemory"; empty for a task that left none.
        what: What happened, in one sentence.
        fix: What to do, in one sentence.
    """

    task: str
    type: str = ""
    what: str = ""
    fix: str = ""

    def __str__(self) -> str:
        if not self.type:
            return f"{self.task} failed."
        return f"{self.task}: {self.type}: {' '.join(filter(None, (self.what, self.fix)))}"


@dataclass(frozen=True, kw_only=True)
class Night:
    """A DAG run's GPU nodes: what failed, how long it waited and ran, what it cost, and what is left.

    Attributes:
        dag_id: The DAG.
        run_id: Its run.
        state: "success", "failed", or what else Airflow says of the run.
        failures: The tasks that failed; the one that may have left machines first.
        waited_seconds: For nodes and for its turn, summed over blocks and trainings; None if unknown.
        refusals: How often a zone, type or market had no machine.
        ran_seconds: The trainings' own time, summed; None if none ran.
        attempts: Attempts of the training that had most of them, counting from 1; 0 if none ran.
        machines: Machines that the run used.
        types: Their instance types, sorted.
        cost: What they cost; None if the price is unknown, or the bill.
        currency: Of the cost.
        price_source: Whose prices they are; "list price" where any is the cloud's.
        is_at_least: The true cost may be higher.
        left: What is left of the run's nodes, in words.
        advice: What would have made its trainings faster, each in one sentence.
    """

    dag_id: str
    run_id: str
    state: str
    failures: Sequence[Failure] = ()
    waited_seconds: float | None = None
    refusals: int = 0
    ran_seconds: float | None = None
    attempts: int = 0
    machines: int = 0
    types: Sequence[str] = ()
    cost: float | None = None
    currency: str = ""
    price_source: str = ""
    is_at_least: bool = False
    left: str = ""
    advice: Sequence[str] = ()

    @property
    def in_words(self) -> str:
        """The run in two lines: what happened, and what it took."""
        return f"{self.what_happened}\n{self.what_it_took}"

    @property
    def what_happened(self) -> str:
        """The first line: the run, its state, and the failed tasks with their errors."""
        failures = [str(each) for each in self.failures[:_NAMED]]
        if len(self.failures) > _NAMED:
            failures.append(f"{len(self.failures) - _NAMED} more tasks failed.")
        return " ".join((f"{self.dag_id} {self.run_id}: {self.state}.", *failures))

    @property
    def what_it_took(self) -> str:
        """The second line: waited, ran, cost, and what is left."""
        parts = [self._waited(), self._ran(), self._cost()]
        left = f"; {self.left}" if any(parts) else f"{self.left[:1].upper()}{self.left[1:]}"
        return f"{', '.join(filter(None, parts))}{left}."

    def _waited(self) -> str:
        refused = f"no capacity {self.refusals} time{'s' * (self.refusals != 1)}" if self.refusals else ""
        if self.waited_seconds is None:
            return refused
        return f"waited {_duration(self.waited_seconds)}{f' ({refused})' if refused else ''}"

    def _ran(self) -> str:
        if self.ran_seconds is None:
            return ""
        nodes = f" on {self.machines} node{'s' * (self.machines != 1)}" if self.machines else ""
        types = f" ({', '.join(self.types)})" if nodes and self.types else ""
        attempts = f" in {self.attempts} attempts" if self.attempts > 1 else ""
        return f"ran {_duration(self.ran_seconds)}{nodes}{types}{attempts}"

    def _cost(self) -> str:
        if self.cost is None and not self.machines:
            return ""
        return f"cost {in_words(self.cost, self.currency, at_least=self.is_at_least, by=self.price_source)}"


def night(
    *,
    dag_id: str,
    run_id: str,
    state: str,
    failures: Iterable[Failure] = (),
    ensured: Iterable[Json] = (),
    tried: Iterable[Sequence[Json]] = (),
    trainings: Iterable[Sequence[Json]] = (),
    usages: Iterable[Json] = (),
    left: Iterable[str] = (),
    advice: Iterable[Sequence[str]] = (),
) -> Night:
    """Return a run's night.

    Args:
        dag_id: The DAG.
        run_id: Its run.
        state: The run's state.
        failures: The tasks that failed.
        ensured: What each EnsureGpuPoolOperator returned.
        tried: What each EnsureGpuPoolOperator that failed left as `tried`.
        trainings: Each training's `timeline`.
        usages: Each ScaleDownSensor's `usage`.
        left: What each ScaleDownSensor left, in words.
        advice: Each training's `advice`.
    """
    ensured, usages, trainings = list(ensured), list(usages), list(trainings)
    refused = [each for result in (*(one.get("tried", ()) for one in ensured), *tried) for each in result]
    waits = [_span(one["timeline"]) for one in ensured if one.get("timeline")]
    waits += [sum(each["seconds"] for each in phases if each["phase"] in _WAITS) for phases in trainings]
    ran = [each["seconds"] for phases in trainings for each in phases if each["phase"] == "ran"]
    costs = [usage["cost"]["total"] for usage in usages]
    known = [cost for cost in costs if not isinstance(cost, str)]
    return Night(
        dag_id=dag_id,
        run_id=run_id,
        state=state,
        failures=_in_order(failures),
        waited_seconds=sum(waits) if waits else None,
        refusals=sum(each.get("times", 1) for each in refused),
        ran_seconds=sum(ran) if ran else None,
        attempts=max((each.get("attempt", 1) for phases in trainings for each in phases), default=0),
        machines=sum(usage["machines"] for usage in usages),
        types=sorted({node["instance_type"] for one in ensured for node in one["nodes"] if node.get("instance_type")}),
        cost=sum(known) if known else None,
        currency=", ".join(sorted({usage["currency"] for usage in usages})),
        price_source=LIST_PRICE if any(usage.get("price_source") == LIST_PRICE for usage in usages) else "",
        is_at_least=len(known) < len(costs) or any(usage.get("at_least") for usage in usages),
        left="; ".join(dict.fromkeys(left)) or "no scale-down has ended yet",
        advice=tuple(dict.fromkeys(sentence for each in advice for sentence in each)),
    )


def _in_order(failures: Iterable[Failure]) -> list[Failure]:
    """Return the failures, what may still cost money first, without a verdict that only repeats the others."""
    found = sorted(failures, key=lambda each: each.type != "PoolNotReleased")
    others = [each for each in found if each.type not in ("BlockFailed", "")]
    return [each for each in found if each.type != "BlockFailed"] if others else found


def _span(phases: Sequence[Json]) -> float:
    """Return how long overlapping phases took together, in seconds."""
    starts = [datetime.fromisoformat(each["at"]) for each in phases]
    ends = [start + timedelta(seconds=each["seconds"]) for start, each in zip(starts, phases, strict=True)]
    return (max(ends) - min(starts)).total_seconds()


def _duration(seconds: float) -> str:
    return format_seconds(timedelta(seconds=seconds))

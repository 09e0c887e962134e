"""Night: a DAG run on GPU nodes in two lines, of what its tasks left in XCom. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_gpu_provider.money.amounts import cost_in_words
from airflow_gpu_provider.money.prices import LIST_PRICE
from airflow_gpu_provider.notifications.chat import for_chat
from airflow_gpu_provider.times import format_seconds
from airflow_gpu_provider.untrusted import one_line

Json = Mapping[str, Any]

_WAITS = ("waited for its turn", "waited for a node")
_NAMED = 3
"""Failed tasks that the message names; of more it gives the number."""
_BEGINNING, _END = 280, 160
"""Characters of an error's text that the message has: three of them, and the rest, are below Discord's 2,000."""


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
        return f"{self.task}: {self.type}: {_short(' '.join(filter(None, (self.what, self.fix))))}"


@dataclass(frozen=True, kw_only=True)
class Night:
    """A DAG run's GPU nodes: what failed, how long it waited and ran, what it cost, and what is left.

    The two lines are for a chat, in which nothing that a pod, a cloud or a person wrote is a mention or a link:
    `in_words`, `what_happened` and `what_it_took`. The attributes, and `in_plain_words`, are as they were written.

    Attributes:
        dag_id, run_id: The DAG, and its run.
        state: "success", "failed", or what else Airflow says of the run.
        why: Why Airflow has ended it, where no task says so; empty otherwise.
        failures: The tasks that failed; the one that may have left machines first.
        waited_seconds: For nodes and for its turn, summed over blocks and trainings; None if unknown.
        refusals: How often a zone, type or market had no machine.
        ran_seconds: The trainings' own time, summed; None if none ran. Of a task's tries it is the last one's.
        tries: Tries of the task that had most of them, counting from 1.
        attempts: Attempts of the training that had most of them, counting from 1; 0 if none ran.
        machines: Machines that the run used; one that several blocks used counts once.
        types: Their instance types, sorted.
        cost: What they cost; None if the price is unknown, or the bill.
        over_max_cost: What of that was more than the `max_cost` of its blocks.
        currency, price_source: Of the cost; whose prices they are: "list price" where any is the cloud's.
        is_at_least: The true cost may be higher.
        left: What is left of the run's nodes, in words.
        advice: What would have made its trainings faster, each in one sentence.
    """

    dag_id: str
    run_id: str
    state: str
    why: str = ""
    failures: Sequence[Failure] = ()
    waited_seconds: float | None = None
    refusals: int = 0
    ran_seconds: float | None = None
    tries: int = 1
    attempts: int = 0
    machines: int = 0
    types: Sequence[str] = ()
    cost: float | None = None
    over_max_cost: float = 0.0
    currency: str = ""
    price_source: str = ""
    is_at_least: bool = False
    left: str = ""
    advice: Sequence[str] = ()

    @property
    def in_words(self) -> str:
        """The run in two lines, for a chat or a mail in HTML: what happened, and what it took."""
        return for_chat(self.in_plain_words)

    @property
    def what_happened(self) -> str:
        """The first line, for a chat: the run, its state, and the failed tasks with their errors."""
        return for_chat(self._happened)

    @property
    def what_it_took(self) -> str:
        """The second line, for a chat: waited, ran, cost, and what is left."""
        return for_chat(self._took)

    @property
    def in_plain_words(self) -> str:
        """The run in two lines, for a log or a mail without HTML, where a chat's markup means nothing."""
        return f"{self._happened}\n{self._took}"

    @property
    def _happened(self) -> str:
        failures = [str(each) for each in self.failures[:_NAMED]]
        if len(self.failures) > _NAMED:
            failures.append(f"{len(self.failures) - _NAMED} more tasks failed.")
        state = f"{self.state}, for {self.why}" if self.why else self.state
        return _line(" ".join((f"{self.dag_id} {self.run_id}: {state}.", *failures)))

    @property
    def _took(self) -> str:
        parts = [self._waited(), self._ran(), self._cost()]
        left = f"; {self.left}" if any(parts) else f"{self.left[:1].upper()}{self.left[1:]}"
        return _line(f"{', '.join(filter(None, parts))}{left}.")

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
        tries = f", in the last of {self.tries} tries" if self.tries > 1 else ""
        return f"ran {_duration(self.ran_seconds)}{nodes}{types}{attempts}{tries}"

    def _cost(self) -> str:
        cost = cost_in_words(self.cost, self.currency, at_least=self.is_at_least, by=self.price_source)
        over = f", {cost_in_words(self.over_max_cost, self.currency)} more than max_cost" if self.over_max_cost else ""
        return "" if self.cost is None and not self.machines else f"cost {cost}{over}"


def night(
    *,
    dag_id: str,
    run_id: str,
    state: str,
    why: str = "",
    failures: Iterable[Failure] = (),
    ensured: Iterable[Json] = (),
    tried: Iterable[Sequence[Json]] = (),
    trainings: Iterable[Sequence[Json]] = (),
    usages: Iterable[Json] = (),
    released: Iterable[Json] = (),
    left: Iterable[str] = (),
    advice: Iterable[Sequence[str]] = (),
) -> Night:
    """Return a run's night.

    `ensured` is what each EnsureGpuPoolOperator returned, `tried` what each that failed left by that name; `trainings`
    and `advice` are each training's `timeline` and `advice`, `usages` and `released` each ScaleDownSensor's `usage` and
    what it returned, and `left` is what else is known of what is left, in words.
    """
    ensured, usages, trainings = list(ensured), list(usages), list(trainings)
    refused = [each for result in (*(one.get("tried", ()) for one in ensured), *tried) for each in result]
    waits = [_span(one["timeline"]) for one in ensured if one.get("timeline")]
    waits += [sum(each["seconds"] for each in phases if each["phase"] in _WAITS) for phases in trainings]
    ran = [each["seconds"] for phases in trainings for each in phases if each["phase"] == "ran"]
    machines = _machines(usages)
    released = [*released]
    is_unknown = not usages and not all(each.get("nothing_begun") for each in released)
    used = machines > 0 or is_unknown or any(usage.get("at_least") for usage in usages)
    known = [cost for usage in usages if not isinstance(cost := usage["cost"]["total"], str)]
    return Night(
        dag_id=dag_id,
        run_id=run_id,
        state=state,
        why=why,
        failures=_in_order(failures),
        waited_seconds=sum(waits) if waits else None,
        refusals=sum(each.get("times", 1) for each in refused),
        ran_seconds=sum(ran) if ran else None,
        tries=max((each.get("try", 1) for phases in trainings for each in phases), default=1),
        attempts=max((each.get("attempt", 1) for phases in trainings for each in phases), default=0),
        machines=machines,
        types=_types(usages, ensured),
        cost=sum(known) if known else None,
        over_max_cost=sum(usage.get("over_max_cost") or 0.0 for usage in usages),
        currency=", ".join(sorted({usage["currency"] for usage in usages})),
        price_source=LIST_PRICE if any(usage.get("price_source") == LIST_PRICE for usage in usages) else "",
        is_at_least=len(known) < len(usages) or any(usage.get("at_least") for usage in usages),
        left="; ".join(dict.fromkeys([*_left(released, used=used), *left])) or "no scale-down has ended yet",
        advice=tuple(dict.fromkeys(sentence for each in advice for sentence in each)),
    )


def _in_order(failures: Iterable[Failure]) -> list[Failure]:
    """Return the failures, what may still cost money first, without a verdict that only repeats the others."""
    found = sorted(failures, key=lambda each: each.type != "PoolNotReleased")
    others = [each for each in found if each.type != "BlockFailed"]
    has_errors = any(each.type for each in others)
    return [each for each in found if each.type != "BlockFailed" or not (has_errors or _repeats(each, others))]


def _repeats(verdict: Failure, others: Sequence[Failure]) -> bool:
    """Return True if a block's verdict names nothing but tasks that are named themselves."""
    what, _, names = verdict.what.partition(": ")
    tasks = {each.partition(":")[0] for each in names.split("; ")}
    return what == "Tasks failed" and tasks <= {each.task.partition("[")[0] for each in others}


def _lanes(usages: Sequence[Json]) -> Iterator[Json]:
    """Yield each machine of the bills once: several blocks of a run, and scale-downs, may have used it."""
    seen = set()
    for lane in (lane for usage in usages for lane in usage.get("timeline") or ()):
        if (key := (lane["machine"], lane["launched_at"])) not in seen:
            seen.add(key)
            yield lane


def _machines(usages: Sequence[Json]) -> int:
    listed: int = sum(1 for _ in _lanes(usages)) + max(
        (usage.get("timeline_left_out", 0) for usage in usages), default=0
    )
    return max([listed, *(int(usage["machines"]) for usage in usages)])


def _types(usages: Sequence[Json], ensured: Sequence[Json]) -> list[str]:
    """Return the types of the machines that the run used; before a bill says so, of those that Ensure returned."""
    billed = {lane.get("instance_type") for lane in _lanes(usages)} - {None, ""}
    given = {node.get("instance_type") for one in ensured for node in one["nodes"]} - {None, ""}
    return sorted(billed or given)


def _left(released: Iterable[Json], *, used: bool) -> list[str]:
    """Return what is left of each pool in words, by the scale-down of it that has ended last."""
    last: dict[str, Json] = {}
    for each in sorted(released, key=lambda each: str(each.get("at", ""))):
        last[each["pool"]] = each
    keeping = [each for each in last.values() if each["nodes"] or each["desired"]]
    gone = [pool for pool, each in last.items() if each not in keeping]
    if not keeping:
        return ["all nodes released" if used else "no node was started"] if gone else []
    return [*map(_kept, keeping), *(f"all nodes of pool {pool} released" for pool in gone)]


def _kept(released: Json) -> str:
    kept = "; ".join(released["kept"])
    return f"pool {released['pool']} keeps {released['nodes']} of its nodes{f' ({kept})' if kept else ''}"


def _span(phases: Sequence[Json]) -> float:
    """Return how long overlapping phases took together, in seconds."""
    starts = [datetime.fromisoformat(each["at"]) for each in phases]
    ends = [start + timedelta(seconds=each["seconds"]) for start, each in zip(starts, phases, strict=True)]
    return (max(ends) - min(starts)).total_seconds()


def _short(text: str) -> str:
    return text if len(text) <= _BEGINNING + _END else f"{text[:_BEGINNING]} … {text[-_END:]}"


def _line(text: str) -> str:
    return one_line(text, len(text))


def _duration(seconds: float) -> str:
    return format_seconds(timedelta(seconds=seconds))

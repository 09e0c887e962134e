"""Night: a DAG run on GPU nodes in two lines, from what its tasks left in XCom.

`night_of` reads that where a callback runs: in a worker, or in the DAG processor; `night` makes a Night of it, and
reads nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_gpu_provider.cost.amounts import in_words
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.notifications.chat import for_chat
from airflow_gpu_provider.pools.prices import LIST_PRICE
from airflow_gpu_provider.scaling.wait.records import format_seconds
from airflow_gpu_provider.tasks.roles import Role, role_of
from airflow_gpu_provider.untrusted import one_line

if TYPE_CHECKING:
    from airflow.sdk import Context


log = logging.getLogger(__name__)

Json = Mapping[str, Any]
_T = TypeVar("_T")

_UNANSWERED = "Airflow did not say what is left: see the command airflow gpu status"
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
        failures: The tasks that failed; the one that may have left machines first.
        waited_seconds: For nodes and for its turn, summed over blocks and trainings; None if unknown.
        refusals: How often a zone, type or market had no machine.
        ran_seconds: The trainings' own time, summed; None if none ran.
        attempts: Attempts of the training that had most of them, counting from 1; 0 if none ran.
        machines: Machines that the run used.
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
    failures: Sequence[Failure] = ()
    waited_seconds: float | None = None
    refusals: int = 0
    ran_seconds: float | None = None
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
        return _line(" ".join((f"{self.dag_id} {self.run_id}: {self.state}.", *failures)))

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
        return f"ran {_duration(self.ran_seconds)}{nodes}{types}{attempts}"

    def _cost(self) -> str:
        cost = in_words(self.cost, self.currency, at_least=self.is_at_least, by=self.price_source)
        over = f", {in_words(self.over_max_cost, self.currency)} more than max_cost" if self.over_max_cost else ""
        return "" if self.cost is None and not self.machines else f"cost {cost}{over}"


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

    `ensured` is what each EnsureGpuPoolOperator returned, `tried` what each that failed left by that name; `trainings`
    and `advice` are each training's `timeline` and `advice`, `usages` each ScaleDownSensor's `usage`, and `left` is
    what it left, in words.
    """
    ensured, usages, trainings = list(ensured), list(usages), list(trainings)
    refused = [each for result in (*(one.get("tried", ()) for one in ensured), *tried) for each in result]
    waits = [_span(one["timeline"]) for one in ensured if one.get("timeline")]
    waits += [sum(each["seconds"] for each in phases if each["phase"] in _WAITS) for phases in trainings]
    ran = [each["seconds"] for phases in trainings for each in phases if each["phase"] == "ran"]
    known = [cost for usage in usages if not isinstance(cost := usage["cost"]["total"], str)]
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
        over_max_cost=sum(usage.get("over_max_cost") or 0.0 for usage in usages),
        currency=", ".join(sorted({usage["currency"] for usage in usages})),
        price_source=LIST_PRICE if any(usage.get("price_source") == LIST_PRICE for usage in usages) else "",
        is_at_least=len(known) < len(usages) or any(usage.get("at_least") for usage in usages),
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


def _short(text: str) -> str:
    return text if len(text) <= _BEGINNING + _END else f"{text[:_BEGINNING]} … {text[-_END:]}"


def _line(text: str) -> str:
    return one_line(text, len(text))


def _duration(seconds: float) -> str:
    return format_seconds(timedelta(seconds=seconds))


def night_of(context: Context) -> Night:
    """Return the night of a callback's DAG run.

    A fact that Airflow does not give at that moment is left out; a notification is sent all the same.

    Args:
        context: Of a task's or a DAG's callback, or of a DeadlineAlert's. Airflow gives a DAG's callback no task
            instance where the run's last task is not in the DAG file any more; then nothing but the run's state is
            known. So it is of a deadline: a SyncCallback reads connections and variables, and no XCom.
    """
    ti: Any = context.get("ti")
    if isinstance(context.get("dag_run"), Mapping):
        return _past_deadline(context)
    if ti is None:
        dag: Any = context.get("dag")
        run_id = context.get("run_id", "")
        return night(dag_id=dag.dag_id if dag else "", run_id=run_id, state=_state(context), left=[_UNANSWERED])
    return _Facts(ti, context).night()


def _past_deadline(context: Context) -> Night:
    """Return the night of a DeadlineAlert's context: the run as Airflow's REST API has it, and the deadline."""
    of_deadline: Any = context
    run, deadline = of_deadline["dag_run"], of_deadline.get("deadline") or {}
    at = f" of {deadline['deadline_time']}" if deadline.get("deadline_time") else ""
    return night(
        dag_id=run["dag_id"],
        run_id=run["dag_run_id"],
        state=f"{run['state']}, past its deadline{at}",
        left=["Airflow tells no more at a deadline"],
    )


class _Facts:
    def __init__(self, ti: Any, context: Context) -> None:
        self._ti = ti
        self._context = context
        self._has_answered = True
        self._states: Mapping[str, str | None] = self._or_nothing(self._task_states) or {}

    def night(self) -> Night:
        ensures, trainings, downs = self._of("ensure"), self._of("training"), self._of("scale_down")
        return night(
            dag_id=self._ti.dag_id,
            run_id=self._ti.run_id,
            state=_state(self._context),
            failures=self._failures(),
            ensured=self._pulled(ensures, "return_value"),
            tried=self._pulled(ensures, "tried"),
            trainings=filter(_is_timeline, self._pulled(trainings, "timeline")),
            usages=self._pulled(downs, "usage"),
            advice=filter(_are_texts, self._pulled(trainings, "advice")),
            left=[words for task_id in downs for words in self._left(task_id)] or self._nothing_left(downs),
        )

    def _nothing_left(self, downs: list[str]) -> list[str]:
        """Return why no scale-down says what is left; nothing where none has ended yet."""
        if not self._has_answered:
            return [_UNANSWERED]
        return [] if downs else ["the DAG has no scale-down"]

    def _of(self, *roles: Role) -> list[str]:
        """Return the ids of the DAG's tasks of these roles, mapped ones too; by default of any."""
        dag: Any = self._context["dag"]
        return [task.task_id for task in dag.tasks if (role := role_of(task)) and (not roles or role in roles)]

    def _failures(self) -> Iterator[Failure]:
        """Yield the errors that our tasks have left, that of this callback's own task, and the failed tasks without."""
        named = set()
        for record in filter(_is_error, self._pulled(self._of(), "error")):
            key = _key(record["task_id"], record["map_index"])
            # An attempt that Airflow will repeat has left its error, too.
            if self._states.get(key) in (None, "failed"):
                named.add(key)
                yield Failure(
                    task=_name(record["task_id"], record["map_index"]),
                    type=record["type"],
                    what=record["what"],
                    fix=record["fix"],
                )
        error: Any = self._context.get("exception")
        own = _key(self._ti.task_id, self._ti.map_index)
        if error is not None and own not in named:
            named.add(own)
            yield _failure(_name(self._ti.task_id, self._ti.map_index), error)
        yield from (Failure(task=key) for key, state in self._states.items() if state == "failed" and key not in named)

    def _left(self, task_id: str) -> list[str]:
        if results := self._pulled([task_id], "return_value"):
            return [_left_in_words(result) for result in results]
        has_failed = any(state == "failed" and key.startswith(task_id) for key, state in self._states.items())
        return [f"machines may be left, for {task_id} failed"] if has_failed else []

    def _pulled(self, task_ids: list[str], key: str) -> list[Any]:
        """Return the values that these tasks have left, those of each map index."""
        if not task_ids:
            return []
        values = self._or_nothing(lambda: self._ti.xcom_pull(task_ids=task_ids, key=key))
        return [value for value in values or () if value is not None]

    def _task_states(self) -> Mapping[str, str | None]:
        of_runs = self._ti.get_task_states(dag_id=self._ti.dag_id, run_ids=[self._ti.run_id])
        found: Mapping[str, str | None] = of_runs.get(self._ti.run_id) or {}
        return found

    def _or_nothing(self, read: Callable[[], _T]) -> _T | None:
        """Return what Airflow answers, or None: a fact that is missing stops no notification."""
        try:
            return read()
        except Exception:  # of a custom XCom backend, too
            log.warning("The notification leaves out what Airflow did not answer", exc_info=True)
            self._has_answered = False
            return None


# A training whose result becomes an XCom for each key may replace what its operator has left under these names.


def _is_timeline(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, Mapping)
        and isinstance(each.get("phase"), str)
        and isinstance(each.get("seconds"), int | float)
        and isinstance(each.get("attempt", 1), int)
        for each in value
    )


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_error(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and _are_texts([value.get(each) for each in ("task_id", "type", "what", "fix")])
        and isinstance(value.get("map_index"), int | None)
    )


def _key(task_id: str, map_index: int | None) -> str:
    """Return the name that Airflow's `get_task_states` gives to a task instance."""
    return task_id if map_index is None or map_index < 0 else f"{task_id}_{map_index}"


def _name(task_id: str, map_index: int | None) -> str:
    return task_id if map_index is None or map_index < 0 else f"{task_id}[{map_index}]"


def _failure(task: str, error: BaseException) -> Failure:
    if isinstance(error, GpuError):
        return Failure(task=task, type=type(error).__name__, what=error.what, fix=error.fix)
    lines = str(error).strip().splitlines()
    return Failure(task=task, type=type(error).__name__, what=lines[0] if lines else "")


def _left_in_words(released: Mapping[str, Any]) -> str:
    """Return what a ScaleDownSensor's result says is left of its pool."""
    if released.get("nothing_begun"):
        return "nothing was started"
    if not released["nodes"] and not released["desired"]:
        return "all nodes released"
    kept = "; ".join(released["kept"])
    return f"pool {released['pool']} keeps {released['nodes']} of its nodes{f' ({kept})' if kept else ''}"


def _state(context: Context) -> str:
    run: Any = context.get("dag_run")
    return str(getattr(run.state, "value", run.state)) if run is not None else str(context.get("reason") or "ended")

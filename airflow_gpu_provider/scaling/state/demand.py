"""Demand for a pool as a record: what one block of a DAG run wants, until when, and how its Lease keeps it. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar

from airflow_gpu_provider.cluster.model.lease import DEMAND_NAMESPACE, lease_manifest
from airflow_gpu_provider.money.budget import Budget
from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.pools.allowed import Allowed
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.pools.values import time_of
from airflow_gpu_provider.scaling import deadlines
from airflow_gpu_provider.times import format_time
from airflow_gpu_provider.untrusted import NotParsed, loads, one_line, read

_PREFIX = "airflow-gpu-provider/"

_NUMBERS = range(100_000)
LONGEST_REASON = 300
"""Characters of a reason that is kept with demand."""

_UNTIL_REPAIRED = timedelta(days=1)  # from its begin, for demand that says nowhere how long it lasts

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """One annotation of a demand Lease that a manual edit made unreadable."""

    lease: str
    what: str
    text: str
    taken_for: str

    def __str__(self) -> str:
        where = f"Lease {DEMAND_NAMESPACE}/{self.lease}"
        return f"{where}: {_PREFIX}{self.what} is {self.text[:60]!r}, which cannot be parsed; using {self.taken_for}"


@dataclass(frozen=True, kw_only=True)
class QuotaCheck:
    """Which groups had no room in a quota for what a run wants, and when that was seen."""

    at: datetime
    groups: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TaskNodes:
    """Nodes among a run's that are for one task, and so have to be what it needs.

    It has run out of GPU memory, or has lost one spot machine after the other.

    Attributes:
        task_id, map_index, iteration: The task's; outside of task loops, its iteration is -1.
        instance_type: The nodes' machine type; empty for any.
        nodes: How many; a gang's are all of it.
        times: How often the task has got a larger GPU.
        market: The nodes' capacity type; empty for any.
    """

    task_id: str
    map_index: int
    instance_type: str = ""
    nodes: int = 1
    times: int = 1
    iteration: int = -1
    market: str = ""

    def are_served_by(self, instance_type: str, market: str) -> bool:
        return self.instance_type in ("", instance_type) and self.market in ("", market)

    def to_json(self) -> dict[str, Any]:
        """Return it for its Lease, without what earlier releases do not know, where that is not used."""
        newer = {"iteration": -1, "market": ""}
        return {name: value for name, value in asdict(self).items() if newer.get(name) != value}


@dataclass(frozen=True, kw_only=True)
class DemandLease:
    """`nodes` nodes are wanted for `key` until `until`; `created_at` is its place in the queue.

    `groups` names the external groups that the run's pool scales, because two pools must not scale one group.

    Attributes:
        attempts: How often the run's nodes have not come together.
        attempt_since: When the present attempt began, where it is not the first.
        resume_at: When the next attempt begins; until then nothing is wanted. None while one is under way.
        gang: So many of the nodes have to be in one zone: they come together, or none of them. 0: each may be anywhere.
        over_quota: What was seen of quotas before the demand was written; None where nobody looked.
        prices: What the cloud listed when the nodes were asked for; None where it is not asked.
        budget: What it may cost, which `until` goes by too; None where there is no limit.
        task_nodes: Which of its nodes are for tasks that need a larger GPU, or machines that are not taken back.
        extended: Why it lasts longer than its run's Ensure has said, or that nobody said why; empty where it does not.
        unextended_until: Its `until` without any extension; None where nobody has extended it.
        allowed: What its pool's spec allows the nodes to be; None where the Lease does not record it.
        unreadable: What of its Lease could not be read, with what it is taken for. It is demand all the same: a run
            whose Lease somebody has edited by hand keeps its nodes.
    """

    key: DemandKey
    nodes: int
    until: datetime
    created_at: datetime
    groups: tuple[str, ...] = ()
    gang: int = 0
    attempts: int = 0
    attempt_since: datetime | None = None
    resume_at: datetime | None = None
    over_quota: QuotaCheck | None = None
    prices: ListPrices | None = None
    budget: Budget | None = None
    task_nodes: tuple[TaskNodes, ...] = ()
    extended: str = ""
    unextended_until: datetime | None = None
    allowed: Allowed | None = None
    unreadable: tuple[Unreadable, ...] = field(default=(), compare=False)

    def live(self, now: datetime) -> bool:
        """Whether it still counts."""
        return now < self.until

    @property
    def max_cost(self) -> float | None:
        """The most that it may cost; None without a limit."""
        return self.budget.limit if self.budget is not None else None

    @property
    def ends_by_budget(self) -> bool:
        """Whether it ends because its money is used by then, rather than its time."""
        return deadlines.ends_by_budget(self.until, self.budget, is_extended=bool(self.extended))

    @property
    def pods_end_by(self) -> datetime:
        """When its pods have to end: at the end of its time, or of its money."""
        return deadlines.pods_end_by(self.until, self.budget, is_extended=bool(self.extended))

    def task_nodes_of(self, task_id: str, map_index: int, iteration: int = -1) -> TaskNodes | None:
        """Return what a task's nodes have to be; None if nothing in particular."""
        task = (task_id, map_index, iteration)
        return next((each for each in self.task_nodes if (each.task_id, each.map_index, each.iteration) == task), None)

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Self:
        """Read a Lease object; raises KeyError or TypeError where it does not say whose demand it is.

        What else of it cannot be read is in `unreadable`; times without a zone are UTC.
        """
        key, notes, created_at = DemandKey.parse(raw), _Notes(raw), _begin(raw)
        lasts = timedelta(seconds=raw["spec"].get("leaseDurationSeconds") or _UNTIL_REPAIRED.total_seconds())
        return cls(
            key=key,
            nodes=notes.read("nodes", _number, 1),
            until=notes.read("until", time_of, created_at + lasts),
            created_at=created_at,
            groups=notes.read_if_there("groups", _names, ()),
            gang=notes.read_if_there("gang", _number, 0),
            attempts=notes.read_if_there("attempts", _number, 0),
            attempt_since=notes.read_if_there("attempt-since", time_of, None),
            resume_at=notes.read_if_there("resume-at", time_of, None),
            over_quota=notes.read_if_there("over-quota", _quota_check, None),
            prices=notes.read_if_there("prices", ListPrices.parse, None),
            budget=notes.read_if_there("budget", Budget.parse, None),
            task_nodes=notes.read_if_there("larger", _task_nodes, ()),
            extended=notes.read_if_there("extended", reason_of, ""),
            unextended_until=notes.read_if_there("unextended-until", time_of, None),
            allowed=notes.read_if_there("allowed", Allowed.parse, None),
            unreadable=tuple(notes.unreadable),
        )

    def manifest(self) -> dict[str, Any]:
        """Return the Lease object; kubectl shows the run as its holder."""
        seen = self.over_quota
        texts = {
            "nodes": str(self.nodes),
            "until": format_time(self.until),
            "extended": self.extended,
            "unextended-until": format_time(self.unextended_until) if self.unextended_until else "",
            "groups": json.dumps(self.groups) if self.groups else "",
            "gang": str(self.gang) if self.gang else "",
            "attempts": str(self.attempts) if self.attempts else "",
            "attempt-since": format_time(self.attempt_since) if self.attempt_since else "",
            "resume-at": format_time(self.resume_at) if self.resume_at else "",
            "over-quota": json.dumps({"at": format_time(seen.at), "groups": seen.groups}) if seen else "",
            "prices": self.prices.dump() if self.prices else "",
            "budget": self.budget.dump() if self.budget else "",
            "larger": json.dumps([each.to_json() for each in self.task_nodes]) if self.task_nodes else "",
            "allowed": self.allowed.dump() if self.allowed is not None else "",
        }
        notes = {**self.key.annotations, **{f"{_PREFIX}{name}": text for name, text in texts.items() if text}}
        labels = {POOL_LABEL: self.key.pool, f"{_PREFIX}run": self.key.hash}
        spec = {
            "holderIdentity": str(self.key),
            "acquireTime": format_time(self.created_at),
            "leaseDurationSeconds": max(1, math.ceil((self.until - self.created_at).total_seconds())),
        }
        return lease_manifest(self.key.lease_name, "demand", labels=labels, notes=notes, spec=spec)


class _Notes:
    """What a demand Lease's annotations say, and which of them say nothing."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self._notes = raw["metadata"]["annotations"]
        self._lease = raw["metadata"].get("name", "")
        self.unreadable: list[Unreadable] = []

    def read(self, name: str, parse: Callable[[str], _T], instead: _T) -> _T:
        """Return what an annotation that has to be there says; `instead` where it cannot be read."""
        text = self._notes.get(f"{_PREFIX}{name}", "")
        try:
            return read(text, parse)
        except NotParsed:
            taken_for = str(instead or "nothing")
            self.unreadable.append(Unreadable(lease=self._lease, what=name, text=text, taken_for=taken_for))
            return instead

    def read_if_there(self, name: str, parse: Callable[[str], _T], instead: _T) -> _T:
        """Return what an annotation says; `instead` where there is none, too."""
        return self.read(name, parse, instead) if self._notes.get(f"{_PREFIX}{name}") else instead


def _begin(raw: dict[str, Any]) -> datetime:
    try:
        return time_of(raw["spec"]["acquireTime"])
    except (KeyError, TypeError, ValueError):
        return time_of(raw["metadata"]["creationTimestamp"])


def reason_of(text: str) -> str:
    """Return a person's reason as it is kept: one plain line of at most LONGEST_REASON characters."""
    return one_line(text, LONGEST_REASON)


def _number(text: str) -> int:
    number = int(text)
    if number not in _NUMBERS:
        raise ValueError(f"{number} is not a number of nodes or attempts")
    return number


def _names(text: str) -> tuple[str, ...]:
    return _as_names(loads(text))


def _as_names(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{names} is not a list of names")
    return tuple(names)


def _quota_check(text: str) -> QuotaCheck:
    seen = loads(text)
    if not isinstance(seen, dict):
        raise ValueError(f"{text} does not say what was seen of quotas, and when")
    return QuotaCheck(at=time_of(seen.get("at", "")), groups=_as_names(seen.get("groups")))


def _task_nodes(text: str) -> tuple[TaskNodes, ...]:
    found = tuple(TaskNodes(**each) for each in loads(text))
    for each in found:
        names, numbers = (
            (each.task_id, each.instance_type or each.market),
            (each.map_index, each.iteration, each.nodes, each.times),
        )
        are_names = all(isinstance(name, str) and name for name in names)
        are_numbers = all(isinstance(number, int) and number < _NUMBERS.stop for number in numbers)
        if not are_names or not are_numbers or each.nodes < 1 or each.times < 0:
            raise ValueError(f"{each} is no task with nodes of its own")
    return found

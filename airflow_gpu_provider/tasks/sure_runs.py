"""Which tasks Airflow runs however the tasks before them end: what releases machines has to be one of them.

Airflow's rules: a teardown runs once one of its setups has succeeded, whatever has failed. A branch skips what comes
right after it and is not chosen, teardowns too; other tasks that skip (a short circuit) skip everything after them but
teardowns, by default whatever its trigger rule. A failed setup keeps all that is no teardown from running.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple


class Scheduled(NamedTuple):
    """What decides whether a task runs: the ids of the tasks right before it, and what it is to Airflow."""

    upstream: Collection[str]
    rule: str
    is_setup: bool
    is_teardown: bool
    skips: bool
    is_branch: bool

    @classmethod
    def of(cls, task: Any) -> Scheduled:
        """Return it for a task of a DAG, a mapped one too."""
        rule = getattr(task.trigger_rule, "value", task.trigger_rule)
        skips = bool(task.inherits_from_skipmixin)
        return cls(task.upstream_task_ids, rule, bool(task.is_setup), bool(task.is_teardown), skips, is_branch(task))


def is_branch(task: Any) -> bool:
    """Return True for a task that chooses among those right after it."""
    # By its name: newer releases of Airflow have the mixin in their SDK, older ones in the standard provider.
    return any(each.__name__ == "BranchMixIn" for each in getattr(task, "operator_class", type(task)).__mro__)


def is_sure_to_run(task: str, ensure: str, tasks: Mapping[str, Scheduled]) -> bool:
    """Return True if a task runs whenever an Ensure has succeeded: it is its teardown, or has ALL_DONE and no skip.

    Args:
        task: Its id.
        ensure: That of the Ensure.
        tasks: All tasks of their DAG.
    """
    its = tasks[task]
    if its.is_teardown:
        is_its_setup = ensure in its.upstream and tasks[ensure].is_setup
        return is_its_setup and not any(tasks[each].is_branch for each in its.upstream)
    between = _before(task, tasks) - _before(ensure, tasks) - {ensure}
    return its.rule == "all_done" and not any(tasks[each].skips or tasks[each].is_setup for each in between)


def _before(task: str, tasks: Mapping[str, Scheduled]) -> set[str]:
    return reached(tasks[task].upstream, lambda name: tasks[name].upstream)


def reached(first: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    """Return the ids of tasks that edges lead to, from the first ones on; `following` gives those right after one."""
    found, to_come = set[str](), [*first]
    while to_come:
        if (name := to_come.pop()) not in found:
            found.add(name)
            to_come += following(name)
    return found

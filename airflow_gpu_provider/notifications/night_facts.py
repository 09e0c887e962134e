"""What a callback can read of a DAG run on GPU nodes, and the Night that this makes.

A callback runs in a worker, or in the DAG processor; what it reads are the XComs and states of the run's tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.notifications.night import Failure, Night, night
from airflow_gpu_provider.tasks.roles import Role, role_of
from airflow_gpu_provider.tasks.without_log import without_log
from airflow_gpu_provider.times import format_seconds

if TYPE_CHECKING:
    from airflow.sdk import Context


log = logging.getLogger(__name__)

_T = TypeVar("_T")

_NEVER = {"skipped", "upstream_failed", "removed", None}
"""States of a task that has not run."""

_UNANSWERED = "Airflow did not say what is left: see the command airflow gpu status"


def night_of(context: Context, *, with_log: bool = False) -> Night:
    """Return the night of a callback's DAG run.

    A fact that Airflow does not give at that moment is left out; a notification is sent all the same.

    Args:
        context: Of a task's or a DAG's callback, or of a DeadlineAlert's. Airflow gives a DAG's callback no task
            instance where the run's last task is not in the DAG file any more; then nothing but the run's state is
            known. So it is of a deadline: a SyncCallback reads connections and variables, and no XCom.
        with_log: Whether its errors quote what a training has printed.
    """
    ti: Any = context.get("ti")
    if isinstance(context.get("dag_run"), Mapping):
        return _past_deadline(context)
    if ti is None:
        dag: Any = context.get("dag")
        run_id = context.get("run_id", "")
        return night(
            dag_id=dag.dag_id if dag else "",
            run_id=run_id,
            state=_state(context),
            why=_why(context),
            left=[_UNANSWERED],
        )
    return _Facts(ti, context, with_log=with_log).night()


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
    def __init__(self, ti: Any, context: Context, *, with_log: bool) -> None:
        self._ti = ti
        self._context = context
        self._with_log = with_log
        self._has_answered = True
        self._states: Mapping[str, str | None] = self._or_nothing(self._task_states) or {}

    def night(self) -> Night:
        ensures, trainings, downs = self._of("ensure"), self._of("training"), self._of("scale_down")
        released = self._pulled(downs, "return_value")
        return night(
            dag_id=self._ti.dag_id,
            run_id=self._ti.run_id,
            state=_state(self._context),
            why=_why(self._context),
            failures=self._failures(),
            ensured=self._pulled(ensures, "return_value"),
            tried=self._pulled(ensures, "tried"),
            trainings=filter(_is_timeline, self._pulled(trainings, "timeline")),
            usages=self._pulled(downs, "usage"),
            advice=filter(_are_texts, self._pulled(trainings, "advice")),
            released=released,
            left=[words for task_id in downs for words in self._not_released(task_id)]
            or ([] if released else self._nothing_left(downs)),
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
                    **self._sentences(record),
                )
        error: Any = self._context.get("exception")
        own = _key(self._ti.task_id, self._ti.map_index)
        if error is not None and own not in named:
            named.add(own)
            yield self._failure(_name(self._ti.task_id, self._ti.map_index), error)
        yield from (Failure(task=key) for key, state in self._states.items() if state == "failed" and key not in named)

    def _sentences(self, record: Mapping[str, Any]) -> dict[str, str]:
        brief = record.get("without_log")  # left only where it differs
        if self._with_log or not isinstance(brief, Mapping):
            brief = record
        return {key: str(brief.get(key) or "") for key in ("what", "fix")}

    def _failure(self, task: str, error: BaseException) -> Failure:
        if isinstance(error, GpuError):
            record = {"what": error.what, "fix": error.fix, "without_log": without_log(error)}
            return Failure(task=task, type=type(error).__name__, **self._sentences(record))
        lines = str(error).strip().splitlines()
        return Failure(task=task, type=type(error).__name__, what=lines[0] if lines else "")

    def _not_released(self, task_id: str) -> list[str]:
        """Return of which instances of a scale-down nothing is known: one that is not mapped has left what it found."""
        its = self._states_of(task_id)
        if task_id in its and self._pulled([task_id], "return_value"):
            return []
        if "failed" in its.values():
            return [f"machines may be left, for {task_id} failed"]
        if "skipped" not in its.values():
            return []
        ensured = {state for each in self._of("ensure") for state in self._states_of(each).values()}
        return [
            f"{task_id} was skipped: see the command airflow gpu status" if ensured - _NEVER else "no node was started"
        ]

    def _states_of(self, task_id: str) -> dict[str, str | None]:
        """Return the states of a task's instances, by Airflow's names of them."""
        return {key: state for key, state in self._states.items() if key == task_id or key.startswith(f"{task_id}_")}

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


def _state(context: Context) -> str:
    run: Any = context.get("dag_run")
    return str(getattr(run.state, "value", run.state)) if run is not None else str(context.get("reason") or "ended")


def _why(context: Context) -> str:
    """Return why Airflow has ended the run, where that was no task's end (airflow/jobs/scheduler_job_runner.py)."""
    facts: Any = context
    if facts.get("reason") != "timed_out":
        return ""
    limit = getattr(facts.get("dag"), "dagrun_timeout", None)
    return f"it ran longer than its dagrun_timeout{f' of {format_seconds(limit)}' if limit else ''}"

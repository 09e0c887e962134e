"""Reads what a DAG run's tasks left in XCom, where a callback runs: in a worker, or in the DAG processor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.notifications.night import Failure, Night, night
from airflow_gpu_provider.tasks.pool_operator import PoolOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_UNANSWERED = "Airflow did not say what is left: see `airflow gpu status`"


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
        from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
        from airflow_gpu_provider.operators.training import TrainingOperator
        from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor

        ensures, downs = self._of(EnsureGpuPoolOperator), self._of(ScaleDownSensor)
        return night(
            dag_id=self._ti.dag_id,
            run_id=self._ti.run_id,
            state=_state(self._context),
            failures=self._failures(),
            ensured=self._pulled(ensures, "return_value"),
            tried=self._pulled(ensures, "tried"),
            trainings=self._pulled(self._of(TrainingOperator), "timeline"),
            usages=self._pulled(downs, "usage"),
            advice=self._pulled(self._of(TrainingOperator), "advice"),
            left=[words for task_id in downs for words in self._left(task_id)] or self._nothing_left(downs),
        )

    def _nothing_left(self, downs: list[str]) -> list[str]:
        """Return why no scale-down says what is left; nothing where none has ended yet."""
        if not self._has_answered:
            return [_UNANSWERED]
        return [] if downs else ["the DAG has no scale-down"]

    def _of(self, operator: type) -> list[str]:
        """Return the ids of the DAG's tasks of an operator, mapped ones too."""
        dag: Any = self._context["dag"]
        return [task.task_id for task in dag.tasks if issubclass(getattr(task, "operator_class", type(task)), operator)]

    def _failures(self) -> Iterator[Failure]:
        """Yield the errors that our tasks have left, that of this callback's own task, and the failed tasks without."""
        named = set()
        for record in self._pulled(self._of(PoolOperator), "error"):
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
    if not released["nodes"] and not released["desired"]:
        return "all nodes released"
    kept = "; ".join(released["kept"])
    return f"pool {released['pool']} keeps {released['nodes']} of its nodes{f' ({kept})' if kept else ''}"


def _state(context: Context) -> str:
    run: Any = context.get("dag_run")
    return str(getattr(run.state, "value", run.state)) if run is not None else str(context.get("reason") or "ended")

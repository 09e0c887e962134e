"""Whether a run's Ensure can have begun anything: a mark of its tries, for a scale-down that does not reach the pool.

Airflow deletes a task's XComs when a try of it starts, and no other task reads its task state store, which all tries
share. So a try that ends before its first write pushes the mark for itself and for the tries before it, of which the
store has the number. A try that leaves none, as one that is killed, may have begun something.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.tasks.block_tasks import BlockTask, as_parsed
from airflow_gpu_provider.tasks.roles import Role
from airflow_gpu_provider.tasks.xcom import push

if TYPE_CHECKING:
    from airflow.sdk import Context

NOTHING_BEGUN = "nothing_begun"
"""XCom key of the mark, and the store's of the last try that left it; also in the result of such a scale-down."""

_NOT_STARTED = (None, "upstream_failed", "skipped", "removed")

_log = logging.getLogger(__name__)


@contextmanager
def before_first_write(context: Context, *, is_resumed: bool) -> Iterator[None]:
    """Leave the mark where a try fails in the body, which only reads; a try that goes on has written before."""
    try:
        yield
    except GpuError:
        try:
            if not is_resumed:
                _mark(context)
        except Exception:  # noqa: BLE001 - the task's own error counts; without a mark something may have begun
            _log.warning("That nothing was begun could not be stored", exc_info=True)
        raise


def _mark(context: Any) -> None:
    ti, store = context["ti"], context.get("task_state_store")
    if ti.try_number > 1 and (store is None or store.get(NOTHING_BEGUN) != ti.try_number - 1):
        return
    if store is not None:
        store.set(NOTHING_BEGUN, ti.try_number)
    push(context, NOTHING_BEGUN, True)


def tasks_that_began_nothing(task: Any, context: Context) -> list[str]:
    """Return the Ensures of a scale-down's block if no try of theirs can have begun anything; empty if one may have.

    A training of the block that has started may have brought a node by itself. So it is if Airflow does not answer.
    """
    if not task.has_dag():
        return []
    parsed, ti = as_parsed(task), _any(context)["ti"]
    mine = BlockTask.of(parsed)
    found = {each.task_id: BlockTask.of(each) for each in parsed.dag.tasks}
    of_block = {name: each.role for name, each in found.items() if each.may_share_nodes_of(mine)}
    ensures, trainings = _with_role(of_block, "ensure"), _with_role(of_block, "training")
    try:
        if _has_started(ti, trainings):
            return []
        pulled = [ti.xcom_pull(task_ids=name, key=NOTHING_BEGUN, map_indexes=ti.map_index) for name in ensures]
    except Exception:  # noqa: BLE001 - of a custom XCom backend, too
        _log.warning("Whether the run has begun anything is not known", exc_info=True)
        return []
    return ensures if all(pulled) else []


def _with_role(tasks: dict[str, Role], role: Role) -> list[str]:
    return sorted(name for name, each in tasks.items() if each == role)


def _has_started(ti: Any, tasks: list[str]) -> bool:
    if not tasks:
        return False
    own_index = {} if ti.map_index is None or ti.map_index < 0 else {"map_index": ti.map_index}
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=tasks, run_ids=[ti.run_id], **own_index)
    return any(state not in _NOT_STARTED for state in states.get(ti.run_id, {}).values())


def _any(context: Any) -> Any:
    return context

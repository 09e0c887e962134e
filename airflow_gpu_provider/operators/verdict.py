"""BlockVerdictOperator: the last task of a `gpu_nodes` block, which gives a DAG run the colour that it should have.

A DAG run's state comes from its leaves. A teardown that succeeds would turn a failed training green; and a run that a
person marks failed has its pending tasks skipped, plain leaves among them, runs its teardowns, and ends green
(airflow/api/common/mark_tasks.py, 3.3.2). So the leaf is a teardown too, and looks at what became of the block's tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import BlockFailed
from airflow_gpu_provider.pool_operator import PoolOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

States = Mapping[int, str | None]
"""The states of a task's instances, by map index; -1 for that of a task which is not mapped."""

_FAILED = ("failed", "upstream_failed")
_NAMED = 20  # map indexes that are named, of those in one state


class BlockVerdictOperator(PoolOperator):
    """Fail when the block's work has failed.

    Args:
        block_tasks: Ids of all other tasks of the block.
        deciding_tasks: Those of them that nothing of the author's comes after, and the ScaleDownSensor.
        retries: Default 0: what it looks at does not change.

    Raises:
        BlockFailed: The message names the tasks, and the map indexes of those that failed.
    """

    ui_color = "#e6e6e6"

    def __init__(
        self,
        *,
        block_tasks: Sequence[str],
        deciding_tasks: Sequence[str],
        retries: int | None = 0,
        weight_rule: Any = "upstream",
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, weight_rule=weight_rule, **kwargs)
        self.block_tasks = list(block_tasks)
        self.deciding_tasks = list(deciding_tasks)

    def execute(self, context: Context) -> None:
        ti: Any = context["ti"]
        # In a mapped task group all of a block's tasks have its map index; elsewhere mapped tasks have any.
        own_index = {} if ti.map_index is None or ti.map_index < 0 else {"map_index": ti.map_index}
        found = ti.get_task_states(dag_id=ti.dag_id, task_ids=self.block_tasks, run_ids=[ti.run_id], **own_index)
        tasks = by_task(found.get(ti.run_id, {}), self.block_tasks)
        for task_id, states in tasks.items():
            self.log.info("%s: %s", task_id, summary(states))
        failed = failed_tasks(tasks, deciding=self.deciding_tasks)
        if failed:
            which = "; ".join(f"{task_id}: {summary(tasks[task_id])}" for task_id in failed)
            raise BlockFailed(f"Tasks failed: {which}.", "See their logs; a task that is cleared gets its nodes again.")


def by_task(states: Mapping[str, str | None], task_ids: Sequence[str]) -> dict[str, States]:
    """Group what Airflow's `get_task_states` returns: a mapped task's instances bear "_<map index>" behind its id."""
    tasks: dict[str, dict[int, str | None]] = {}
    for name, state in states.items():
        task_id, _, index = name.rpartition("_")
        if name in task_ids:
            tasks.setdefault(name, {})[-1] = state
        elif task_id in task_ids:
            tasks.setdefault(task_id, {})[int(index)] = state
    return dict(sorted(tasks.items()))


def summary(states: States) -> str:
    """Return the states of a task's instances in a few words: "18 success, 2 failed (map indexes 3, 7)"."""
    if list(states) == [-1]:
        return str(states[-1])
    parts = []
    for state, count in Counter(states.values()).most_common():
        indexes = sorted(index for index, each in states.items() if each == state)
        more = f", and {count - _NAMED} more" if count > _NAMED else ""
        which = f" (map index{'es' * (count > 1)} {', '.join(map(str, indexes[:_NAMED]))}{more})"
        parts.append(f"{count} {state}{which if state != 'success' else ''}")
    return ", ".join(parts)


def failed_tasks(tasks: Mapping[str, States], *, deciding: Sequence[str]) -> list[str]:
    """Return the tasks that make the block a failure; none where it is none.

    As with a DAG run, leaves decide. A leaf that was skipped though another task has failed was not skipped by the
    DAG's own logic but by a person who marked the run failed.

    Args:
        tasks: Task ids, and the states of each one's instances.
        deciding: Ids of the tasks that decide.
    """
    ends = {state for task_id in deciding for state in tasks.get(task_id, {}).values()}
    if not ends & {*_FAILED, "skipped"}:
        return []
    return [task_id for task_id, states in tasks.items() if set(states.values()) & {*_FAILED}]

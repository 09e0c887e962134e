"""BlockVerdictOperator: the last task of a `gpu_nodes` block, which gives the DAG run its correct state.

A DAG run's state comes from its leaves. A teardown that succeeds would turn a failed training green; and if a user
marks a run failed, its pending tasks, ordinary leaves among them, are skipped, its teardowns run, and it ends green
(airflow/api/common/mark_tasks.py, 3.3.2). So the leaf is also a teardown, and checks the states of the block's tasks.

No task learns that its run was marked: the run's state stays "running" until the teardowns have ended. And a task may
be skipped by the DAG's own logic, too. So the block has a witness, a task that runs after all others, whatever their
states: while any task of the block is pending, so is the witness, and marking the run skips it. Of the DAG's own logic,
only an operator that skips all of its downstream tasks whatever their trigger rules (ShortCircuitOperator) also skips
it, and leaves a list of the skipped tasks in an XCom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import BlockFailed
from airflow_gpu_provider.tasks.pool_operator import PoolOperator
from airflow_gpu_provider.tasks.xcom import UNCOLLECTED_SUCCESS

if TYPE_CHECKING:
    from airflow.sdk import Context

States = Mapping[int, str | None]
"""The states of a task's instances, by map index; -1 for an unmapped task."""

_FAILED = ("failed", "upstream_failed")
_SKIPPED_BY_OPERATOR = "skipmixin_key"  # the XCom of SkipMixin, airflow/providers/standard/utils/skipmixin.py
_NAMED = 20  # map indexes listed per state
_COLLECTED_BY_RETRIES = "Give the task `retries`: the try that follows a lost worker then collects such a success."
_MARKED_AS_WHAT = (
    "Clear them to run them; or if the run was marked a success, mark it so again now: Airflow does not show a task"
    " which of the two it was."
)


class BlockVerdictOperator(PoolOperator):
    """Fail if the block's work has failed, or was skipped because the run was marked.

    Args:
        block_tasks: Ids of all other tasks of the block, except the witness.
        deciding_tasks: Those of them without a downstream task of the DAG's author, and the ScaleDownSensor.
        scale_down: Id of the ScaleDownSensor.
        witness: Id of the task that is skipped only if the run is marked.
        retries: Default 0: what it checks does not change.

    Raises:
        BlockFailed: The message names the tasks, and the map indexes of those that failed.
    """

    gpu_role = "verdict"
    ui_color = "#e6e6e6"

    def __init__(
        self,
        *,
        block_tasks: Sequence[str],
        deciding_tasks: Sequence[str],
        scale_down: str,
        witness: str,
        retries: int | None = 0,
        weight_rule: Any = "upstream",
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, weight_rule=weight_rule, **kwargs)
        self.block_tasks = list(block_tasks)
        self.deciding_tasks = list(deciding_tasks)
        self.scale_down = scale_down
        self.witness = witness

    def execute(self, context: Context) -> None:
        ti: Any = context["ti"]
        # In a mapped task group all of a block's tasks have its map index; elsewhere mapped tasks have any.
        own_index = ti.map_index if ti.map_index is not None and ti.map_index >= 0 else None
        found = by_task(ti.get_task_breadcrumbs(dag_id=ti.dag_id, run_id=ti.run_id), only_index=own_index)
        tasks = {task_id: found[task_id] for task_id in self.block_tasks if task_id in found}
        for task_id, states in tasks.items():
            self.log.info("%s: %s", task_id, summary(states))
        was_marked = self._was_marked(ti, found.get(self.witness, {}))
        failed = failed_tasks(tasks, deciding=self.deciding_tasks, was_marked=was_marked)
        if not failed:
            return
        others = [task_id for task_id in failed if task_id != self.scale_down]
        which = "; ".join(f"{task_id}: {summary(tasks[task_id])}" for task_id in others)
        if self.scale_down in failed:
            raise BlockFailed(
                f"Machines may still run, for scale-down failed{f'; also failed: {which}' if which else ''}.",
                f"The log of {self.scale_down} names them, and when the cloud ends them; clear it, or run "
                "`airflow gpu reap`.",
            )
        if was_marked:
            raise BlockFailed(
                f"The run was marked before its tasks had ended: {which}.",
                "Clear them to run them." if _has_failed(tasks[task_id] for task_id in failed) else _MARKED_AS_WHAT,
            )
        if left := ti.xcom_pull(task_ids=self.scale_down, key=UNCOLLECTED_SUCCESS, map_indexes=ti.map_index):
            raise BlockFailed(
                f"Tasks failed: {which}. The training of pod {', '.join(left)} had succeeded, and nobody had collected"
                " its log and result: its task was marked, or its worker ended.",
                f"{'' if self._have_retries(others) else _COLLECTED_BY_RETRIES} Cleared, it trains again.".strip(),
            )
        raise BlockFailed(f"Tasks failed: {which}.", "See their logs; a task that is cleared gets its nodes again.")

    def _have_retries(self, task_ids: Iterable[str]) -> bool:
        dag = self.get_dag()
        return dag is not None and all(dag.get_task(task_id).retries for task_id in task_ids)

    def _was_marked(self, ti: Any, witness: States) -> bool | None:
        """Return True if the run was marked while tasks of the block were pending; None if unknown."""
        states = set(witness.values())
        if states == {"success"}:
            return False
        if states != {"skipped"}:
            return None
        skipping = [task.task_id for task in self.get_flat_relatives(upstream=True) if task.inherits_from_skipmixin]
        # A mapped operator skips nothing beyond its direct downstream tasks.
        lists = ti.xcom_pull(task_ids=skipping, key=_SKIPPED_BY_OPERATOR, map_indexes=-1) if skipping else []
        return None if any(self.witness in (each or {}).get("skipped", ()) for each in lists) else True


def by_task(breadcrumbs: Iterable[Mapping[str, Any]], *, only_index: int | None = None) -> Mapping[str, States]:
    """Group the result of Airflow's `get_task_breadcrumbs` by task: the run's ended task instances."""
    tasks: dict[str, dict[int, str | None]] = {}
    for each in breadcrumbs:
        if only_index is None or each["map_index"] == only_index:
            tasks.setdefault(each["task_id"], {})[each["map_index"]] = str(each["state"])
    return tasks


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


def failed_tasks(tasks: Mapping[str, States], *, deciding: Sequence[str], was_marked: bool | None) -> list[str]:
    """Return the tasks that make the block fail; none if it has not failed.

    As with a DAG run, leaves decide.

    Args:
        tasks: Task ids, and the states of each one's instances.
        deciding: Ids of the tasks that decide.
        was_marked: Whether the run was marked while tasks were pending: skipped tasks then count as failed. If unknown
            (None), a leaf that was skipped although another task has failed counts.
    """
    failed, skipped = _with_state(tasks, *_FAILED), _with_state(tasks, "skipped")
    if was_marked and skipped:
        return [task_id for task_id in tasks if task_id in (*failed, *skipped)]
    ends = {state for task_id in deciding for state in tasks.get(task_id, {}).values()}
    decisive = {*_FAILED} if was_marked is False else {*_FAILED, "skipped"}
    return failed if ends & decisive else []


def _has_failed(tasks: Iterable[States]) -> bool:
    """Return True if a task failed: only a run that is marked failed ends those so that are running."""
    return any({*states.values()} & {*_FAILED} for states in tasks)


def _with_state(tasks: Mapping[str, States], *states: str) -> list[str]:
    return [task_id for task_id, found in tasks.items() if set(found.values()) & {*states}]

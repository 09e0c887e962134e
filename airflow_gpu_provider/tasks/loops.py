"""Airflow 3.4's task loops: what of this package may not be in one, and which iteration of one a task belongs to.

Airflow 3.3 has no loops, and 3.4's class of them is private: a loop is known by an attribute that no other group has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow.sdk import TaskGroup

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.tasks.roles import Role

NO_ITERATION = -1
"""The iteration of a task that is in no loop, as -1 is the map index of one that is not mapped."""


def check_loops(role: Role, group: TaskGroup | None, pool: object, what: str = "It") -> None:
    """Refuse what the iterations of a task loop would share, although each of them needs its own.

    Args:
        role: The task's role; a block has Ensure's.
        group: The task group that it is in.
        pool: Its pool, to be named; anything else, such as a template, is not.
        what: The block, in words; a task is named by its operator (`of_task`).

    Raises:
        PoolSpecError: It brings nodes or releases them, and is in a loop. Or it is a training in a loop within another
            one, which Airflow 3.4 itself refuses: a task is told the iteration of the innermost loop alone.
    """
    loops = [each.group_id for each in _loops_around(group)]
    name = getattr(pool, "name", "")
    if loops and role in ("ensure", "scale_down"):
        raise PoolSpecError(
            f"{what} is in the task loop {loops[0]}, whose iterations would share their nodes"
            f"{f' of pool {name}' if name else ''}: the end of one would release the next one's.",
            "Put it around the loop: the nodes then stay for all iterations.",
            pool=name,
        )
    if len(loops) > 1 and role == "training":
        raise PoolSpecError(
            f"{what} is in the task loop {loops[0]}, which is in the loop {loops[1]}: iterations of the outer one would"
            " share pods and checkpoints.",
            "Take it out of one of the two.",
        )


def _loops_around(group: TaskGroup | None) -> Iterator[TaskGroup]:
    """Yield the loops that a group is in, or is, the innermost first."""
    while group is not None:
        if hasattr(group, "max_iterations"):
            yield group
        group = group.parent_group


def iteration_of(context: Any) -> int:
    """Return the iteration of the loop that the running task is in, from 0; NO_ITERATION outside of loops.

    It is the same for all tries of a task, also after a clear, which the ids of Airflow's regions are not.
    """
    loop = context.get("loop")
    return NO_ITERATION if loop is None else int(loop.index)


def is_overtaken(context: Any) -> bool:
    """Return whether the loop has gone on to a later iteration than the task's: somebody has cleared the task alone.

    Of a task in a loop, Airflow 3.4 tells a trigger the state of the latest iteration and no other
    (execution_api/routes/task_instances.py: `_find_superseded_ids`).
    """
    ti, iteration = context["ti"], iteration_of(context)
    if iteration == NO_ITERATION:
        return False
    group = context["dag"].get_task(ti.task_id).task_group
    gates = {getattr(each, "gate_task_id", "") for each in _loops_around(group)}
    ended = ti.get_task_breadcrumbs(dag_id=ti.dag_id, run_id=ti.run_id)
    passed = (each for each in ended if each["task_id"] in gates and str(each["state"]) == "success")
    return any(each.get("region_index", NO_ITERATION) >= iteration for each in passed)

"""The tasks after an Ensure in its DAG: how many nodes they want at once, and whether they are still to run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow_gpu_provider.errors import ScaleDownIsOver
from airflow_gpu_provider.tasks.block_tasks import as_parsed, is_of_same_block, value_of
from airflow_gpu_provider.tasks.roles import role_of


def gang_size(ensure: Any) -> int:
    """Return the largest `nodes` of the tasks after Ensure and before its ScaleDownSensor, on the same pool and block.

    0 if no task wants several nodes. A task whose `nodes` is a template is known only when it runs, and does not count.
    """
    return largest(tasks_after(ensure))


def tasks_after(ensure: Any) -> list[Any]:
    """Return the tasks after Ensure and before its ScaleDownSensor, on the same pool and block, as in the DAG file."""
    ensure = as_parsed(ensure)
    after = ensure.get_flat_relatives(upstream=False) if ensure.downstream_task_ids else ()
    mine = [task for task in after if role_of(task) and is_of_same_block(task, ensure)]
    over = {name for task in mine if role_of(task) == "scale_down" for name in task.get_flat_relative_ids()}
    return [task for task in mine if task.task_id not in over]


def trainings_after(ensure: Any) -> list[Any]:
    """Return the trainings among `tasks_after`, in one order: the first that cannot run is the error in each try."""
    trainings = (task for task in tasks_after(ensure) if role_of(task) == "training")
    return sorted(trainings, key=lambda task: str(task.task_id))


def largest(tasks: Iterable[Any]) -> int:
    """Return the largest `nodes` above 1 of tasks that run pods; 0 if there is none."""
    return max(_sizes(tasks), default=0)


def _sizes(tasks: Iterable[Any]) -> Iterator[int]:
    for task in tasks:
        given = (value_of(task, "nodes"), *expanded(task, "nodes")) if role_of(task) == "training" else ()
        yield from (size for size in given if isinstance(size, int) and size > 1)


def expanded(task: Any, name: str) -> Iterable[Any]:
    """Return the values of an argument in a mapped task's instances, as far as the DAG file has them."""
    if not hasattr(task, "partial_kwargs"):
        return ()
    values = getattr(task._get_specified_expand_input(), "value", None)
    if isinstance(values, Mapping):
        return values[name] if isinstance(values.get(name), list | tuple) else ()
    found = values if isinstance(values, list | tuple) else ()
    return [each[name] for each in found if isinstance(each, Mapping) and name in each]


# -- whether work is still to come for which Ensure would bring up nodes, and a scale-down after it --------------

# There is none if the DAG file was changed in mid-run and the block has got new tasks of its own under
# another name, next to a training that already runs; or if Ensure was cleared, and the block's tasks were not.

_OVER = ("success", "failed", "skipped", "upstream_failed", "removed")
_TO_COME = ["null", "scheduled", "queued", "up_for_retry", "up_for_reschedule", "restarting"]
"""The states of tasks that are still to start, or to start again; "null" is Airflow's value for no state yet."""


def work_is_to_come(ensure: Any, ti: Any) -> bool:
    """Return False if all tasks between Ensure and the scale-downs that are its teardowns have started or ended.

    Return True if there are no such tasks.
    """
    tasks = _work(ensure)
    if not tasks:
        return True
    own_index = {} if ti.map_index is None or ti.map_index < 0 else {"map_index": ti.map_index}
    return bool(
        ti.get_ti_count(dag_id=ti.dag_id, task_ids=tasks, run_ids=[ti.run_id], states=list(_TO_COME), **own_index)
    )


def check_scale_down_is_to_come(ensure: Any, ti: Any) -> None:
    """Refuse to bring up nodes that nothing would release: Ensure was cleared without its teardown.

    Raises:
        ScaleDownIsOver: The ScaleDownSensor that is Ensure's teardown has run, and will not run again.
    """
    sensors = [each.task_id for each in _scale_downs_of(ensure)]
    if not sensors:
        return
    found = ti.get_task_states(dag_id=ti.dag_id, task_ids=sensors, run_ids=[ti.run_id], map_index=ti.map_index)
    over = [name for name, state in found.get(ti.run_id, {}).items() if state in _OVER]
    if over:
        raise ScaleDownIsOver(
            f"{', '.join(over)} has already run and would not release the nodes that this task adds.",
            'Clear this task together with its downstream tasks, and not "only failed" ones.',
            pool=ensure.gpu_pool.name,
        )


def _scale_downs_of(ensure: Any) -> Sequence[Any]:
    """Return the ScaleDownSensors that are Ensure's teardowns."""
    direct = ensure.downstream_list if ensure.downstream_task_ids else ()
    return [each for each in direct if each.is_teardown and role_of(each) == "scale_down"]


def _work(ensure: Any) -> list[str]:
    before = {task_id for each in _scale_downs_of(ensure) for task_id in each.get_flat_relative_ids(upstream=True)}
    between = [each for each in ensure.get_flat_relatives(upstream=False) if each.task_id in before] if before else []
    work = [each for each in between if not (each.is_setup or each.is_teardown)]
    return sorted(each.task_id for each in work if role_of(each) != "device_plugin")

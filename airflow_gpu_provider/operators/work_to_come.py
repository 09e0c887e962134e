"""Whether work is still to come for which Ensure would bring nodes, and a scale-down after it, as Airflow says.

Nothing is where the DAG's file was changed in the middle of a run and the block has got new tasks of its own under
another name, next to a training that runs already; or where Ensure was cleared, and the block's tasks were not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_gpu_provider.errors import ScaleDownIsOver

_OWN = ("InstallDevicePluginOperator",)
_OVER = ("success", "failed", "skipped", "upstream_failed", "removed")
_TO_COME = ["null", "scheduled", "queued", "up_for_retry", "up_for_reschedule", "restarting"]
"""The states of tasks that are still to begin, or to begin once more; "null" is Airflow's word for none yet."""


def work_is_to_come(ensure: Any, ti: Any) -> bool:
    """Return False if all tasks between Ensure and the scale-downs that are its teardowns have begun or have ended.

    Return True where there are no such tasks.
    """
    tasks = _work(ensure)
    if not tasks:
        return True
    own_index = {} if ti.map_index is None or ti.map_index < 0 else {"map_index": ti.map_index}
    return bool(
        ti.get_ti_count(dag_id=ti.dag_id, task_ids=tasks, run_ids=[ti.run_id], states=list(_TO_COME), **own_index)
    )


def check_scale_down_is_to_come(ensure: Any, ti: Any) -> None:
    """Refuse to bring nodes that nobody would take away: somebody has cleared Ensure without its teardown.

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
            f"{', '.join(over)} has run already, and would not take the nodes away that this task brings.",
            'Clear this task together with its downstream tasks, and not "only failed" ones.',
            pool=ensure.gpu_pool.name,
        )


def _scale_downs_of(ensure: Any) -> Sequence[Any]:
    """Return the ScaleDownSensors that are Ensure's teardowns."""
    direct = ensure.downstream_list if ensure.downstream_task_ids else ()
    return [each for each in direct if each.is_teardown and each.task_type == "ScaleDownSensor"]


def _work(ensure: Any) -> list[str]:
    before = {task_id for each in _scale_downs_of(ensure) for task_id in each.get_flat_relative_ids(upstream=True)}
    between = [each for each in ensure.get_flat_relatives(upstream=False) if each.task_id in before] if before else []
    return sorted(each.task_id for each in between if not (each.is_setup or each.is_teardown or each.task_type in _OWN))

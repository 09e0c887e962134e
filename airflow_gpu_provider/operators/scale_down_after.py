"""Whether anything releases what Ensure brings: a ScaleDownSensor of the same pool and block is sure to run after it.

Edges are known only when the DAG file has been read whole, so that no operator can ask for it when it is made. A pool
that is only to be prepared, such as in a DAG of its own, has Ensure with nodes=0.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.tasks.block_tasks import BlockTask, as_parsed, releasing
from airflow_gpu_provider.tasks.sure_runs import Scheduled, is_sure_to_run

WAYS_OUT = (
    "Make a ScaleDownSensor its teardown with `.as_teardown(setups=ensure)`, not right after a branch, or put the tasks"
    " into a `with gpu_nodes(...)` block; nodes=0 prepares the pool's groups at size 0, and keep=True says that nodes"
    " stay until then."
)


def starts_machines(pool: GpuPool) -> bool:
    """Return True if Ensure itself starts the pool's machines: they are not given, and no autoscaler adds them."""
    return pool.given_nodes is None and not pool.nodes_come_with_pods


def check_is_released(ensure: Any, *, nodes: int) -> None:
    """Refuse to bring up nodes that nothing would release before the pool's max_runtime is over.

    It is not asked of an Ensure without a DAG, nor in `dag.test()` and `airflow tasks test`, where a person looks on.

    Raises:
        PoolSpecError: No ScaleDownSensor is sure to run after Ensure, and it has neither nodes=0 nor keep=True.
    """
    if ensure.keep or not is_left_running(ensure, nodes=nodes) or _is_tried_out():
        return
    pool, (_, unsure) = ensure.gpu_pool, _scale_downs(ensure)
    raise PoolSpecError(not_released(pool.name, ensure.task_id, pool.max_runtime, unsure), WAYS_OUT, pool=pool.name)


def is_left_running(ensure: Any, *, nodes: int) -> bool:
    """Return True if Ensure starts machines, and no task of its DAG after it is sure to release them."""
    if not nodes or not ensure.has_dag() or not starts_machines(ensure.gpu_pool):
        return False
    sure, _ = _scale_downs(ensure)
    return not sure


def _scale_downs(ensure: Any) -> tuple[list[str], list[str]]:
    """Return the ids of the scale-downs after Ensure that are sure to run, and of those that are not."""
    parsed = as_parsed(ensure)
    after = parsed.get_flat_relatives(upstream=False) if parsed.downstream_task_ids else ()
    found = releasing(BlockTask.of(parsed), {task.task_id: BlockTask.of(task) for task in after})
    tasks = {task.task_id: Scheduled.of(task) for task in ensure.dag.tasks} if found else {}
    sure = [name for name in found if is_sure_to_run(name, ensure.task_id, tasks)]
    return sure, sorted({*found} - {*sure})


def not_released(pool: str, task_id: str, max_runtime: timedelta | str, unsure: Sequence[str]) -> str:
    """Return in a sentence what Ensure would leave; `unsure` are the scale-downs after it that may not run."""
    why = f"no ScaleDownSensor of this pool and block comes after task {task_id}"
    if unsure:
        why = f"task {unsure[0]} comes after task {task_id}, and does not run if a task between them fails or skips it"
    return f"Pool {pool}: {why}, so that its nodes would stay until max_runtime={max_runtime} is over."


def _is_tried_out() -> bool:
    """Return True if Airflow runs the task in the process that asked for it, without a scheduler and a worker."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms

    return isinstance(getattr(task_runner, "SUPERVISOR_COMMS", None), InProcessSupervisorComms)

"""Whether anything releases what Ensure brings: a ScaleDownSensor of the same pool and block comes after it.

Edges are known only when the DAG file has been read whole, so that no operator can ask for it when it is made. A pool
that is only to be prepared, such as in a DAG of its own, has Ensure with nodes=0.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.tasks.block_tasks import BlockTask, as_parsed, is_released

WAYS_OUT = (
    "Put a ScaleDownSensor after it, or the tasks into a `with gpu_nodes(...)` block; nodes=0 prepares the pool's"
    " groups at size 0, and keep=True says that nodes stay until then."
)


def starts_machines(pool: GpuPool) -> bool:
    """Return True if Ensure itself starts the pool's machines: they are not given, and no autoscaler adds them."""
    return pool.given_nodes is None and not pool.nodes_come_with_pods


def check_is_released(ensure: Any, *, nodes: int) -> None:
    """Refuse to bring up nodes that nothing would release before the pool's max_runtime is over.

    It is not asked of an Ensure without a DAG, nor in `dag.test()` and `airflow tasks test`, where a person looks on.

    Raises:
        PoolSpecError: No ScaleDownSensor comes after Ensure, and it has neither nodes=0 nor keep=True.
    """
    if ensure.keep or not is_left_running(ensure, nodes=nodes) or _is_tried_out():
        return
    pool = ensure.gpu_pool
    raise PoolSpecError(not_released(pool.name, ensure.task_id, pool.max_runtime), WAYS_OUT, pool=pool.name)


def is_left_running(ensure: Any, *, nodes: int) -> bool:
    """Return True if Ensure starts machines, and no task of its DAG after it releases them."""
    if not nodes or not ensure.has_dag() or not starts_machines(ensure.gpu_pool):
        return False
    parsed = as_parsed(ensure)
    after = parsed.get_flat_relatives(upstream=False) if parsed.downstream_task_ids else ()
    return not is_released(BlockTask.of(parsed), map(BlockTask.of, after))


def not_released(pool: str, task_id: str, max_runtime: timedelta | str) -> str:
    """Return in a sentence what Ensure would leave."""
    return (
        f"Pool {pool}: no ScaleDownSensor of this pool and block comes after task {task_id}, so that its nodes would"
        f" stay until max_runtime={max_runtime} is over."
    )


def _is_tried_out() -> bool:
    """Return True if Airflow runs the task in the process that asked for it, without a scheduler and a worker."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms

    return isinstance(getattr(task_runner, "SUPERVISOR_COMMS", None), InProcessSupervisorComms)

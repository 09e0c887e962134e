"""gpu_nodes: the block of a DAG in which GPU nodes exist.

    with gpu_nodes(pool, gpus=1):
        GpuPodOperator(task_id="train", ...)

ensure -> device plugin -> [the block's tasks] -> scale down -> done, with the shape that makes a run's colour right:
Ensure is the setup and scale-down its teardown, which runs whatever fails. A DAG run's state comes from its leaves, and
a teardown that succeeds would turn a failed training green: so the leaf is `done`, which looks at what became of the
tasks (see operators/verdict.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup

from airflow_gpu_provider.errors import PoolSpecError

if TYPE_CHECKING:
    from airflow_gpu_provider.pools import GpuPool

_current: ContextVar[GpuPool | None] = ContextVar("gpu_nodes_pool", default=None)


def current_pool() -> GpuPool | None:
    """Return the pool of the innermost `gpu_nodes` block that is open, or None."""
    return _current.get()


@contextmanager
def gpu_nodes(
    gpu_pool: GpuPool,
    *,
    gpus: int | None = None,
    nodes: int | None = None,
    group_id: str | None = None,
    warm: bool = False,
    install_device_plugin: bool = True,
    ensure_args: dict[str, Any] | None = None,
    device_plugin_args: dict[str, Any] | None = None,
    scale_down_args: dict[str, Any] | None = None,
) -> Iterator[TaskGroup]:
    """Open a block of a DAG with GPU nodes: they are there before its first task, and go after its last.

    Tasks in the block keep their own ids; a GpuPodOperator takes the pool from the block. The block is a TaskGroup:
    `extract >> block` and `block >> report` do what they say, and `report` runs only if the block's tasks succeeded.

    Args:
        gpu_pool: The pool.
        gpus: GPUs that a run wants. Default 1 where `nodes` is not given.
        nodes: Nodes that a run wants, instead of `gpus`.
        warm: With scaling="autoscaler": the nodes are up before the first task; see EnsureGpuPoolOperator.
        group_id: Name of the task group, and the prefix of the block's own tasks. Default: the pool's name.
        install_device_plugin: False leaves InstallDevicePluginOperator out: something else provides the plugin.
        ensure_args, device_plugin_args, scale_down_args: More arguments for the block's own operators.

    Raises:
        PoolSpecError: The block holds no task.
    """
    from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
    from airflow_gpu_provider.operators.verdict import BlockVerdictOperator
    from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor

    name = group_id or str(gpu_pool.name)
    group = TaskGroup(group_id=name, prefix_group_id=False, tooltip=f"GPU nodes of pool {gpu_pool.name}")
    token = _current.set(gpu_pool)
    try:
        with group:
            ensure = EnsureGpuPoolOperator(  # type: ignore[no-untyped-call]
                task_id=f"{name}.ensure", gpu_pool=gpu_pool, gpus=gpus, nodes=nodes, warm=warm, **(ensure_args or {})
            ).as_setup()
            plugin = None
            if install_device_plugin:
                from airflow_gpu_provider.operators.device_plugin import InstallDevicePluginOperator

                plugin = InstallDevicePluginOperator(
                    task_id=f"{name}.device_plugin", gpu_pool=gpu_pool, **(device_plugin_args or {})
                )
                ensure >> plugin
            yield group
            own = {ensure.task_id} | ({plugin.task_id} if plugin else set())
            tasks = {task.task_id: task for task in group if task.task_id not in own}
            for task in tasks.values():
                _give_pool(task, gpu_pool)
            roots = [task for task in tasks.values() if not task.upstream_task_ids & tasks.keys()]
            last = [task for task in tasks.values() if not task.downstream_task_ids & tasks.keys()]
            if not roots:
                raise PoolSpecError(f"Block {name} holds no task.", "Put the tasks that need GPUs into it.")
            scale_down = ScaleDownSensor(task_id=f"{name}.scale_down", gpu_pool=gpu_pool, **(scale_down_args or {}))
            done = BlockVerdictOperator(
                task_id=f"{name}.done",
                block_tasks=[*tasks, scale_down.task_id],
                deciding_tasks=[*(name for name in tasks if _is_last_work(name, tasks)), scale_down.task_id],
            )
    finally:
        _current.reset(token)
    (plugin or ensure) >> roots
    last >> scale_down.as_teardown(setups=ensure, on_failure_fail_dagrun=True)
    scale_down >> done.as_teardown(setups=ensure, on_failure_fail_dagrun=True)


def _give_pool(task: Any, gpu_pool: GpuPool) -> None:
    """Give the pool to a mapped task that has none; its operators are built when it runs, with no block around them."""
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    if isinstance(task, MappedOperator) and "gpu_pool" in task.template_fields:
        mapped = getattr(task._get_specified_expand_input(), "value", None)
        if not (isinstance(mapped, Mapping) and "gpu_pool" in mapped):
            task.partial_kwargs.setdefault("gpu_pool", gpu_pool)


def _is_last_work(name: str, tasks: dict[str, Any]) -> bool:
    """Say whether nothing but teardowns comes after a task of the block."""
    after = tasks[name].downstream_task_ids & tasks.keys()
    return not tasks[name].is_teardown and all(tasks[each].is_teardown for each in after)

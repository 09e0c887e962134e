"""gpu_nodes: the block of a DAG in which GPU nodes exist.

    with gpu_nodes(pool, gpus=1):
        GpuPodOperator(task_id="train", ...)

It has six tasks around yours: begin -> ensure -> device plugin -> [yours] -> scale down -> witness -> done, with the
shape that makes a run's colour right: Ensure is the setup and scale-down its teardown, which runs whatever
fails. A teardown runs if one of its setups has succeeded: that is what `begin` is for, so that Ensure's worker may die
without a word. A DAG run's state comes from its leaves, and a teardown that succeeds would turn a failed training
green: so the leaf is `done`, which looks at what became of the tasks, and at `witness`, which only a mark on the run
skips (see operators/block_verdict.py).
A seventh, `after_branch`, comes between a branch that ends the block and scale-down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from airflow.sdk import BaseOperator, TaskGroup, TriggerRule
from airflow.sdk.exceptions import DuplicateTaskIdFound

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.gpu_pool import GpuPool
from airflow_gpu_provider.pools.values import is_template, is_whole
from airflow_gpu_provider.tasks.loops import check_loops
from airflow_gpu_provider.tasks.pool_operator import Block, argument_defaults, opened
from airflow_gpu_provider.tasks.roles import OF_A_BLOCK, role_of
from airflow_gpu_provider.tasks.sure_runs import is_branch


class _BlockGroup(TaskGroup):
    """A task group that adds nothing to its tasks' ids: they are what they would be in the group around it."""

    def add(self, task: Any) -> Any:
        # Airflow gives a group in one that adds nothing its bare name, whatever is around the two.
        if isinstance(task, TaskGroup) and task._group_id:
            task.group_display_name = task.group_display_name or task._group_id
            object.__setattr__(task, "_group_id", self.child_id(task._group_id))  # its setter refuses dots
        return super().add(task)

    def child_id(self, label: str) -> str:
        if self.parent_group is None:
            return label
        within: str = self.parent_group.child_id(label)  # type: ignore[no-untyped-call]
        return within


@contextmanager
def gpu_nodes(
    gpu_pool: GpuPool,
    *,
    gpus: int | None = None,
    nodes: int | None = None,
    group_id: str | None = None,
    max_cost: float | str | None = None,
    prefetch: Sequence[str] = (),
    install_device_plugin: bool = True,
    ensure_args: dict[str, Any] | None = None,
    device_plugin_args: dict[str, Any] | None = None,
    scale_down_args: dict[str, Any] | None = None,
) -> Iterator[TaskGroup]:
    """Open a block of a DAG with GPU nodes: they are there before its first task, and go after its last.

    Tasks in the block keep their own ids; a GpuPodOperator takes the pool from the block. The block is a TaskGroup:
    `extract >> block` and `block >> report` do what they say, and `report` runs only if the block's tasks succeeded.
    Each block wants nodes for itself, several of one run on one pool too, and so does each map index of a task group
    around it.

    Args:
        gpu_pool: The pool.
        gpus: GPUs that a run wants. Default 1 where `nodes` is not given, and as many nodes as a task in the block
            wants at once.
        nodes: Nodes that a run wants, instead of `gpus`. Where a task runs on several nodes, so many of them come in
            one zone.
        group_id: Name of the task group, and the prefix of the block's own tasks. Default: the pool's name. The second
            block of a pool needs one.
        max_cost: What the block's nodes may cost, over all tries of the run, in the currency of the pool's prices. When
            it is used but for what machines may cost after that while nobody looks (docs/cost.md), pods get SIGTERM,
            and their tasks fail with BudgetExceeded, which is not retried. Default: no limit.
        prefetch: Images of the block's trainings: the nodes pull them from the moment they join, beside driver and
            device plugin, not after them (docs/fast-start.md). Default: none.
        install_device_plugin: False leaves InstallDevicePluginOperator out: something else provides the plugin.
        ensure_args, device_plugin_args, scale_down_args: More arguments for the block's own operators. Of default_args
            they take only what says how Airflow runs a task, see _TAKEN_BY_ALL. `depends_on_past` and
            `wait_for_downstream` of any task in the block hold for the block: it begins when that of the run before
            has succeeded.

    Raises:
        PoolSpecError: The block holds no task, another one has its name, or an argument for its own operators is one
            that the block itself gives; or it is in a task loop, around which it has to be.
    """
    from airflow.providers.standard.operators.empty import EmptyOperator

    from airflow_gpu_provider.operators.block_verdict import BlockVerdictOperator
    from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
    from airflow_gpu_provider.operators.tasks_after_ensure import largest
    from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor

    if not isinstance(gpu_pool, GpuPool):
        raise PoolSpecError(f"gpu_nodes: gpu_pool={gpu_pool!r}.", "Give the pool itself, such as an EksGpuPool.")
    if is_whole(nodes) and int(nodes or 0) == 0:
        fix = "Want at least one; EnsureGpuPoolOperator takes nodes=0, to prepare a pool in a DAG of its own."
        raise PoolSpecError(f"gpu_nodes: pool {gpu_pool.name} is given nodes=0.", fix)
    if group_id is None and is_template(gpu_pool.name):
        raise PoolSpecError(
            f"gpu_nodes: the pool's name {gpu_pool.name} is known when the run begins, and the block's own tasks need"
            " theirs when the DAG is parsed.",
            'Give the block a name: group_id="gpus".',
        )
    name = group_id or str(gpu_pool.name)
    group = _group(name, gpu_pool)
    check_loops("ensure", group, gpu_pool, f"Block {name}")
    block = Block(gpu_pool, _block_id(group))
    with opened(block), group:
        begin = _own_task(EmptyOperator, f"{name}.begin", taken=_TAKEN_BY_BEGIN)
        ensure = _own_task(
            EnsureGpuPoolOperator,
            f"{name}.ensure",
            {
                **{"gpu_pool": gpu_pool, "gpus": gpus, "nodes": nodes, "max_cost": max_cost, "prefetch": prefetch},
                "block_id": block.block_id,
            },
            taken=_TAKEN_BY_SETUPS,
            more=ensure_args,
        )
        begin.as_setup() >> ensure.as_setup()  # type: ignore[no-untyped-call]
        plugin = None
        if install_device_plugin:
            from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator

            plugin = _own_task(
                InstallDevicePluginOperator,
                f"{name}.device_plugin",
                {"gpu_pool": gpu_pool},
                taken=_TAKEN_BY_SETUPS,
                more=device_plugin_args,
            )
            ensure >> plugin
        yield group
        own = [begin.task_id, ensure.task_id, *([plugin.task_id] if plugin else [])]
        tasks = {task.task_id: task for task in group if task.task_id not in own}
        for task in tasks.values():
            _give_pool(task, block)
        if ensure.gang is None:
            ensure.check_counts(largest(tasks.values()))
        roots = [task for task in tasks.values() if not task.upstream_task_ids & tasks.keys()]
        last = [task for task in tasks.values() if not task.downstream_task_ids & tasks.keys()]
        if not roots:
            raise PoolSpecError(f"Block {name} holds no task.", "Put the tasks that need GPUs into it.")
        scale_down = _own_task(
            ScaleDownSensor,
            f"{name}.scale_down",
            {"gpu_pool": gpu_pool, "block_id": block.block_id},
            taken=_TAKEN_BY_ALL,
            more=scale_down_args,
        )
        # A setup, so that what comes after the block, or after a task group around it, does not come after this.
        witness = _own_task(
            EmptyOperator,
            f"{name}.witness",
            {"trigger_rule": TriggerRule.ALL_DONE_SETUP_SUCCESS},
            taken=_TAKEN_BY_ALL,
        )
        deciding = [*(name for name in tasks if _is_last_work(name, tasks)), scale_down.task_id]
        done = _own_task(
            BlockVerdictOperator,
            f"{name}.done",
            {
                "block_tasks": [*own, *(name for name in tasks if not _is_witness(tasks[name])), scale_down.task_id],
                "deciding_tasks": deciding,
                "scale_down": scale_down.task_id,
                "witness": witness.task_id,
            },
            taken=_TAKEN_BY_ALL,
        )
        _wait_for_the_past_at(begin, list(group))
        branches = [task for task in last if is_branch(task)]
        if branches:
            # A branch skips what comes right after it, teardowns too.
            after = _own_task(EmptyOperator, f"{name}.after_branch", taken=_TAKEN_BY_ALL)
            branches >> after
            last = [*(task for task in last if task not in branches), after]
    (plugin or ensure) >> roots
    last >> scale_down.as_teardown(setups=[begin, ensure], on_failure_fail_dagrun=True)
    scale_down >> witness.as_setup() >> done  # type: ignore[no-untyped-call]
    scale_down >> done.as_teardown(setups=[begin, ensure], on_failure_fail_dagrun=True)


def _group(name: str, gpu_pool: GpuPool) -> TaskGroup:
    try:
        return _BlockGroup(group_id=name, prefix_group_id=False, tooltip=f"GPU nodes of pool {gpu_pool.name}")
    except DuplicateTaskIdFound as error:
        raise PoolSpecError(
            f"Two gpu_nodes blocks of pool {gpu_pool.name} are named {name}.", "Give one of them a group_id=."
        ) from error


def _block_id(group: TaskGroup) -> str:
    """Return a name that no other block of a run has; in a mapped task group, each map index has a block of its own."""
    is_mapped = next(group.iter_mapped_task_groups(), None) is not None
    return f"{group.group_id}[{{{{ ti.map_index }}}}]" if is_mapped else str(group.group_id)


def _give_pool(task: Any, block: Block) -> None:
    """Give pool and block to a mapped task that has none: its operators are built when it runs, outside of a block."""
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    if not isinstance(task, MappedOperator) or role_of(task) not in OF_A_BLOCK:
        return
    mapped = getattr(task._get_specified_expand_input(), "value", None)
    if isinstance(mapped, Mapping) and "gpu_pool" in mapped:
        return
    if task.partial_kwargs.setdefault("gpu_pool", block.pool).name == block.pool.name:
        task.partial_kwargs.setdefault("block_id", block.block_id)


def _is_last_work(name: str, tasks: dict[str, Any]) -> bool:
    """Return True for a task of the block that is work, and that nothing but teardowns comes after."""
    after = tasks[name].downstream_task_ids & tasks.keys()
    return not (tasks[name].is_setup or tasks[name].is_teardown) and all(tasks[each].is_teardown for each in after)


def _is_witness(task: Any) -> bool:
    """Return True for the witness of a block in the block: a mark on the run skips it also after all work has ended."""
    return bool(task.is_setup) and task.trigger_rule == TriggerRule.ALL_DONE_SETUP_SUCCESS


# -- how the block makes the tasks of its own, so that nothing reaches them that is meant for the author's -------

# A DAG's default_args are for its trainings: an image, a namespace, soft_fail for its sensors. The block's own tasks
# take from there only what says how Airflow runs a task, and scale-down and verdict nothing of it that could keep them
# from running or hide how they ended. Everything else has the operator's own default, or what the author gives in
# `ensure_args`, `device_plugin_args` and `scale_down_args`.

Operator = TypeVar("Operator", bound=BaseOperator)

_TAKEN_BY_ALL = frozenset(
    {
        *("owner", "email", "email_on_retry", "email_on_failure"),
        *("on_execute_callback", "on_failure_callback", "on_success_callback", "on_retry_callback"),
        "on_skipped_callback",
        *("queue", "executor", "executor_config", "run_as_user", "resources", "priority_weight"),
        *("start_date", "end_date", "sla", "do_xcom_push", "map_index_template", "logger_name"),
        *("doc", "doc_md", "doc_json", "doc_yaml", "doc_rst"),
    }
)
"""What each of the block's own tasks takes from default_args."""

_TAKEN_BY_SETUPS = _TAKEN_BY_ALL | {
    *("retries", "retry_delay", "retry_exponential_backoff", "max_retry_delay", "retry_policy", "execution_timeout"),
    *("pool", "pool_slots", "weight_rule", "max_active_tis_per_dag", "max_active_tis_per_dagrun"),
    *("pre_execute", "post_execute"),
}
"""What Ensure and the device plugin's operator take besides: scale-down runs whatever becomes of them."""

_TAKEN_BY_BEGIN = _TAKEN_BY_SETUPS | {
    *("trigger_rule", "depends_on_past", "wait_for_downstream", "wait_for_past_depends_before_skipping"),
}
"""What the block's first task takes besides: it decides for the block whether and when it starts."""

_OF_THE_BLOCK = frozenset({"task_id", "dag", "task_group", "trigger_rule", "start_date", "end_date"})


def _own_task(
    operator: type[Operator],
    task_id: str,
    given: Mapping[str, Any] | None = None,
    *,
    taken: frozenset[str],
    more: Mapping[str, Any] | None = None,
) -> Operator:
    """Return a task of the block's own.

    Args:
        operator: Its class.
        task_id: Its id.
        given: Arguments that the block gives.
        taken: Names of those that default_args may give; all others have their defaults.
        more: Arguments of the block's author for it.

    Raises:
        PoolSpecError: `more` has an argument that is the block's own.
    """
    given = given or {}
    refused = sorted((more or {}).keys() & {*_OF_THE_BLOCK, *given})
    if refused:
        raise PoolSpecError(
            f"{task_id}: {refused[0]}= is not for one of the block's own tasks.",
            f"Give it to gpu_nodes, if that has it, or leave {refused[0]} out.",
        )
    own = {name: default for name, default in argument_defaults(operator).items() if name not in taken}
    return operator(task_id=task_id, **{**own, **given, **(more or {})})


def _wait_for_the_past_at(begin: BaseOperator, tasks: Sequence[Any]) -> None:
    """Let the block as a whole depend on the run before where a task of it does: its machines would wait for that task.

    Ensure, scale-down and verdict come right after `begin`, so wait_for_downstream makes it wait until that run's block
    has succeeded.

    Args:
        begin: The block's first task.
        tasks: All of the block's tasks, `begin` among them.
    """
    waiting = [task for task in tasks if task.depends_on_past or task.wait_for_downstream]
    if not waiting:
        return
    begin.wait_for_past_depends_before_skipping = any(task.wait_for_past_depends_before_skipping for task in waiting)
    for task in waiting:
        task.depends_on_past = task.wait_for_downstream = False
    begin.depends_on_past = begin.wait_for_downstream = True
    begin.ignore_first_depends_on_past = True  # tasks that have run before may have come into a block that has not

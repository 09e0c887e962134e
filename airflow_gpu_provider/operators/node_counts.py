"""How many nodes EnsureGpuPoolOperator brings up, how many of them in one zone, and whether work is pending."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from airflow_gpu_provider.errors import PoolSpecError, ScaleDownIsOver
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.values import is_template, is_whole
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


def largest(tasks: Iterable[Any]) -> int:
    """Return the largest `nodes` above 1 of tasks that run pods; 0 if there is none."""
    return max(_sizes(tasks), default=0)


@dataclass(frozen=True)
class NodeCounts:
    """How many nodes an EnsureGpuPoolOperator's arguments ask for; templates are rendered, or unknown."""

    pool: GpuPool
    _: KW_ONLY
    gpus: Any
    nodes: Any
    at_least: Any
    gang: Any

    @property
    def of_one_zone(self) -> int:
        """How many of the nodes must be in one zone; 0 if each may be anywhere."""
        gang = int(self.gang)
        return gang if gang > 1 else 0

    def check_if_known(self) -> None:
        """Check what is known when the DAG is parsed; raises PoolSpecError like `wanted` and `fewest`."""
        given = [value for value in (self.gpus, self.nodes, self.at_least, self.gang) if value is not None]
        if all(map(is_whole, given)):
            self.fewest()
        else:
            self._check_numbers()

    def wanted(self) -> int:
        """Return how many nodes the run wants; 0 only where `nodes` is 0.

        Raises:
            PoolSpecError: The pool cannot have that many, or they cannot hold the gang.
        """
        self._check_numbers()
        gang, most = self.of_one_zone, self.pool.max_nodes
        if gang > most:
            raise self._error(
                f"a task wants {gang} nodes at once, and max_nodes={most}",
                "Raise the pool's max_nodes, or lower the task's nodes: of a workload, its manifest's number of pods.",
            )
        nodes = None if self.nodes is None else int(self.nodes)
        gpus = None if self.gpus is None else int(self.gpus)
        if nodes is None and gpus is None:
            return max(self.pool.nodes_for(gpus=1, nodes=None), gang)
        wanted = 0 if nodes == 0 and gpus is None else self.pool.nodes_for(gpus=gpus, nodes=nodes)
        if wanted < gang:
            raise self._error(
                f"a task wants {gang} nodes at once, and EnsureGpuPoolOperator brings {wanted}",
                f"Give nodes={gang}, or as many GPUs as so many nodes have; without both it brings {gang} by itself.",
            )
        return wanted

    def fewest(self) -> int | None:
        """Return how few nodes suffice, if fewer than wanted are allowed.

        Raises:
            PoolSpecError: They are more than wanted, or a gang needs all of its nodes.
        """
        wanted = self.wanted()
        if self.at_least is None:
            return None
        if self.of_one_zone:
            raise self._error(
                f"at_least={self.at_least}, and a task wants {self.gang} nodes at once",
                "Leave at_least out: with fewer nodes that task would not run.",
            )
        at_least, counts_nodes = int(self.at_least), self.nodes is not None
        few = self.pool.nodes_for(gpus=None if counts_nodes else at_least, nodes=at_least if counts_nodes else None)
        if few > wanted:
            raise self._error(
                f"at_least={at_least} is {few} nodes; {wanted} are wanted",
                "It counts what the other argument counts: GPUs, or nodes where nodes= is given.",
            )
        return few

    def _check_numbers(self) -> None:
        for name in ("gpus", "nodes", "at_least", "gang"):
            if _is_no_count(value := getattr(self, name)):
                raise self._error(f"{name}={value!r}", "Use a whole number.")

    def _error(self, what: str, fix: str) -> PoolSpecError:
        return PoolSpecError(f"Pool {self.pool.name}: {what}.", fix, pool=self.pool.name)


def _is_no_count(value: Any) -> bool:
    """Return True for a value that is neither a whole number nor a future one: a template, or another task's result."""
    is_known = isinstance(value, float | bool) or (isinstance(value, str) and not is_template(value))
    return is_known and not is_whole(value)


def _sizes(tasks: Iterable[Any]) -> Iterator[int]:
    for task in tasks:
        given = (value_of(task, "nodes"), *_expanded(task, "nodes")) if role_of(task) == "training" else ()
        yield from (size for size in given if isinstance(size, int) and size > 1)


def _expanded(task: Any, name: str) -> Iterable[Any]:
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

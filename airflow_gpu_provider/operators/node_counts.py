"""How many nodes EnsureGpuPoolOperator brings, and how many of them the tasks after it want in one zone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import GpuPool


def gang_size(ensure: Any) -> int:
    """Return the largest `nodes` of the tasks after Ensure and before its ScaleDownSensor, on the same pool and block.

    0 where no task wants several nodes. A task whose `nodes` is a template is known only when it runs, and does not
    count.
    """
    ensure = _as_parsed(ensure)
    after = ensure.get_flat_relatives(upstream=False) if ensure.downstream_task_ids else ()
    mine = [task for task in after if _value(task, "gpu_pool") is not None and _is_of_same_block(task, ensure)]
    over = {name for task in mine if _kind(task) == "ScaleDownSensor" for name in task.get_flat_relative_ids()}
    return largest(task for task in mine if task.task_id not in over)


def largest(tasks: Iterable[Any]) -> int:
    """Return the largest `nodes` above 1 of tasks that run pods; 0 where there is none."""
    return max(_sizes(tasks), default=0)


@dataclass(frozen=True)
class NodeCounts:
    """What an EnsureGpuPoolOperator's arguments say of how many nodes it brings; templates are rendered, or unknown."""

    pool: GpuPool
    _: KW_ONLY
    gpus: Any
    nodes: Any
    at_least: Any
    gang: Any

    @property
    def of_one_zone(self) -> int:
        """How many of the nodes have to be in one zone; 0 where each may be anywhere."""
        gang = int(self.gang)
        return gang if gang > 1 else 0

    def check_if_known(self) -> None:
        """Check what is known when the DAG is parsed; raises PoolSpecError as `wanted` and `fewest` do."""
        if all(value is None or isinstance(value, int) for value in (self.gpus, self.nodes, self.at_least, self.gang)):
            self.fewest()

    def wanted(self) -> int:
        """Return how many nodes the run wants.

        Raises:
            PoolSpecError: The pool cannot have so many, or they cannot hold the gang.
        """
        gang, most = self.of_one_zone, self.pool.max_nodes
        if gang > most:
            raise self._error(
                f"a task wants {gang} nodes at once, and max_nodes={most}",
                "Raise the pool's max_nodes, or lower the task's nodes.",
            )
        nodes = None if self.nodes is None else int(self.nodes)
        gpus = None if self.gpus is None else int(self.gpus)
        if nodes is None and gpus is None:
            return max(self.pool.nodes_for(gpus=1, nodes=None), gang)
        wanted = self.pool.nodes_for(gpus=gpus, nodes=nodes)
        if wanted < gang:
            raise self._error(
                f"a task wants {gang} nodes at once, and EnsureGpuPoolOperator brings {wanted}",
                f"Give nodes={gang}, or as many GPUs as so many nodes have; without both it brings {gang} by itself.",
            )
        return wanted

    def fewest(self) -> int | None:
        """Return how few nodes will do, where fewer than wanted may.

        Raises:
            PoolSpecError: They are more than are wanted, or a gang needs all of its nodes.
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

    def _error(self, what: str, fix: str) -> PoolSpecError:
        return PoolSpecError(f"Pool {self.pool.name}: {what}.", fix, pool=self.pool.name)


def _as_parsed(task: Any) -> Any:
    """Return the task as its DAG file has it: a running one has its templates rendered, and the others have not."""
    dag = getattr(task, "dag", None) if task.has_dag() else None
    return dag.get_task(task.task_id) if dag is not None else task


def _sizes(tasks: Iterable[Any]) -> Iterator[int]:
    for task in tasks:
        given = () if _kind(task) == "EnsureGpuPoolOperator" else (_value(task, "nodes"), *_expanded(task, "nodes"))
        yield from (size for size in given if isinstance(size, int) and size > 1)


def _expanded(task: Any, name: str) -> Iterable[Any]:
    """Return the values that a mapped task's instances have of an argument, as far as the DAG file says them."""
    if not hasattr(task, "partial_kwargs"):
        return ()
    values = getattr(task._get_specified_expand_input(), "value", None)
    if isinstance(values, Mapping):
        return values[name] if isinstance(values.get(name), list | tuple) else ()
    found = values if isinstance(values, list | tuple) else ()
    return [each[name] for each in found if isinstance(each, Mapping) and name in each]


def _is_of_same_block(task: Any, ensure: Any) -> bool:
    pool, own = _value(task, "gpu_pool"), _value(ensure, "gpu_pool")
    is_same_pool = getattr(pool, "name", None) == getattr(own, "name", "")
    return is_same_pool and (_value(task, "block_id") or "") == (_value(ensure, "block_id") or "")


def _kind(task: Any) -> str:
    return str(task.task_type)


def _value(task: Any, name: str) -> Any:
    """Return an argument of a task; of a mapped one what all its instances share."""
    return (
        getattr(task, "partial_kwargs", {}).get(name) if hasattr(task, "partial_kwargs") else getattr(task, name, None)
    )

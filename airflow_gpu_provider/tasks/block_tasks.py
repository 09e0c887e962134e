"""Which tasks of a DAG are of one pool and block, by what its file gives them: a running task's templates are rendered.

An argument of which the file has no value, as it is another task's result or differs by map index, may be any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.tasks.roles import Role, role_of


class BlockTask(NamedTuple):
    """A task's role, and the names of its pool and block; None for one that the DAG file does not have."""

    role: Role
    pool: str | None
    block: str | None

    @classmethod
    def of(cls, task: Any) -> BlockTask:
        """Return it for a task of a DAG, a mapped one too, as in the DAG file."""
        pool, block = getattr(value_of(task, "gpu_pool"), "name", None), value_of(task, "block_id")
        if block is None and not hasattr(task, "partial_kwargs"):
            block = ""
        return cls(role_of(task), _known(pool), _known(block))

    def may_share_nodes_of(self, other: BlockTask) -> bool:
        """Return False if it is of another pool, or of another block of that pool."""
        pairs = ((self.pool, other.pool), (self.block, other.block))
        return all(one is None or another is None or _may_equal(one, another) for one, another in pairs)


def releasing(ensure: BlockTask, after: Mapping[str, BlockTask]) -> list[str]:
    """Return which of the tasks after an Ensure, by their ids, release what it brings."""
    return [name for name, each in after.items() if each.role == "scale_down" and each.may_share_nodes_of(ensure)]


def as_parsed(task: Any) -> Any:
    """Return the task as in its DAG file."""
    dag = getattr(task, "dag", None) if task.has_dag() else None
    return dag.get_task(task.task_id) if dag is not None else task


def is_of_same_block(task: Any, ensure: Any) -> bool:
    """Return True if both name the same pool and block."""
    pool, own = value_of(task, "gpu_pool"), value_of(ensure, "gpu_pool")
    is_same_pool = getattr(pool, "name", None) == getattr(own, "name", "")
    return is_same_pool and (value_of(task, "block_id") or "") == (value_of(ensure, "block_id") or "")


def value_of(task: Any, name: str) -> Any:
    """Return an argument of a task; for a mapped one, the value that all its instances share."""
    return (
        getattr(task, "partial_kwargs", {}).get(name) if hasattr(task, "partial_kwargs") else getattr(task, name, None)
    )


def _known(name: object) -> str | None:
    return name if isinstance(name, str) else None


def _may_equal(one: str, another: str) -> bool:
    return one == another or is_template(one) or is_template(another)

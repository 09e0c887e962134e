"""Whether a DAG has one spec for each pool name, as far as its file says when it is parsed.

Its Ensures would bring machines that the other's tasks exclude: between DAGs demand tells that, within one nothing.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.tasks.block_tasks import value_of
from airflow_gpu_provider.tasks.roles import role_of


def check_one_spec_in_dag(task_id: str, pool: Any, dag: DAG | None) -> None:
    """Refuse an Ensure whose pool has the name of an earlier one's in the DAG, and allows other machines.

    Pools of one name in two clusters are two. What holds a template is not compared.

    Raises:
        PoolSpecError: There is such a task; it names both, and the difference.
    """
    if dag is None or not _is_known(pool):
        return
    for task in dag.tasks:
        other = value_of(task, "gpu_pool")
        if role_of(task) != "ensure" or task.task_id == task_id or not _is_known(other):
            continue
        is_same = (other.name, other.cluster_identity) == (pool.name, pool.cluster_identity)
        if is_same and (differences := pool.allowed.differences(other.allowed)):
            raise PoolSpecError(
                f"Task {task.task_id} has another spec of pool {pool.name}: {'; '.join(differences)}.",
                "Use one spec for both, or another pool name for one of them.",
                pool=pool.name,
                differences=differences,
            )


def _is_known(pool: Any) -> bool:
    return isinstance(pool, GpuPool) and not pool.to_render(("name", *pool.allowed_by))

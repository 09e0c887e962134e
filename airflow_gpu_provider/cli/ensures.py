"""What `airflow gpu doctor` finds in serialized DAGs: Ensures that will refuse to start machines nothing would release.

A serialized mapped task has no role: one that has a pool counts as if it released any, and Ensures that are mapped are
left to themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from airflow_gpu_provider.cli.metadata import named, serialized_tasks
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.operators.scale_down_after import WAYS_OUT, not_released, starts_machines
from airflow_gpu_provider.pools.values import deserialize_pool, is_template
from airflow_gpu_provider.reports.doctor import Finding
from airflow_gpu_provider.tasks.block_tasks import BlockTask, is_released

Fields = Mapping[str, Any]
"""A task as Airflow's database has it."""


def ensures_left_alone(dag_id: str | None, pools: Collection[str]) -> list[Finding]:
    """Return a problem for each Ensure after which no ScaleDownSensor comes, of all DAGs or of one.

    `pools` are the pools asked about; empty for all.
    """
    alone = [(dag, task) for dag, tasks in serialized_tasks(dag_id) for task in left_alone(tasks)]
    found = [(dag, task, named(task["gpu_pool"]).name) for dag, task in alone]
    return [
        Finding(
            pool=pool,
            check="scale-down",
            result="problem",
            message=f"DAG {dag}: {not_released(pool, task['task_id'], deserialize_pool(task['gpu_pool']).max_runtime)}",
            fix=WAYS_OUT,
        )
        for dag, task, pool in found
        if not pools or pool in pools
    ]


def left_alone(tasks: Collection[Fields]) -> Iterator[Fields]:
    """Yield the Ensures of a DAG that would start machines, and after which nothing releases these."""
    by_id = {task["task_id"]: task for task in tasks}
    for task in tasks:
        if task.get("gpu_role") == "ensure" and _brings_nodes(task):
            after = map(_block_task, _after(task, by_id))
            if not is_released(_block_task(task), after):
                yield task


def _brings_nodes(ensure: Fields) -> bool:
    nodes = ensure.get("nodes")
    if ensure.get("keep") or ensure.get("plan_only") or nodes in (0, "0") or is_template(nodes):
        return False
    try:
        return starts_machines(deserialize_pool(ensure["gpu_pool"]))
    except (GpuError, KeyError, TypeError):  # no pool, or one that its own DAG makes: the other checks tell of it
        return False


def _block_task(task: Fields) -> BlockTask:
    if task.get("_is_mapped"):
        return BlockTask("scale_down" if "gpu_pool" in task.get("template_fields", ()) else "", None, None)
    pool, block = task.get("gpu_pool"), task.get("block_id", "")
    name = pool.get("name") if isinstance(pool, Mapping) else None
    return BlockTask(task.get("gpu_role", ""), name, block if isinstance(block, str) else None)


def _after(task: Fields, by_id: Mapping[str, Fields]) -> Iterable[Fields]:
    found: dict[str, Fields] = {}
    to_come = [*task.get("downstream_task_ids", ())]
    while to_come:
        name = to_come.pop()
        if name not in found and name in by_id:
            found[name] = by_id[name]
            to_come += by_id[name].get("downstream_task_ids", ())
    return found.values()

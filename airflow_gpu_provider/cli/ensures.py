"""What `airflow gpu doctor` finds in serialized DAGs: Ensures that will refuse to start machines nothing would release.

A serialized mapped task has no role: one that has a pool counts as if it released any, and Ensures that are mapped are
left to themselves. Branches are known by their names, as a custom operator's class may not be there to be asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from airflow_gpu_provider.cli.metadata import named, serialized_tasks
from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.operators.scale_down_after import WAYS_OUT, not_released, starts_machines
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.reports.doctor import Finding
from airflow_gpu_provider.tasks.block_tasks import BlockTask, releasing
from airflow_gpu_provider.tasks.sure_runs import Scheduled, is_sure_to_run, reached

Fields = Mapping[str, Any]
"""A task as Airflow's database has it."""


def ensures_left_alone(dag_id: str | None, pools: Collection[str]) -> list[Finding]:
    """Return a problem for each Ensure after which no ScaleDownSensor is sure to run, of all DAGs or of one.

    `pools` are the pools asked about; empty for all.
    """
    alone = [(dag, task, unsure) for dag, tasks in serialized_tasks(dag_id) for task, unsure in left_alone(tasks)]
    found = [(dag, task, unsure, named(task["gpu_pool"]).name) for dag, task, unsure in alone]
    return [
        Finding(
            pool=pool,
            check="scale-down",
            result="problem",
            message=f"DAG {dag}: {_left(task, pool, unsure)}",
            fix=WAYS_OUT,
        )
        for dag, task, unsure, pool in found
        if not pools or pool in pools
    ]


def left_alone(tasks: Collection[Fields]) -> Iterator[tuple[Fields, list[str]]]:
    """Yield the Ensures of a DAG that would start machines which nothing is sure to release, and what may release."""
    by_id = {task["task_id"]: task for task in tasks}
    following = {name: _following(task, by_id) for name, task in by_id.items()}
    scheduled = cache(lambda: _scheduled(by_id, following))  # most DAGs have no Ensure
    for task in tasks:
        if task.get("gpu_role") == "ensure" and _brings_nodes(task):
            names = reached(following[task["task_id"]], following.__getitem__)
            found = sorted(releasing(_block_task(task), {name: _block_task(by_id[name]) for name in names}))
            if not any(is_sure_to_run(name, task["task_id"], scheduled()) for name in found):
                yield task, found


def _left(ensure: Fields, pool: str, unsure: Sequence[str]) -> str:
    return not_released(pool, ensure["task_id"], deserialize_pool(ensure["gpu_pool"]).max_runtime, unsure)


def _scheduled(by_id: Mapping[str, Fields], following: Mapping[str, Iterable[str]]) -> dict[str, Scheduled]:
    upstream: dict[str, list[str]] = {name: [] for name in by_id}
    for name, after in following.items():
        for each in after:
            upstream[each].append(name)
    return {name: _scheduled_one(task, upstream[name]) for name, task in by_id.items()}


def _scheduled_one(task: Fields, upstream: Collection[str]) -> Scheduled:
    given = {**task, **task.get("partial_kwargs", {})}
    skips = bool(task.get("_can_skip_downstream"))
    return Scheduled(
        upstream=upstream,
        rule=str(given.get("trigger_rule", "all_success")),
        is_setup=bool(given.get("is_setup")),
        is_teardown=bool(given.get("is_teardown")),
        skips=skips,
        is_branch=skips and any(each in task.get("task_type", "") for each in ("Branch", "LatestOnly")),
    )


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


def _following(task: Fields, by_id: Collection[str]) -> list[str]:
    return [name for name in task.get("downstream_task_ids", ()) if name in by_id]

"""What GpuPodOperator(nodes=N) refuses: what cannot work on several nodes, seen when the DAG is parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pool_operator import duration
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.values import is_template

_OF_ONE_POD = {
    "hostname": "the Job gives each rank a host name of its own",
    "subdomain": "the ranks have that of the gang's headless Service",
    "callbacks": "they are told of one pod",
    "progress_callback": "it is told of one pod's log",
}


def check_nodes(task_id: str, nodes: Any, pool: Any, given: Mapping[str, Any]) -> None:
    """Check `nodes`, and the other arguments of KubernetesPodOperator that were given with it.

    Raises:
        PoolSpecError: No whole number from 1 on, more than the pool may have, or an argument that is for one pod.
    """
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise PoolSpecError(f"Task {task_id}: nodes={nodes!r}.", "Give a whole number, at least 1; it is no template.")
    if nodes == 1:
        return
    for name, why in _OF_ONE_POD.items():
        if given.get(name):
            raise PoolSpecError(f"Task {task_id}: {name}= with nodes={nodes}: {why}.", f"Leave {name} out.")
    if isinstance(pool, GpuPool) and not is_template(pool.max_nodes) and nodes > pool.max_nodes:
        raise PoolSpecError(
            f"Task {task_id}: nodes={nodes}, but pool {pool.name} has max_nodes={pool.max_nodes}.",
            "Ask for fewer nodes, or raise max_nodes: each rank has a node of its own.",
            pool=pool.name,
        )


def check_ranks(task_id: str, nodes: int, given: Mapping[str, Any]) -> None:
    """Check `log_ranks` and `hang_timeout`, among the arguments of a task.

    Raises:
        PoolSpecError: They are none, or not for the task's `nodes`, or nothing would be heard of the ranks.
    """
    ranks, seconds = ranks_of(given.get("log_ranks")), seconds_of(given.get("hang_timeout"))
    if any(isinstance(rank, bool) or not isinstance(rank, int) for rank in ranks or ()):
        raise PoolSpecError(f"Task {task_id}: log_ranks={given['log_ranks']!r}.", "Give a rank, or a list of ranks.")
    if nodes == 1 and (ranks is not None or seconds is not None):
        raise PoolSpecError(f"Task {task_id}: log_ranks and hang_timeout are for several nodes.", "Give nodes=.")
    if wrong := [rank for rank in ranks or () if not 0 <= rank < nodes]:
        raise PoolSpecError(f"Task {task_id}: log_ranks has {wrong}.", f"Ranks are 0 to {nodes - 1}.")
    if seconds is not None and (not given.get("get_logs", True) or given.get("log_formatter") is not None):
        raise PoolSpecError(
            f"Task {task_id}: hang_timeout needs the ranks' logs while they run.",
            "Leave out get_logs=False and log_formatter.",
        )


def check_partial_nodes(task_id: str, given: Mapping[str, Any], default_args: Mapping[str, Any]) -> None:
    """Check what is given to the `partial` of a mapped task; `nodes` may be among what it is expanded over.

    Raises:
        PoolSpecError: As check_nodes and check_ranks say.
    """
    nodes = given.get("nodes", 1)
    check_nodes(task_id, nodes, given.get("gpu_pool"), given)
    if "nodes" in given:
        check_ranks(task_id, nodes, given if nodes == 1 else {**default_args, **given})


def ranks_of(given: int | Sequence[int] | None) -> list[Any] | None:
    return None if given is None else [*given] if isinstance(given, list | tuple) else [given]


def seconds_of(given: float | timedelta | None) -> float | None:
    return None if given is None else duration("hang_timeout", given).total_seconds() or None

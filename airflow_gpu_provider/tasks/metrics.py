"""Airflow's metrics of what a task did: how it ended, how long its phases took, what its GPUs did. docs/metrics.md.

Tags have few values: a pool, a DAG, a type of error; never a node, a run or a pod. Airflow's own `Stats` sends them, to
StatsD, OpenTelemetry or nowhere, and raises nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from airflow_gpu_provider.cluster.pod_state import Json

SUCCESS = "success"


def count_outcome(operator: BaseOperator, error: BaseException | None) -> None:
    """Count `gpu_provider.outcome`, with the error's type as `outcome`, or "success"."""
    _stats().incr("gpu_provider.outcome", tags={**_tags(operator), "outcome": _outcome(error)})


def time_phases(operator: BaseOperator, phases: Iterable[Json]) -> None:
    """Time each phase of a timeline as `gpu_provider.phase.<phase>`, and count the attempts after preemptions."""
    phases, tags = list(phases), _tags(operator)
    for each in phases:
        name = str(each["phase"]).replace(" ", "_")
        _stats().timing(f"gpu_provider.phase.{name}", timedelta(seconds=each["seconds"]), tags=tags)
    preempted = max((each.get("attempt", 1) for each in phases), default=1) - 1
    if preempted:
        _stats().incr("gpu_provider.preemptions", preempted, tags=tags)


def gauge_use(operator: BaseOperator, use: Json) -> None:
    """Set `gpu_provider.gpu_utilization`, in percent, where the GPUs report it."""
    if use.get("mean") is not None:
        _stats().gauge("gpu_provider.gpu_utilization", use["mean"], tags=_tags(operator))


def _tags(operator: BaseOperator) -> dict[str, str]:
    pool = getattr(getattr(operator, "gpu_pool", None), "name", "")
    return {"operator": operator.task_type, "dag_id": operator.dag_id, **({"pool": pool} if pool else {})}


def _outcome(error: BaseException | None) -> str:
    return SUCCESS if error is None else type(error).__name__


def _stats() -> Any:
    from airflow.providers.common.compat.sdk import Stats

    return Stats

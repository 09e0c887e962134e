"""Airflow's metrics of what a task did: how it ended, how long its phases took, what its GPUs did. docs/metrics.md.

Tags have few values: a pool, a DAG, a type of error; never a node, a run or a pod. Airflow's own `Stats` sends them, to
StatsD, OpenTelemetry or nowhere, and raises nothing. The phases are spans as well, below the task's own; without
tracing those go nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from airflow_gpu_provider.cluster.pod_state import Json

SUCCESS = "success"
_NANOSECONDS = 1_000_000_000


def count_outcome(operator: BaseOperator, error: BaseException | None) -> None:
    """Count `gpu_provider.outcome`, with the error's type as `outcome`, or "success"."""
    _stats().incr("gpu_provider.outcome", tags={**_tags(operator), "outcome": _outcome(error)})


def record_phases(operator: BaseOperator, phases: Sequence[Json]) -> None:
    """Record a timeline's phases as metrics and as spans."""
    time_phases(operator, phases)
    span_phases(phases)


def time_phases(operator: BaseOperator, phases: Sequence[Json]) -> None:
    """Time each phase of a timeline as `gpu_provider.phase.<phase>`, and count the attempts after preemptions."""
    tags = _tags(operator)
    for each in phases:
        name = str(each["phase"]).replace(" ", "_")
        _stats().timing(f"gpu_provider.phase.{name}", timedelta(seconds=each["seconds"]), tags=tags)
    preempted = max((each.get("attempt", 1) for each in phases), default=1) - 1
    if preempted:
        _stats().incr("gpu_provider.preemptions", preempted, tags=tags)


def span_phases(phases: Sequence[Json]) -> None:
    """Record each phase of a timeline as a span, at the times that it had by the cluster's clock."""
    from opentelemetry import trace

    tracer = trace.get_tracer("airflow_gpu_provider")
    for each in phases:
        start = datetime.fromisoformat(each["at"]).timestamp()
        attributes = {f"gpu_provider.{name}": each[name] for name in ("attempt", "image", "bytes") if name in each}
        span = tracer.start_span(each["phase"], start_time=int(start * _NANOSECONDS), attributes=attributes)
        span.end(end_time=int((start + each["seconds"]) * _NANOSECONDS))


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

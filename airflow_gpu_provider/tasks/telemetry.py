"""What a task tells others of its nodes: Airflow's metrics and spans, and OpenLineage's facets. docs/metrics.md.

Tags have few values: a pool, a DAG, a type of error; never a node, a run or a pod. Airflow's own `Stats` sends them, to
StatsD, OpenTelemetry or nowhere, and raises nothing. The phases are spans as well, below the task's own; without
tracing those go nowhere.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

    from airflow_gpu_provider.cluster.model.pod_state import Json
    from airflow_gpu_provider.pools import GpuPool

    Lineage = OperatorLineage[Any, Any]

log = logging.getLogger(__name__)

_NANOSECONDS = 1_000_000_000


def count_outcome(operator: BaseOperator, error: BaseException | None) -> None:
    """Count `gpu_provider.outcome`, with the error's type as `outcome`, or "success".

    And `gpu_provider.outcome.<outcome>`: plain StatsD, Airflow's default, has no tags.
    """
    outcome = "success" if error is None else type(error).__name__
    for name in ("gpu_provider.outcome", f"gpu_provider.outcome.{outcome}"):
        _stats().incr(name, tags={**_tags(operator), "outcome": outcome})


def record_phases(operator: BaseOperator, phases: Sequence[Json]) -> None:
    time_phases(operator, phases)
    span_phases(phases)


def time_phases(operator: BaseOperator, phases: Sequence[Json]) -> None:
    """Time each phase of a timeline as `gpu_provider.phase.<phase>`, and count the attempts after preemptions.

    An attempt that has asked for another node was not preempted.
    """
    tags = _tags(operator)
    for each in phases:
        name = str(each["phase"]).replace(" ", "_")
        _stats().timing(f"gpu_provider.phase.{name}", timedelta(seconds=each["seconds"]), tags=tags)
    requests = sum("end" in each for each in phases)
    preempted = max((each.get("attempt", 1) for each in phases), default=1) - 1 - requests
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


def _stats() -> Any:
    from airflow.providers.common.compat.sdk import Stats

    return Stats


# -- OpenLineage: what a task's GPU nodes were and cost, as a run facet, and its pods' parent ---------------------

# Only where apache-airflow-providers-openlineage is installed: that calls a task's `get_openlineage_facets_on_complete`
# and `..._on_failure` when its event is emitted, in a process of its own that has no way to Airflow's API. So a facet
# is made of what the operator itself has kept.

FACET = "gpuProvider_nodes"
"""The facet's name in an event's `run.facets`: with a prefix, as OpenLineage asks of facets that are not its own."""

PARENT, ROOT_PARENT = "OPENLINEAGE_PARENT_ID", "OPENLINEAGE_ROOT_PARENT_ID"


def of_nodes(pool: GpuPool, nodes: Iterable[Json]) -> Lineage:
    """Return an Ensure's facet; before the device plugin runs, a node offers no GPU, and its machine type has them."""
    machines = [
        {
            "node": each["name"],
            "machine": each.get("machine"),
            "group": each.get("group"),
            "instanceType": each.get("instance_type") or None,
            "market": each.get("capacity_type"),
            "zone": each.get("zone") or None,
            "gpus": each.get("gpus") or _gpus_of(pool, each),
        }
        for each in nodes
    ]
    return _lineage(pool=pool.name, machines=machines)


def _gpus_of(pool: GpuPool, node: Json) -> int | None:
    found = pool.gpus_of(node.get("instance_type") or "")
    return found.gpus if found else None


def of_nothing() -> Lineage:
    """Return the lineage of a task that had no nodes: for None, OpenLineage's provider logs a warning."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    return OperatorLineage()


def of_training(pool: str, gpus: int | None, phases: Iterable[Json]) -> Lineage:
    """Return the facet of a training that had so many GPUs, by its timeline."""
    phases = list(phases)
    seconds = sum(each["seconds"] for each in phases if each["phase"] == "ran")
    attempts = max((each.get("attempt", 1) for each in phases), default=None)
    return _lineage(pool=pool, gpuHours=_hours(seconds, gpus) if phases else None, attempts=attempts)


def of_bill(usage: Json, gpus_per_node: int | None) -> Lineage:
    """Return the facet of a run's bill, as docs/xcom.md has it."""
    machines = [
        {"node": each["node"], "machine": each["machine"], "group": each["group"], "market": each["market"]}
        for each in usage["timeline"]
    ]
    cost, seconds = usage["cost"]["total"], usage["node_seconds"]
    return _lineage(
        pool=usage["pool"] or "",
        machines=machines,
        nodeHours=_hours(sum(seconds.values()), 1),
        gpuHours=_hours(seconds["working"], gpus_per_node),
        cost=None if isinstance(cost, str) else cost,
        currency=usage["currency"],
        priceSource=usage["price_source"],
        atLeast=usage["at_least"],
    )


def parent_variables(ti: RuntimeTaskInstanceProtocol) -> dict[str, str]:
    """Return the variables by which what a pod runs knows its parent, as OpenLineage's dbt integration reads them.

    Each is "namespace/job/run". Nothing where lineage is not installed, or emits no event: openlineage's `disabled`,
    or no transport.
    """
    try:
        from airflow.providers.openlineage.conf import is_disabled
        from airflow.providers.openlineage.plugins import macros
    except ImportError:
        return {}
    if is_disabled():
        return {}
    of: Any = ti
    try:
        return {PARENT: macros.lineage_parent_id(of), ROOT_PARENT: macros.lineage_root_parent_id(of)}
    except Exception:  # lineage stops no training
        log.warning("The pods do not know their OpenLineage parent", exc_info=True)
        return {}


def _lineage(**values: Any) -> Lineage:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_gpu_provider.tasks.lineage_facet import GpuNodesRunFacet

    return OperatorLineage(run_facets={FACET: GpuNodesRunFacet(**values)})


def _hours(seconds: float, times: int | None) -> float | None:
    return None if times is None else round(seconds / 3600 * times, 4)

"""OpenLineage: what a task's GPU nodes were and cost, as a run facet, and its pods' parent. docs/metrics.md.

Only where apache-airflow-providers-openlineage is installed: that calls a task's `get_openlineage_facets_on_complete`
and `..._on_failure` when its event is emitted, in a process of its own that has no way to Airflow's API. So a facet is
made of what the operator itself has kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

    from airflow_gpu_provider.cluster.pod_state import Json

    Lineage = OperatorLineage[Any, Any]

log = logging.getLogger(__name__)

FACET = "gpuProvider_nodes"
"""The facet's name in an event's `run.facets`: with a prefix, as OpenLineage asks of facets that are not its own."""

PARENT, ROOT_PARENT = "OPENLINEAGE_PARENT_ID", "OPENLINEAGE_ROOT_PARENT_ID"


def of_nodes(pool: str, nodes: Iterable[Json]) -> Lineage:
    """Return the facet of the nodes that an EnsureGpuPoolOperator has brought."""
    machines = [
        {
            "node": each["name"],
            "machine": each.get("machine"),
            "group": each.get("group"),
            "instanceType": each.get("instance_type") or None,
            "market": each.get("capacity_type"),
            "zone": each.get("zone") or None,
            "gpus": each.get("gpus"),
        }
        for each in nodes
    ]
    return _lineage(pool=pool, machines=machines)


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

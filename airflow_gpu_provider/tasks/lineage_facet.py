"""GpuNodesRunFacet: OpenLineage's run facet of GPU nodes. Needs OpenLineage's library: imported when it asks for it."""

from __future__ import annotations

from typing import Any

import attr
from openlineage.client.facet_v2 import RunFacet

SCHEMA = "urn:airflow-gpu-provider:GpuNodesRunFacet:1-0-0"
"""Names the facet's schema, gpu_nodes_run_facet.json beside this file."""


@attr.define(kw_only=True)
class GpuNodesRunFacet(RunFacet):
    """What a task's GPU nodes were and cost; what it does not know is left out.

    Attributes:
        pool: The pool.
        machines: `{"node", "machine", "group", "market"}` of each, and after Ensure "instanceType", "zone" and "gpus".
        attempts: Attempts of a training, counting from 1.
        nodeHours: Of all machines, as far as they are the run's.
        gpuHours: In which the GPUs were a training's; of a bill, in which any training ran.
        cost: In `currency`; by `priceSource`, "spec" or "list price".
        atLeast: Why hours and cost may be higher.
    """

    pool: str
    machines: list[dict[str, Any]] | None = None
    attempts: int | None = None
    nodeHours: float | None = None
    gpuHours: float | None = None
    cost: float | None = None
    currency: str | None = None
    priceSource: str | None = None
    atLeast: str | None = None

    @staticmethod
    def _get_schema() -> str:
        return SCHEMA

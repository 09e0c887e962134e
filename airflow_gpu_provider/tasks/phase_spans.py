"""OpenTelemetry spans of what a task waited for and ran, below the task's own span. Without tracing they go nowhere."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_gpu_provider.cluster.pod_state import Json

_NANOSECONDS = 1_000_000_000


def span_phases(phases: Iterable[Json]) -> None:
    """Record each phase of a timeline as a span, at the times that it had by the cluster's clock."""
    from opentelemetry import trace

    tracer = trace.get_tracer("airflow_gpu_provider")
    for each in phases:
        start = datetime.fromisoformat(each["at"]).timestamp()
        attributes = {f"gpu_provider.{name}": each[name] for name in ("attempt", "image", "bytes") if name in each}
        span = tracer.start_span(each["phase"], start_time=int(start * _NANOSECONDS), attributes=attributes)
        span.end(end_time=int((start + each["seconds"]) * _NANOSECONDS))

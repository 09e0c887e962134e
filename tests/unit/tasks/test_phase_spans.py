"""Spans and trace context, as OpenTelemetry's own in-memory exporter has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from airflow_gpu_provider.tasks.telemetry import span_phases
from airflow_gpu_provider.training.place.checkpoint import environment

PHASES = [
    {"phase": "image pull", "at": "2026-03-01T02:00:00.000000Z", "seconds": 2.5, "image": "train:1", "bytes": 7},
    {"phase": "ran", "at": "2026-03-01T02:00:02.500000Z", "seconds": 60.0, "attempt": 2},
]


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))
    yield exporter
    provider.shutdown()


def test_phases_are_spans_below_the_tasks(exported: InMemorySpanExporter) -> None:
    with trace.get_tracer("airflow").start_as_current_span("worker.train") as task:
        span_phases(PHASES)
    pull, ran, _ = exported.get_finished_spans()
    assert [(span.name, span.end_time - span.start_time) for span in (pull, ran)] == [
        ("image pull", 2_500_000_000),
        ("ran", 60_000_000_000),
    ]
    assert pull.start_time == 1_772_330_400_000_000_000, "2026-03-01 02:00 UTC"
    assert {span.parent.span_id for span in (pull, ran)} == {task.get_span_context().span_id}
    assert dict(pull.attributes) == {"gpu_provider.image": "train:1", "gpu_provider.bytes": 7}
    assert dict(ran.attributes) == {"gpu_provider.attempt": 2}


def test_pods_continue_the_tasks_trace(exported: InMemorySpanExporter) -> None:
    with trace.get_tracer("airflow").start_as_current_span("worker.train") as task:
        variables = environment(checkpoint=None, run_id="r", attempt=1)
    span = task.get_span_context()
    assert variables["TRACEPARENT"].startswith(f"00-{span.trace_id:032x}-{span.span_id:016x}-")


def test_a_context_that_nobody_exports_is_not_handed_on() -> None:
    span = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(1)))
    with trace.use_span(span):
        assert "TRACEPARENT" not in environment(checkpoint=None, run_id="r", attempt=1)

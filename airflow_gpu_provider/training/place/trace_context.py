"""The trace of a task, handed on to what it runs, in variables as OpenTelemetry specifies them for environments."""

from __future__ import annotations


def trace_context() -> dict[str, str]:
    """Return TRACEPARENT and TRACESTATE of the task's span, W3C Trace Context; nothing where Airflow traces nothing.

    Airflow opens the span of a task where [traces] otel_on is set (airflow/sdk/execution_time/task_runner.py). Without
    it there is a context all the same, of a trace that nobody exports.
    """
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    if trace.get_current_span().is_recording():
        TraceContextTextMapPropagator().inject(carrier)
    return {name.upper(): value for name, value in carrier.items()}

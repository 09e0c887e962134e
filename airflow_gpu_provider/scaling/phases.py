"""A phase of a wait, as the `timeline` XComs have it: what it was, since when, and for how long. Pure.

Times are those of the cluster's clock, by which all who share it go.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow_gpu_provider.cluster.clock import format_time


def phase(name: str, start: datetime, end: datetime, **more: Any) -> dict[str, Any]:
    """Return the phase between two moments: `at` in ISO 8601, `seconds` in tenths and at least 0."""
    return {
        "phase": name,
        "at": format_time(start),
        "seconds": round(max(0.0, (end - start).total_seconds()), 1),
        **more,
    }

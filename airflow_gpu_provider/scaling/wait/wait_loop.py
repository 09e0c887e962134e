"""The progress of a wait, in the form that all waits of this package share, and how a task's log tells it. Pure.

Each wait is a small record with a pure `step`. It returns done, or why not yet, or the error that ends the wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.cluster.clock import format_time
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.platforms.base import Report

if TYPE_CHECKING:
    from airflow_gpu_provider.scaling.decide.scarce_capacity import DemandChange


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The state of a wait.

    Attributes:
        lines: The present state, as text; the waiting process logs each new line.
        ask: What the run wants from now on; the waiting process writes it, and steps again.
        result: What the task returns, once done.
    """

    done: bool = False
    lines: tuple[str, ...] = ()
    error: GpuError | None = None
    ask: DemandChange | None = None
    result: Mapping[str, Any] | None = None


def format_seconds(duration: timedelta) -> str:
    """Return a duration in readable form: 42 s, 3 min 10 s, 2 h 5 min."""
    seconds = round(duration.total_seconds())
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def phase(name: str, start: datetime, end: datetime, **more: Any) -> dict[str, Any]:
    """Return a phase of a wait, as the `timeline` XComs have it: `at` in ISO 8601, `seconds` in tenths and at least 0.

    Times are by the cluster's clock, which all processes share.
    """
    return {
        "phase": name,
        "at": format_time(start),
        "seconds": round(max(0.0, (end - start).total_seconds()), 1),
        **more,
    }


class Narrator:
    """Logs each line once while it stays true, with the time since the start.

    `is_resumed`: another process has already logged this wait; the first lines may repeat its log, and are marked.
    """

    def __init__(self, report: Report, *, started: datetime, is_resumed: bool = False) -> None:
        self._report = report
        self._started = started
        self._before = "so far: " if is_resumed else ""
        self._true_now: frozenset[str] = frozenset()

    def log(self, now: datetime, *lines: str) -> None:
        for line in dict.fromkeys(lines):
            if line not in self._true_now:
                self._report(f"[{format_seconds(now - self._started)}] {self._before}{line}")
        self._before = ""
        self._true_now = frozenset(lines)

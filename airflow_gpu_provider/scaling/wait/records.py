"""What a wait is made of: records, which travel in a trigger's row and event as JSON values, and its progress. Pure.

Each wait is such a record with a pure `step`. It returns done, or why not yet, or the error that ends the wait.

While an installation is upgraded, workers may run the new release and the triggerer still the old one, which would
read such a record in the meaning of its own release. So a record of a later release is handed back to a worker, which
goes on without deferring; one of an earlier release is read as it is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import msgspec

from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.times import format_seconds, format_time

if TYPE_CHECKING:
    from airflow_gpu_provider.clouds.base import Report
    from airflow_gpu_provider.scaling.decide.scarce_capacity import DemandChange


_HANDED_BACK = "handed back"


class Record:
    """A dataclass that travels: times as ISO 8601, errors as their own records."""

    def to_record(self) -> dict[str, Any]:
        record: dict[str, Any] = msgspec.to_builtins(self, enc_hook=_encoded)
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Read what `to_record` wrote: what an earlier release did not write has its default, and what is not known
        is left out."""
        return msgspec.convert(record, cls, strict=False, dec_hook=_decoded)


def _encoded(value: object) -> object:
    if isinstance(value, GpuError):
        return value.to_record()
    raise NotImplementedError(type(value))


def _decoded(kind: type, record: Any) -> object:
    if kind is object:
        return record  # any JSON value
    if issubclass(kind, GpuError):
        return GpuError.from_record(record)
    raise NotImplementedError(kind)


@dataclass(frozen=True, kw_only=True)
class TriggerRecord(Record):
    """What the row of each trigger of this package has.

    Attributes:
        pool: The rendered spec, as JSON.
        deferred_at: When the task was deferred, in seconds since the epoch by the worker's clock.
    """

    version: int = 1
    pool: dict[str, Any]
    wait: dict[str, Any]
    deferred_at: float = field(default_factory=time.time)


def is_of_later_release(record: Mapping[str, Any], known: int) -> bool:
    """Return True if a record's version is above the one that this release writes."""
    return int(record.get("version", 1)) > known


def handed_back(record: Mapping[str, Any], known: int) -> dict[str, Any]:
    """Return the event of a trigger that does not know its record's version."""
    message = (
        f"The triggerer runs an earlier release than the worker: it reads records of versions up to {known}, and this"
        f" one is of version {record['version']}. Restart the triggerer to end that."
    )
    return {"status": _HANDED_BACK, "version": known, "message": message}


def is_handed_back(event: Mapping[str, Any]) -> bool:
    """Return True for the event of a trigger that did not wait: its task goes on, without deferring."""
    return bool(event.get("status") == _HANDED_BACK)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The state of a wait.

    Attributes:
        lines: The present state, as text; the waiting process logs each new line.
        ask: What the run wants from now on; the waiting process writes it, and steps again.
        result: What the task returns, once done.
        extended_until: The wait was to end, and is to go on until then.
    """

    done: bool = False
    lines: tuple[str, ...] = ()
    error: GpuError | None = None
    ask: DemandChange | None = None
    result: Mapping[str, Any] | None = None
    extended_until: datetime | None = None


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

"""Clock: the time as decisions see it, so that tests can run hours in milliseconds."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for what others read, monotonic seconds for how long something took, and waiting."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock, in UTC."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def parse_time(text: str | None) -> datetime | None:
    """Read Kubernetes' RFC 3339 times, with or without fractions."""
    return datetime.fromisoformat(text) if text else None


def format_time(at: datetime) -> str:
    """Write a time as Kubernetes' MicroTime fields want it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

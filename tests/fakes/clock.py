"""VirtualClock: time that passes when somebody sleeps, for several threads; what they wait for at once adds up."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

START = datetime(2026, 3, 1, 2, tzinfo=UTC)


class VirtualClock:
    """Stands where a `cluster.api.clock.Clock` is expected; it shows START at first."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._seconds = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self._seconds)

    def of_local(self, at: datetime) -> datetime:
        return at

    def monotonic(self) -> float:
        return self._seconds

    def sleep(self, seconds: float) -> None:
        with self._mutex:
            self._seconds += seconds

"""Time that passes faster than real time, for events hours ahead: scheduled actions, ends of machines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class ScaledTime:
    """A count of seconds that never goes back; its speed may change meanwhile. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._speed = 1.0
        self._counted = 0.0
        self._counted_at = clock()

    @property
    def speed(self) -> float:
        """Seconds counted per real second."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        if not 0 < speed < float("inf"):
            raise ValueError(f"a speed is a number above 0; not {speed!r}")
        with self._lock:
            self._count()
            self._speed = speed

    def seconds(self) -> float:
        """Seconds counted so far; only the difference of two counts is meaningful."""
        with self._lock:
            self._count()
            return self._counted

    def _count(self) -> None:
        now = self._clock()
        self._counted += (now - self._counted_at) * self._speed
        self._counted_at = now

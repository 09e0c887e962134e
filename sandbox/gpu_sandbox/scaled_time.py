"""Time that passes faster than the sandbox's, for events hours ahead: scheduled actions, ends of machines."""

from __future__ import annotations

import threading

from gpu_sandbox.clock import Clock, SystemClock


class ScaledTime:
    """A count of seconds that never goes back; its speed may change meanwhile. Thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._speed = 1.0
        self._counted = 0.0
        self._counted_at = self._clock.now()

    @property
    def speed(self) -> float:
        """Seconds counted per second of the clock."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        if not 0 < speed < float("inf"):
            raise ValueError(f"a speed is a number above 0; not {speed!r}")
        with self._lock:
            self._count()
            self._speed = speed

    def follow(self, clock: Clock) -> None:
        """Count by another clock from now on."""
        with self._lock:
            self._count()
            self._clock, self._counted_at = clock, clock.now()

    def seconds(self) -> float:
        """Seconds counted so far; only the difference of two counts is meaningful."""
        with self._lock:
            self._count()
            return self._counted

    def reached(self, seconds: float) -> bool:
        """As `Clock.reached`, of a moment of this count."""
        left = (seconds - self.seconds()) / self._speed
        return self._clock.reached(self._clock.now() + left)

    def _count(self) -> None:
        now = self._clock.now()
        self._counted += max(now - self._counted_at, 0.0) * self._speed
        self._counted_at = now

"""Groups that failed to grow and are left alone for a while, each time for longer."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from gpu_sandbox.autoscaler.groups import FailedLaunch
from gpu_sandbox.autoscaler.timings import AutoscalerTimings
from gpu_sandbox.clock import Clock


@dataclass(frozen=True, kw_only=True)
class _Backoff:
    until: float
    failed_at: float
    seconds: float
    why: FailedLaunch


@dataclass(kw_only=True)
class Backoffs:
    """By group."""

    timings: AutoscalerTimings
    clock: Clock
    _of: dict[str, _Backoff] = field(default_factory=dict, init=False)

    def failed(self, group: str, why: FailedLaunch) -> None:
        """Leave it alone: twice as long as the last time, unless that is long ago."""
        now = self.clock.now()
        before = self._of.get(group)
        seconds = self.timings.first_backoff
        if before is not None and now < before.failed_at + self.timings.backoff_reset:
            seconds = min(before.seconds * 2, self.timings.longest_backoff)
        self._of[group] = _Backoff(until=now + seconds, failed_at=now, seconds=seconds, why=why)

    def mark(self) -> Hashable:
        """Differs where a group's back-off is another one."""
        return tuple((group, backoff.until) for group, backoff in self._of.items())

    def worked(self, group: str) -> None:
        self._of.pop(group, None)

    def why(self, group: str) -> FailedLaunch | None:
        """Why it is left alone now; None where it is not."""
        backoff = self._of.get(group)
        return None if backoff is None or self.clock.reached(backoff.until) else backoff.why

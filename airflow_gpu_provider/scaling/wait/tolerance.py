"""Tolerance: whether a wait continues after a call that failed, or ends with its error. Pure; the time is an argument.

Every wait uses it: for nodes, for their removal, for a pod, for its creation. How long an error is tolerated while it
persists is part of its type (`GpuError.tolerated_for`).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow_gpu_provider.errors import GpuError


class Tolerance:
    """Remembers since when calls fail in the same way, and forgets it when one succeeds.

    Args:
        deadline: When the wait ends anyway: no error is tolerated longer.
        worked: The same access has worked before. An error that may be a mistake in a connection or a transient
            failure (`retryable`) is then taken for transient, and tolerated until the deadline.
    """

    def __init__(self, deadline: datetime, *, worked: bool = False) -> None:
        self._deadline = deadline
        self._worked = worked
        self._kind: type[GpuError] | None = None
        self._since = deadline

    def succeeded(self) -> None:
        """Record a call that succeeded."""
        self._worked = True
        self._kind = None

    def allows(self, error: GpuError, now: datetime) -> bool:
        """Record a call that failed at `now`, and return True if the wait continues."""
        if type(error) is not self._kind:
            self._kind, self._since = type(error), now
        return now < self._until(error)

    def in_words(self, error: GpuError) -> str:
        """Return a log line about a tolerated error: what it is, and until when it is tolerated."""
        return (
            f"{type(error).__name__}: {error} Trying again until {self._until(error):%Y-%m-%d %H:%M:%SZ} at the latest."
        )

    def _until(self, error: GpuError) -> datetime:
        tolerated_for = _borne_for(error, worked=self._worked)
        return self._deadline if tolerated_for is None else min(self._deadline, self._since + tolerated_for)


def is_tolerated(error: GpuError, lasted: timedelta, *, worked: bool) -> bool:
    """Return True if an error that has persisted for so long is still tolerated; `worked` as for `Tolerance`."""
    tolerated_for = _borne_for(error, worked=worked)
    return tolerated_for is None or lasted < tolerated_for


def _borne_for(error: GpuError, *, worked: bool) -> timedelta | None:
    """Return for how long an error is tolerated; None: until the wait's deadline."""
    return None if worked and error.retryable and error.tolerated_for else error.tolerated_for

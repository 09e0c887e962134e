"""Retries: which errors are tolerated, and how long (Tolerance, pure); failures in a row (Setbacks); two drivers.

Every wait uses them: for nodes, for their removal, for a pod, for its creation. How long an error is tolerated while it
persists is part of its type (`GpuError.tolerated_for`). A pod that runs, or has succeeded, is not abandoned because an
API server or a cloud's token service did not answer: the wait is resumed, each time after a longer pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self, TypeVar

from airflow_gpu_provider.clouds.base import Report
from airflow_gpu_provider.cluster.api.clock import SystemClock
from airflow_gpu_provider.errors import ClusterNotFound, ConnectionNotFound, CredentialsError, GpuError, PodFailed
from airflow_gpu_provider.scaling.wait.records import Narrator, Record

T = TypeVar("T")

NO_ACCESS = (ConnectionNotFound, CredentialsError, ClusterNotFound)
"""The pool cannot be reached, as a rule until a person has corrected what names it."""

NO_ACCESS_FOR = timedelta(minutes=5)
"""How long a release tolerates that before it has reached the pool: a person is to hear of it soon."""

_FORGOTTEN_AFTER = timedelta(minutes=10)
_LONGEST_PAUSE = 60.0
_EVERY = 5.0  # seconds


class Tolerance:
    """Remembers since when calls fail in the same way, and forgets it when one succeeds.

    Args:
        deadline: When the wait ends anyway: no error is tolerated longer.
        worked: The same access has worked before. An error that may be a mistake in a connection or a transient
            failure (`retryable`) is then taken for transient, and tolerated until the deadline.
        no_access_until: Until when NO_ACCESS is tolerated before a call has succeeded. None: as any error.
    """

    def __init__(self, deadline: datetime, *, worked: bool = False, no_access_until: datetime | None = None) -> None:
        self._deadline = deadline
        self._no_access_until = no_access_until
        self._worked = worked
        self._kind: type[GpuError] | None = None
        self._since = deadline

    def succeeded(self) -> None:
        self._worked = True
        self._no_access_until = None
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
        if self._no_access_until is not None and isinstance(error, NO_ACCESS):
            return min(self._deadline, self._no_access_until)
        tolerated_for = _tolerated_for(error, worked=self._worked)
        return self._deadline if tolerated_for is None else min(self._deadline, self._since + tolerated_for)


def is_tolerated(error: GpuError, lasted: timedelta, *, worked: bool) -> bool:
    """Return True if an error that has persisted for so long is still tolerated; `worked` as for `Tolerance`."""
    tolerated_for = _tolerated_for(error, worked=worked)
    return tolerated_for is None or lasted < tolerated_for


def _tolerated_for(error: GpuError, *, worked: bool) -> timedelta | None:
    """Return for how long an error is tolerated; None: until the wait's deadline."""
    return None if worked and error.retryable and error.tolerated_for else error.tolerated_for


@dataclass(frozen=True, kw_only=True)
class Setbacks(Record):
    """Failures in a row.

    Attributes:
        since: When the first one was; None before that.
    """

    times: int = 0
    since: datetime | None = None
    last: datetime | None = None

    def one_more(self, now: datetime) -> Self:
        """Return them with one more; earlier ones, before a success, are forgotten."""
        if self.since is None or self.last is None or now - self.last > _FORGOTTEN_AFTER:
            return type(self)(times=1, since=now, last=now)
        return type(self)(times=self.times + 1, since=self.since, last=now)

    @property
    def pause(self) -> float:
        """How many seconds to wait before the next attempt."""
        return min(_LONGEST_PAUSE, 2.0 ** min(self.times, 10)) if self.times else 0.0

    @property
    def lasted(self) -> timedelta:
        return self.last - self.since if self.since and self.last else timedelta(0)

    def may_pass(self, error: GpuError) -> bool:
        """Return True if `error` says nothing about the pod, and the next attempt may succeed.

        The same access worked when the pod was created, so a transient error does not count as a misconfiguration.
        """
        if isinstance(error, PodFailed):
            return False
        if type(error) is GpuError:  # an unexpected error in a trigger
            return True
        return is_tolerated(error, self.lasted, worked=True)


async def persistently(do: Callable[[], Awaitable[T]], *, until: datetime, narrator: Narrator) -> T:
    """Return what `do` returns; an error is logged and `do` called again while the error may be transient.

    Raises:
        GpuError: It is not transient, or `until` (by this machine's clock) has passed.
    """
    clock, setbacks, patience = SystemClock(), Setbacks(), Tolerance(until, worked=True)
    while True:
        try:
            return await do()
        except GpuError as error:
            now = clock.now()
            if not patience.allows(error, now):
                raise
            setbacks = setbacks.one_more(now)
            narrator.log(now, f"{type(error).__name__}: {error} The wait continues.")
        await asyncio.sleep(setbacks.pause)


def call_with_retries(call: Callable[[], T], *, within: timedelta, report: Report) -> T:
    """Make a call that may be repeated, until it succeeds.

    Args:
        within: How long to try at most; how long each error is tolerated depends on its type.
    """
    clock = SystemClock()
    patience = Tolerance(clock.now() + within)
    last_line = ""
    while True:
        try:
            return call()
        except GpuError as error:
            if not patience.allows(error, clock.now()):
                raise
            line = patience.in_words(error)
            if line != last_line:
                report(line)
            last_line = line
        clock.sleep(_EVERY)

"""Clock: the time as decisions see it; ServerClock: the API server's, which all who share a cluster go by.

ServerTime is what ServerClock and the event loop's AsyncApi both know of the server's time.

Airflow's machines, and several installations of it, may be minutes apart. What one of them writes into a cluster
(until when nodes are wanted, say) is judged by all the others: each of them therefore asks the API server for the time.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Protocol

from airflow_gpu_provider.cluster.api.api_errors import mapped
from airflow_gpu_provider.cluster.api.rest import TIMEOUT, ApiClient, as_json
from airflow_gpu_provider.errors import ClusterUnreachable

log = logging.getLogger(__name__)

_ASK_AGAIN_AFTER = 600.0  # seconds: by then a bad quartz is off by some tens of milliseconds
_SLOW = 5.0  # seconds: an answer that took longer tells too little
_TRIES = 3
_SET = 1.0  # seconds by which this machine's two clocks disagree when one was set, or the machine was asleep


class Clock(Protocol):
    """Wall time for what others read, monotonic seconds for how long something took, and waiting."""

    def now(self) -> datetime: ...

    def of_local(self, at: datetime) -> datetime:
        """Return what this clock shows when this machine's own shows `at`, as Airflow's times are."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock, in UTC."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def of_local(self, at: datetime) -> datetime:
        return at

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ServerTime:
    """What a server's clock shows, by its newest answer and this machine's own two clocks. Asks nobody."""

    def __init__(self, local: Clock) -> None:
        self._local = local
        self._read: _Reading | None = None

    def holds(self, seconds: float = math.inf) -> bool:
        """Return True if the time is known, from an answer of the last `seconds`, and by clocks that agree since.

        They disagree where this machine's clock was set, or the machine was asleep.
        """
        if self._read is None:
            return False
        by_monotonic = self._local.monotonic() - self._read.at_monotonic
        by_wall = (self._local.now() - self._read.at).total_seconds()
        return by_monotonic < seconds and abs(by_wall - by_monotonic) < _SET

    @property
    def ahead(self) -> timedelta:
        """How far the server's clock is ahead of this machine's; nothing before it told the time."""
        return self._read.ahead if self._read else timedelta(0)

    def take(self, date: str | None, sent: float) -> bool:
        """Read an answer's Date; False where the answer took too long to tell the time.

        Args:
            date: The header; None where there was none.
            sent: What the local monotonic clock showed when the request was sent.
        """
        received, at_monotonic = self._local.now(), self._local.monotonic()
        found = ahead(date, received, at_monotonic - sent)
        if found is None:
            return False
        self._read = _Reading(ahead=found, at=received, at_monotonic=at_monotonic)
        return True

    def count_on(self) -> None:
        """Go by the seconds counted since the server told the time; before that, by this machine's clock."""
        at, at_monotonic = self._local.now(), self._local.monotonic()
        last = self._read or _Reading(ahead=timedelta(0), at=at, at_monotonic=at_monotonic)
        estimate = last.at + last.ahead + timedelta(seconds=at_monotonic - last.at_monotonic)
        self._read = _Reading(ahead=estimate - at, at=at, at_monotonic=at_monotonic)


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """How far the server's clock was ahead, and when that was by this machine's two clocks."""

    ahead: timedelta
    at: datetime
    at_monotonic: float


class ServerClock:
    """The API server's time, right to a second, or to half of what the server takes to answer: 2.5 s at most.

    Seconds are counted, and waited for, by this machine.

    The server is asked when the time is first wanted, again after ten minutes, and whenever this machine's own clock
    has been set. An answer of any kind tells the time, a refusal too.
    """

    def __init__(self, api: ApiClient, local: Clock | None = None) -> None:
        self._api = api
        self._local = local or SystemClock()
        self._time = ServerTime(self._local)

    def now(self) -> datetime:
        """Return the server's time; raises a GpuError where it had to be asked, and did not answer."""
        ahead = self._ahead()
        return self._local.now() + ahead

    def of_local(self, at: datetime) -> datetime:
        return at + self._ahead()

    def monotonic(self) -> float:
        return self._local.monotonic()

    def sleep(self, seconds: float) -> None:
        self._local.sleep(seconds)

    def _ahead(self) -> timedelta:
        if not self._time.holds(_ASK_AGAIN_AFTER):
            self._ask()
        return self._time.ahead

    def _ask(self) -> None:
        for _ in range(_TRIES):
            sent = self._local.monotonic()
            if self._time.take(_date_of_answer(self._api), sent):
                return
        raise ClusterUnreachable(
            f"The Kubernetes API server needs more than {_SLOW:.0f} s to tell its time.",
            "Nothing was decided without it; try again.",
        )


def ahead(date: str | None, received: datetime, seconds: float) -> timedelta | None:
    """Return how far a server's clock is ahead, by its answer's Date, when that was there, and how long it took.

    The Date is without its fraction of a second, and as old as the answer's way back: halves are taken of both. None
    where that was too long, or somebody slept meanwhile. HTTP asks for a Date in every answer; where something on the
    way takes it off, the clocks have to be taken for equal.
    """
    if not date:
        return timedelta(0)
    if seconds > _SLOW:
        return None
    return parsedate_to_datetime(date) + timedelta(seconds=0.5 + seconds / 2) - received


def _date_of_answer(api: ApiClient) -> str | None:
    """Return the Date with which the server answers a question that costs it nothing."""
    from kubernetes.client.exceptions import ApiException

    with mapped("get", "version"):
        try:
            _, _, headers = api.call_api(
                "/version",
                "GET",
                header_params={"Accept": "application/json"},
                **as_json(),
                auth_settings=["BearerToken"],
                _return_http_data_only=False,
                _request_timeout=TIMEOUT,
            )
        except ApiException as refused:
            if refused.status not in (403, 404):
                raise
            headers = refused.headers
    date: str | None = headers.get("Date")
    if not date:
        log.warning("The Kubernetes API server's responses have no Date header: using this machine's clock.")
    return date

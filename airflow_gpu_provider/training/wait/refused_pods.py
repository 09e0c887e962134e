"""Pods that the API server refuses to a Job controller, which only reports events: FailedCreate on the Job.

A ResourceQuota, a LimitRange, a policy or an invalid pod: the task would wait for pods that never come.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_gpu_provider.cluster.api_errors import refusal
from airflow_gpu_provider.cluster.events import time_of
from airflow_gpu_provider.cluster.informer import Change
from airflow_gpu_provider.cluster.pod_state import Json
from airflow_gpu_provider.cluster.watched import Resource
from airflow_gpu_provider.errors import GpuError, ReferenceNotFound

AT_LEAST = timedelta(minutes=2)
"""How long a seemingly final refusal is tolerated: policies are often created or changed just after."""

_CREATING = re.compile(r"^Error creating: ")  # batch/v1's Job controller, and all that use its pod control


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why pods are refused, and since when no missing pod has come."""

    error: GpuError
    since: datetime

    @property
    def in_words(self) -> str:
        return f"the API server refuses its pods: {self.error.what.rstrip('.')}"

    def error_at(self, now: datetime, schedule_seconds: float) -> GpuError | None:
        """Return the error once it has lasted too long.

        A refusal that may end by itself, an exhausted quota, is waited for as long as for a node; otherwise the error's
        own patience counts, or `AT_LEAST`; what the pods name and does not exist ends it at once, as for a single pod.
        """
        return self.error if now >= self.ends_at(schedule_seconds) else None

    def ends_at(self, schedule_seconds: float) -> datetime:
        """Return when it has lasted too long."""
        longest, borne = timedelta(seconds=schedule_seconds), self.error.tolerated_for
        at_least = timedelta(0) if isinstance(self.error, ReferenceNotFound) else AT_LEAST
        return self.since + (longest if borne is None else min(longest, max(borne, at_least)))


class RefusedPods:
    """What events say about the Jobs of one object; `is_own` takes a Job's name."""

    def __init__(self, events: Resource, is_own: Callable[[str], bool]) -> None:
        self._events = events
        self._is_own = is_own
        self._since: datetime | None = None
        self._last: tuple[datetime, GpuError] | None = None

    def take(self, changes: Iterable[Change]) -> list[Change]:
        """Take the feed's events about Jobs, and return the others; if they cannot be watched, nothing fails."""
        rest = []
        for change in changes:
            if change.resource != self._events:
                rest.append(change)
            elif change.kind == "present":
                self._take(change.raw)
        return rest

    def _take(self, event: Json) -> None:
        if event.get("reason") != "FailedCreate" or not self._is_own(
            (event.get("involvedObject") or {}).get("name", "")
        ):
            return
        at = time_of(event)
        self._since = min(filter(None, (self._since, at)))
        if self._last is None or at >= self._last[0]:
            self._last = at, _error(event.get("message") or "")

    def forget(self) -> None:
        """Forget the refusal: all pods exist."""
        self._since = self._last = None

    def now(self) -> Refusal | None:
        """Return the present refusal."""
        if self._last is None or self._since is None:
            return None
        return Refusal(error=self._last[1], since=self._since)


def _error(message: str) -> GpuError:
    reason = _CREATING.sub("", message)
    return refusal(422 if " is invalid: " in reason else 403, {"message": reason}, "create", "pods")

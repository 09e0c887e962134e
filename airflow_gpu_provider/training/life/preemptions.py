"""What a preempted pod passes on to the next one of its try (AttemptRecord), and when there is a next one. Pure.

A try of a task has one pod after another if preemption is not failure. Everything that must outlive a worker and a
triggerer in between travels in the trigger's event; the number is also on the pod.

PodDeadlines says when a task's pod must have ended, whichever of its bounds comes first.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal, Self

from kubernetes.client import ApiClient

from airflow_gpu_provider.cluster.clock import Clock
from airflow_gpu_provider.cluster.demand_key import DemandKey
from airflow_gpu_provider.cluster.pod_state import Json
from airflow_gpu_provider.errors import PermissionDenied, PoolSpecError
from airflow_gpu_provider.pools.run_budget import Budget
from airflow_gpu_provider.scaling.state.demand import DemandLease, list_demand
from airflow_gpu_provider.scaling.wait.records import Record

OnPreemption = Literal["resume", "fail"]

MAX_PREEMPTIONS = 3

Phases = Sequence[Json]


@dataclass(frozen=True, kw_only=True)
class AttemptRecord(Record):
    """One pod of a try.

    Attributes:
        number: 1 for the first pod.
        deadline: When the try's pods must have ended, set when the first one is created; None before that.
        timeline: The phases of the earlier attempts.
    """

    number: int = 1
    deadline: datetime | None = None
    timeline: tuple[Json, ...] = ()

    def until(self, deadline: datetime) -> Self:
        """Return it with this deadline, unless the try already has one."""
        return replace(self, deadline=self.deadline or deadline)

    def following(self, *, deadline: datetime, phases: Phases) -> Self:
        """Return the attempt after this one, whose pod went through `phases`."""
        return type(self)(number=self.number + 1, deadline=deadline, timeline=self.whole_timeline(phases))

    def whole_timeline(self, phases: Phases) -> tuple[Json, ...]:
        """Return the try's phases so far; with several attempts, each phase says which one it belongs to."""
        return (*self.timeline, *({**phase, "attempt": self.number} for phase in phases))


@dataclass(frozen=True, kw_only=True)
class Preemptions:
    """What a task does when its pod is preempted: `resume` at most `at_most` times in one try, or fail."""

    resume: bool
    at_most: int

    @classmethod
    def of(cls, on_preemption: str | None, *, max_preemptions: int, has_checkpoint: bool) -> Self:
        """Read the operator's arguments; raises PoolSpecError for a wrong one."""
        if on_preemption not in (None, "resume", "fail"):
            raise PoolSpecError(f"on_preemption={on_preemption!r}.", "It is 'resume' or 'fail'.")
        if isinstance(max_preemptions, bool) or not isinstance(max_preemptions, int) or max_preemptions < 0:
            raise PoolSpecError(f"max_preemptions={max_preemptions!r}.", "Use a whole number of at least 0.")
        resume = has_checkpoint if on_preemption is None else on_preemption == "resume"
        return cls(resume=resume, at_most=max_preemptions)

    def why_not(self, attempt: AttemptRecord, *, deadline: datetime, now: datetime) -> str:
        """Return why no other attempt follows this one; empty if one does."""
        if not self.resume:
            return "on_preemption is 'fail'"
        if attempt.number > self.at_most:
            return f"max_preemptions={self.at_most} is used up"
        return "its deadline has passed" if now >= deadline else ""


_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class PodDeadlines:
    """The bounds of a task's pods.

    Attributes:
        api: Reads the run's demand.
        clock: The cluster's clock, which all of these times use.
        key: The run's demand, whose end counts if it has one: of its time, or of its money.
        max_runtime: Counts from the pod's creation if the run has no demand.
        execution_timeout: The task's, None for none; counts from `started_at`, the start of the try by Airflow's clock.
        at_latest: The deadline of the try's first pod, for those that follow it.
    """

    api: ApiClient
    clock: Clock
    key: DemandKey
    max_runtime: timedelta
    execution_timeout: timedelta | None
    started_at: datetime | None
    at_latest: datetime | None = None
    _leases: tuple[DemandLease, ...] | None = field(default=None, init=False)

    def of_pod(self, created_at: datetime) -> datetime:
        """Return when a pod created at that time must have ended."""
        deadline = self._demand_until() or created_at + self.max_runtime
        if self.execution_timeout is not None and self.started_at is not None:
            deadline = min(deadline, self.clock.of_local(self.started_at + self.execution_timeout))
        return deadline if self.at_latest is None else min(deadline, self.at_latest)

    @property
    def is_covered(self) -> bool:
        """Whether the run wants nodes of the pool, through a Lease that a ScaleDownSensor will withdraw."""
        return self._demand_until() is not None

    @property
    def budget(self) -> Budget | None:
        """The money of the run, if its nodes are wanted until that is used; None if something else ends them."""
        own = self.own_demand
        return own.budget if own is not None and own.ends_by_budget else None

    @property
    def is_wanted(self) -> bool:
        """Whether any run, this one or another, wants nodes of the pool."""
        return any(lease.live(self.clock.now()) for lease in self._demand())

    @property
    def own_demand(self) -> DemandLease | None:
        """The run's demand; None if it has none."""
        return next((lease for lease in self._demand() if lease.key == self.key), None)

    def _demand_until(self) -> datetime | None:
        return own.pods_end_by if (own := self.own_demand) is not None else None

    def _demand(self) -> tuple[DemandLease, ...]:
        if self._leases is None:
            try:
                self._leases = list_demand(self.api, self.key.pool)
            except PermissionDenied as error:
                _log.warning("The run's own deadline is not known: %s", error)
                return ()  # for now: the refusal may be transient
        return self._leases

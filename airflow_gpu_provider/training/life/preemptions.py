"""What a preempted pod passes on to the next one of its try (AttemptRecord), and when there is a next one. Pure.

A try of a task has one pod after another if preemption is not failure. Everything that must outlive a worker and a
triggerer in between travels in the trigger's event; the number is also on the pod.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, Self

from airflow_gpu_provider.cluster.pod_state import Json
from airflow_gpu_provider.errors import PoolSpecError
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

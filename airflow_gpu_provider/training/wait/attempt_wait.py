"""AttemptWait: what the waits for a pod, a gang and a workload have in common; WaitOutcome: how one ended. Pure.

How a pod ended is decided from the pod itself, or from its watchers if it cannot say: before anything of it is
released, once, for the blocking operator and the deferred one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import ClassVar, Self

from airflow_gpu_provider.cluster.model.pod_state import Json, PodState
from airflow_gpu_provider.errors import LOST, GpuError, GpuHung, NoCapacity, PodDeadline, PodPreempted
from airflow_gpu_provider.scaling.wait.records import Progress, Record, phase
from airflow_gpu_provider.times import format_seconds
from airflow_gpu_provider.training.wait.end import PodEnd, certain_at, end_of, end_of_gone
from airflow_gpu_provider.training.wait.gpu_use import GpuUse, GpuWatching, Rank

WARN_AT = 0.8
"""The share of the money for work at whose use the task's log warns."""

RAISE_HANG_TIMEOUT = "Raise hang_timeout if it may be silent for so long."


@dataclass(frozen=True, kw_only=True)
class Silence:
    """For pods that are all followed: for how long none has printed anything, and each one's last line."""

    lasts: timedelta
    last_lines: Mapping[Rank, str]

    def since(self, started_at: datetime, now: datetime) -> timedelta:
        """Return for how long it has lasted since the container started, or the last one of a gang."""
        return min(self.lasts, now - started_at)

    @property
    def by_rank(self) -> dict[str, str]:
        """The last lines, the lowest rank's first, as an error's details have them."""
        return {str(rank): line for rank, line in sorted(self.last_lines.items(), key=lambda item: item[0])}


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What is known at present of a pod, or of an object with its pods.

    Attributes:
        gone: It no longer exists.
        is_unseen: It went while nobody watched it.
        queued: Its place in its queue, and why it is not admitted, as text; empty if unknown.
        barred: Why its queue will never admit it, though it was not admitted yet.
        no_capacity: Why the pool gets no machine now, if that is a stock-out or a quota.
        to_widen: What would let the pool have more machines; see `how_to_widen`.
        silence: For how long nothing was printed; None if unknown.
        notes: Other remarks on the present state, as text: a stock-out, an API server that does not answer.
    """

    gone: bool = False
    is_unseen: bool = False
    queued: str = ""
    barred: GpuError | None = None
    no_capacity: NoCapacity | None = None
    to_widen: str = "Let the pool have more machines"
    silence: Silence | None = None
    notes: tuple[str, ...] = ()


def because(lines: Sequence[str]) -> str:
    """Return how it stood, as what follows a sentence."""
    return f" ({'; '.join(lines)})" if lines else ""


@dataclass(frozen=True, kw_only=True)
class AttemptWait(Record, ABC):
    """The wait for everything that one attempt runs.

    Attributes:
        run_kind: What it waits for, as a trigger's record names it.
        namespace, name, uid: The pod's, or those of the object under which the pods run.
        started: When the wait began.
        schedule_seconds: How long each pod may wait for a node. A full pool does not count: there a pod is queued.
        start_seconds: How long each may take from getting a node to the running container: volumes, images, init
            containers.
        deadline: When it must have ended.
        demand: The name of the Lease whose end it goes by, and which may have been extended by then; empty for none.
        timed_out_at: When the task's execution_timeout is over, which no extension moves; None without one.
        is_covered: A demand Lease covers it. If none does, the pool has to be reconciled once it is placed.
        queue: The Kueue LocalQueue that admits it; empty for none.
        queued_until: When that must have admitted it. None: it may wait there until the deadline.
        gpus: What to do about GPUs that do not compute; None: they are not sampled.
        hang_seconds: After how long without a line, or with GPUs that spin, it counts as hung. None for never.
        money_short_at: When the task's log warns that most of the run's `max_cost` is used; None without one.
    """

    run_kind: ClassVar[str]

    namespace: str
    name: str
    uid: str
    started: datetime
    schedule_seconds: float
    start_seconds: float
    deadline: datetime
    demand: str = ""
    timed_out_at: datetime | None = None
    is_covered: bool = True
    queue: str = ""
    queued_until: datetime | None = None
    gpus: GpuWatching | None = None
    hang_seconds: float | None = None
    money_short_at: datetime | None = None

    @property
    @abstractmethod
    def what(self) -> str:
        """What is waited for, as text."""

    @property
    @abstractmethod
    def named(self) -> dict[str, str]:
        """What is waited for, as an error's details have it."""

    @property
    def pods_together(self) -> int:
        """How many of its pods compute together: those that have started may wait for the others. Default: 1."""
        return 1

    @property
    @abstractmethod
    def path(self) -> str:
        """Its path, below the API server's address."""

    @abstractmethod
    def phases(self, pods: Sequence[PodState]) -> list[dict[str, object]]:
        """Return the completed phases of its life, from its pods as last seen."""

    @abstractmethod
    def has_ended(self, pods: Sequence[Json]) -> bool:
        """Return True if its pods show that it has ended, so that a worker has something to collect."""

    def money_lines(self, now: datetime) -> tuple[str, ...]:
        """Return the warning that most of the run's money is used, from `money_short_at` on."""
        if self.money_short_at is None or now < self.money_short_at:
            return ()
        return (
            f"{WARN_AT:.0%} of what max_cost leaves for work are used by now, counted at the dearest machine: it ends"
            f" at {self.deadline:%Y-%m-%d %H:%MZ}, with SIGTERM first",
        )

    def next_look(self, deadline: datetime, now: datetime) -> datetime:
        """Return when to look again although nothing has changed; `deadline` is the next one that is known."""
        short_at = self.money_short_at
        return deadline if short_at is None or short_at <= now else min(deadline, short_at)

    def _silent_too_long(
        self, what: str, silence: Silence | None, started_at: datetime | None, now: datetime
    ) -> GpuHung | None:
        """Return the error of a silence that has lasted too long since its pods started; `what` tells of whom."""
        hangs_at = self._hangs_at(silence, started_at, now)
        if hangs_at is None or now < hangs_at or silence is None or started_at is None:
            return None
        lasts = format_seconds(silence.since(started_at, now))
        return self.hung(f"{what} for {lasts}.", RAISE_HANG_TIMEOUT, silence)

    def hung(self, what: str, fix: str, silence: Silence | None, **details: object) -> GpuHung:
        """Return the error of its hang; `silence` has what it printed last."""
        return GpuHung(what, fix, **self.named, **details)

    def _hangs_at(self, silence: Silence | None, started_at: datetime | None, now: datetime) -> datetime | None:
        """Return when it counts as hung if it goes on to print nothing; None if silence does not count."""
        if self.hang_seconds is None or silence is None or started_at is None:
            return None
        return now - silence.since(started_at, now) + timedelta(seconds=self.hang_seconds)

    def pod_with_result(self, result: Mapping[str, object]) -> str | None:
        """Return the name of the pod that leaves a result after a success (its Progress's `result`). Default: none."""
        return None


@dataclass(frozen=True, kw_only=True)
class WaitOutcome(Record):
    """The outcome of the wait for what an attempt runs: for a task that defers, the event of its trigger.

    Attributes:
        namespace, name, uid: Those of the wait; another pod may have the name by now.
        saw_end: The wait ended by its own rules. False: the watching process could not continue.
        error: How the wait ended; None if the pod succeeded. Or why the pod could not be watched.
        extended_until: The wait is to go on until then: at its deadline the run's demand was found extended.
        container_ended: The base container had ended by then.
        deletion_asked_at: When the pod was deleted, as the wait saw it; None if it did not see that.
        machine: The cloud's name for the pod's machine; empty if its node was never seen.
        timeline: The phases of the pod's life.
        logs: How far its log is written: PodLogs.safe_rest, and whether the triggerer has `streamed` any of it.
        lines: What the triggerer has logged of it, if another one may follow it: KeptLines.packed.
        result: The text of its result file, if it was already read.
        kind, wait: The wait itself, to be resumed: see read_wait. Empty, and None, if there was none.
        gpu_use: The GPU use that was sampled.
    """

    namespace: str
    name: str
    uid: str
    saw_end: bool
    error: GpuError | None = None
    extended_until: datetime | None = None
    container_ended: bool = False
    deletion_asked_at: datetime | None = None
    machine: str = ""
    timeline: Sequence[Json] = ()
    logs: Json = field(default_factory=dict)
    lines: str = ""
    result: str | None = None
    kind: str = ""
    wait: Json | None = None
    gpu_use: GpuUse = field(default_factory=GpuUse)

    @classmethod
    def of_progress(cls, wait: AttemptWait, progress: Progress) -> Self:
        """Return the outcome of a wait that is over."""
        result = progress.result or {}
        return replace(
            cls.of_failure(wait, progress.error),
            saw_end=progress.result is not None,
            extended_until=progress.extended_until,
            container_ended=bool(result.get("container_ended")),
            deletion_asked_at=result.get("deletion_asked_at"),
            machine=result.get("machine") or "",
            timeline=result.get("timeline") or (),
        )

    @classmethod
    def of_failure(cls, wait: AttemptWait, error: GpuError | None) -> Self:
        """Return the outcome of a wait that could not be done."""
        return cls(
            namespace=wait.namespace,
            name=wait.name,
            uid=wait.uid,
            saw_end=False,
            error=error,
            kind=wait.run_kind,
            wait=wait.to_record(),
        )

    @property
    def has_hung(self) -> bool:
        """Whether the wait has ended it for a hang: then GPUs that were busy may have computed nothing."""
        return isinstance(self.error, GpuHung)

    def phases_until(self, now: datetime) -> Sequence[Json]:
        """Return the phases of its life; what the wait has ended while it ran goes on until now, when it is deleted."""
        last = self.timeline[-1] if self.timeline else {}
        is_ended_by_wait = self.saw_end and self.error is not None and not isinstance(self.error, LOST)
        if not is_ended_by_wait or self.container_ended or last.get("phase") != "start":
            return self.timeline
        started_at = datetime.fromisoformat(last["at"]) + timedelta(seconds=last["seconds"])
        return (*self.timeline, phase("ran", started_at, now))

    def end(self, pod: PodState | None, now: datetime) -> PodEnd | None:
        """Return how the pod, which is None if it is gone, ended; None if it may still run and could not be watched.

        A success that the wait saw stands, whatever happens to the pod's node afterwards, and so does one that only the
        pod shows. Of two failures the wait's counts if it knows more than the pod: it has also seen the node.
        """
        if self.saw_end and self.error is None:
            return PodEnd()
        pod = pod.deleted_at(self.deletion_asked_at) if pod is not None else None
        own = end_of(pod) if pod is not None else None
        if own is not None and pod is not None and (believed_at := certain_at(pod)) and now < believed_at:
            own = None
        if own is not None and own.error is None:
            return own
        if self.saw_end:
            are_late = own is not None and isinstance(own.error, PodDeadline) and isinstance(self.error, PodDeadline)
            knows_more = self.container_ended or isinstance(self.error, PodPreempted) or own is None or are_late
            return PodEnd(error=self.error) if knows_more else own
        return end_of_gone(None, name=self.name, is_unseen=True) if pod is None else own

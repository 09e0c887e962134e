"""One try of a task as its attempts need it: its bounds, and what was chosen.

A try has one pod after another if preemption is not failure: what must outlive a worker and a triggerer in between is
its AttemptRecord, which travels in the trigger's event; the number is also on the pod. PodDeadlines are the times by
which a pod must have ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Self

from kubernetes.client import ApiClient

from airflow_gpu_provider.cluster.api.clock import Clock
from airflow_gpu_provider.cluster.model.gpu_evidence import ASKED
from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.errors import (
    LOST,
    GpuError,
    GpuHung,
    GpuIdle,
    PermissionDenied,
    PodDeadline,
    PodFailed,
    PodPreempted,
    PoolSpecError,
    RunTimeOver,
)
from airflow_gpu_provider.money.budget import Budget, money_is_used
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.deadlines import TrainingBounds
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.state.demand_leases import list_demand
from airflow_gpu_provider.scaling.wait.records import Record
from airflow_gpu_provider.scaling.wait.stopping import Stop
from airflow_gpu_provider.training.code.code_files import Code
from airflow_gpu_provider.training.life.asked import Asked
from airflow_gpu_provider.training.log.task_log import TaskLog
from airflow_gpu_provider.training.place.pod_placement import Placement
from airflow_gpu_provider.training.wait.end import KILLED
from airflow_gpu_provider.training.wait.gpu_use import GpuWatching

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_gpu_provider.training.life.hook import PoolHook

OnPreemption = Literal["resume", "fail"]

MAX_PREEMPTIONS = 3

REQUEST = "asked for another node"
"""How an attempt ended whose program wants to continue elsewhere: in its error, and in the timeline."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class AttemptRecord(Record):
    """One pod of a try.

    Attributes:
        number: 1 for the first pod.
        deadline: When the try's pods must have ended, as it was last known; None before the first one is created.
        timeline: The phases of the earlier attempts.
        has_succeeded: Its success was seen, and it is still to be collected.
        machines: Those on which the try's earlier pods were preempted.
        zones: Where its next pods prefer not to run, as it lost nodes there.
    """

    number: int = 1
    deadline: datetime | None = None
    timeline: tuple[Json, ...] = ()
    has_succeeded: bool = False
    machines: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()

    def until(self, deadline: datetime) -> Self:
        """Return it with this deadline."""
        return replace(self, deadline=deadline)

    def following(self, *, deadline: datetime, phases: Sequence[Json], is_request: bool = False) -> Self:
        """Return the attempt after this one, whose pod went through `phases`; it may have asked for another node."""
        if is_request and phases:
            phases = [*phases[:-1], {**phases[-1], "end": REQUEST}]
        timeline = self.whole_timeline(phases)
        return replace(self, number=self.number + 1, deadline=deadline, timeline=timeline, has_succeeded=False)

    def without(self, machine: str, zone: str) -> Self:
        """Return it after a loss; empty is what is not known."""
        machines = (*self.machines, *([machine] if machine else []))
        return replace(self, machines=machines, zones=(*self.zones, *({zone} - {"", *self.zones})))

    def whole_timeline(self, phases: Sequence[Json]) -> tuple[Json, ...]:
        """Return the try's phases so far; with several attempts, each phase says which one it belongs to."""
        return (*self.timeline, *({**phase, "attempt": self.number} for phase in phases))


@dataclass(frozen=True, kw_only=True)
class Preemptions:
    """What a task does when its pod is preempted: `resume` at most `at_most` times in one try, or fail.

    Attributes:
        on_exit_codes: With one of these its program has saved a checkpoint, and asks for another node.
    """

    resume: bool
    at_most: int
    on_exit_codes: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        on_preemption: str | None,
        *,
        max_preemptions: int,
        has_checkpoint: bool,
        exit_codes: object = None,
        skips: Container[int] = (),
    ) -> Self:
        """Read the operator's arguments; raises PoolSpecError for a wrong one.

        Args:
            exit_codes: `resume_on_exit_codes`: one, or several; None for none.
            skips: Exit codes with which the task is skipped.
        """
        if on_preemption not in (None, "resume", "fail"):
            raise PoolSpecError(f"on_preemption={on_preemption!r}.", "It is 'resume' or 'fail'.")
        if isinstance(max_preemptions, bool) or not isinstance(max_preemptions, int) or max_preemptions < 0:
            raise PoolSpecError(f"max_preemptions={max_preemptions!r}.", "Use a whole number of at least 0.")
        resume = has_checkpoint if on_preemption is None else on_preemption == "resume"
        codes = _exit_codes(exit_codes, skips)
        if codes and not has_checkpoint:
            raise PoolSpecError(
                f"resume_on_exit_codes={exit_codes!r} without a checkpoint: the next pod would begin from the start.",
                "Give checkpoint=, and have the program save there before it ends.",
            )
        if codes and not resume:
            raise PoolSpecError(
                f"resume_on_exit_codes={exit_codes!r} with on_preemption='fail'.", "Leave out one of the two."
            )
        if codes and not max_preemptions:
            raise PoolSpecError(
                f"resume_on_exit_codes={exit_codes!r} with max_preemptions=0: no other node would be tried.",
                "Raise max_preemptions, or leave the codes out.",
            )
        return cls(resume=resume, at_most=max_preemptions, on_exit_codes=codes)

    def end(self, error: GpuError | None, node: str | None) -> GpuError | None:
        """Return how a pod ended: a PodPreempted where its program has asked for another node by its exit code.

        An end that was not the program's own, such as the pod's deadline, stays what it is. Args: `node` is the pod's.
        """
        if not isinstance(error, PodFailed) or isinstance(error, (*LOST, PodDeadline, GpuHung, GpuIdle)):
            return error
        code = error.details.get("exit_code")
        if code not in self.on_exit_codes:
            return error
        details = {key: value for key, value in error.details.items() if key not in ("rank", "without_log")}
        return PodPreempted(
            f"The training {REQUEST} than {node or 'its own'} (exit code {code}).",
            "Its log has the reason; an attempt that follows continues from the checkpoint.",
            **{**details, "node": node or "", ASKED: True},
        )

    def why_not(self, attempt: AttemptRecord, *, deadline: datetime, now: datetime) -> str:
        """Return why no other attempt follows this one; empty if one does."""
        if not self.resume:
            return "on_preemption is 'fail'"
        if attempt.number > self.at_most:
            return f"max_preemptions={self.at_most} is used up"
        return "its deadline has passed" if now >= deadline else ""


def _exit_codes(given: object, skips: Container[int]) -> frozenset[int]:
    codes: list[Any] = [] if given is None else [*given] if isinstance(given, Sequence | Set) else [given]
    for code in codes:
        if isinstance(code, bool) or not isinstance(code, int) or not 0 < code < 256:
            raise PoolSpecError(f"resume_on_exit_codes={given!r}.", "Use whole numbers from 1 to 255, such as [75].")
        if code in KILLED:
            raise PoolSpecError(
                f"resume_on_exit_codes={given!r}: {code} is the exit code of a container that was killed.",
                "Have the program end with another one, such as 75.",
            )
        if code in skips:
            raise PoolSpecError(f"Exit code {code} is in resume_on_exit_codes and in skip_on_exit_code.", "Choose one.")
    return frozenset(codes)


LEAST_SECONDS = 10
"""A pod that would have to end sooner than this after its creation is not created: it could not even start."""


@dataclass(kw_only=True)
class PodDeadlines:
    """The bounds of a task's pods.

    Attributes:
        api: Reads the run's demand.
        clock: The cluster's clock, which all of these times use.
        key: The run's demand, whose end counts if it has one: of its time, or of its money.
        max_runtime: Counts from the pod's creation if the run has no demand.
        execution_timeout: The task's, None for none; counts from `started_at`, the start of the try by Airflow's clock.
        at_latest: The deadline of the try's first pod, for those that follow it; it counts if the run has no demand.
        queue_time: How long it may wait in a Kueue queue besides max_runtime. Default 0: time there counts like other.
    """

    api: ApiClient
    clock: Clock
    key: DemandKey
    max_runtime: timedelta
    execution_timeout: timedelta | None
    started_at: datetime | None
    at_latest: datetime | None = None
    queue_time: timedelta = timedelta(0)
    _leases: tuple[DemandLease, ...] | None = field(default=None, init=False)

    def of_pod(self, created_at: datetime) -> datetime:
        """Return when a pod created at that time must have ended."""
        return self._bounds.of_pod(created_at)

    def queued_until(self, created_at: datetime) -> datetime | None:
        """Return when Kueue must have admitted what was created at that time; None where its time there counts."""
        return self._bounds.queued_until(created_at)

    @property
    def timed_out_at(self) -> datetime | None:
        """When the task's execution_timeout is over; None without one."""
        if self.execution_timeout is None or self.started_at is None:
            return None
        return self.clock.of_local(self.started_at + self.execution_timeout)

    @property
    def _bounds(self) -> TrainingBounds:
        return TrainingBounds(
            max_runtime=self.max_runtime,
            queue_time=self.queue_time,
            demand=self._demand_until(),
            execution_timeout=self.timed_out_at,
            of_try=self.at_latest,
        )

    def read_again(self) -> None:
        """Have the demand read once more when it is next asked for."""
        self._leases = None

    def seconds_of_pod(self, pool: GpuPool, now: datetime, *, keeps_machines: bool = False) -> int | None:
        """Return the activeDeadlineSeconds of a pod that is created now; None for none.

        Args:
            keeps_machines: The pool's groups keep machines whatever their switch does.

        Raises:
            BudgetExceeded, RunTimeOver: It had no time to do anything: the run's money is used, or its time over.
            PodDeadline: The same of the task's execution_timeout, or of the try's deadline.
        """
        bounds = replace(
            self._bounds,
            is_ended_by_cloud=pool.ends_by_itself and not keeps_machines,
            machine_lifetime=pool.node_lifetime,
        )
        if bounds.lasts(now) >= timedelta(seconds=LEAST_SECONDS):
            limit = bounds.kubelet_limit(now)
            return None if limit is None else int(limit.total_seconds())
        if (budget := self.budget) is not None and budget.ends_at < now + timedelta(seconds=LEAST_SECONDS):
            raise money_is_used(pool, budget, "No pod was created.")
        until = self._demand_until()
        if until is not None and until < now + timedelta(seconds=LEAST_SECONDS):
            raise RunTimeOver(
                f"The run's time on pool {pool.name} ends at {until:%Y-%m-%d %H:%M:%SZ}, and it is {now:%H:%M:%SZ}; no"
                " pod was created.",
                "Raise the pool's max_runtime, and clear the block's tasks.",
                pool=pool.name,
            )
        raise PodDeadline(
            f"The task's time on pool {pool.name} ends at {self.of_pod(now):%Y-%m-%d %H:%M:%SZ}, and it is"
            f" {now:%H:%M:%SZ}; no pod was created.",
            "Raise the task's execution_timeout, or the pool's max_runtime.",
            pool=pool.name,
        )

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
        return bool(self.live)

    @property
    def live(self) -> list[DemandLease]:
        """All runs' demand for the pool that counts now."""
        return [lease for lease in self._demand() if lease.live(self.clock.now())]

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


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """What a task's author has chosen for its pods.

    Attributes:
        placement: Where they run, without what differs from pod to pod.
        checkpoint: Where the training keeps its checkpoint, or None.
        schedule_seconds, start_seconds: See AttemptWait.
        execution_timeout: None for none; counts from the start of the try.
        grace_seconds: The grace period for deleting a pod; None for the pod's own.
        reattaches: Continue with what the try has already created.
        on_finish: KubernetesPodOperator's on_finish_action.
        gpus: What to do about GPUs that do not compute; None: they are not sampled.
        multiple_outputs: A result that is a dictionary becomes one XCom for each key, too.
        trigger_kwargs: More entries for the trigger's event.
        nodes: The number of nodes it runs on, with a pod on each.
        log_ranks: The ranks whose lines are wanted, on several nodes; None for all.
        hang_seconds: See AttemptWait.
        gets_larger_gpu: The next try gets a larger GPU if one was too small.
        skips: Exit codes with which a rank skips the task. For several nodes.
    """

    placement: Placement
    checkpoint: str | None
    preemptions: Preemptions
    schedule_seconds: float
    start_seconds: float
    execution_timeout: timedelta | None
    grace_seconds: int | None
    reattaches: bool
    deferrable: bool
    on_finish: str = "delete_pod"
    is_kept_when_killed: bool = False
    gpus: GpuWatching | None = None
    has_result: bool = False
    multiple_outputs: bool = False
    trigger_kwargs: Mapping[str, object] | None = None
    nodes: int = 1
    log_ranks: Sequence[int] | None = None
    hang_seconds: float | None = None
    gets_larger_gpu: bool = False
    skips: Container[int] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def keeps(self, *, succeeded: bool) -> bool:
        """Return whether the pods are kept at the end."""
        return self.on_finish != "delete_pod" and not (succeeded and self.on_finish == "delete_succeeded_pod")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One try of a task.

    Attributes:
        log, pod_log: The task's log, and its pods' log in it.
        started_at: When the try began, by Airflow's clock.
        holder: The name under which it holds the pool's lock.
        asked: What its task's author asks for.
        has_next_try: Airflow may try the task once more.
        take_code: Reads the code that its pods get; None where they get none.
    """

    log: Logger
    pod_log: TaskLog
    cluster: PoolHook
    stop: Stop
    started_at: datetime | None
    holder: str
    settings: PodSettings
    asked: Asked
    has_next_try: bool = False
    take_code: Callable[[], Code] | None = None

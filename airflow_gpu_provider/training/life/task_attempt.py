"""TaskAttempt: one attempt of a task's try, as PodTry sees it, whether it has one pod or a gang of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, cached_property, partial
from typing import Any, ClassVar

from kubernetes.client import V1Pod

from airflow_gpu_provider.cluster.demand_key import DemandKey
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.scaling.wait.retry import Setbacks, call_with_retries, persistently
from airflow_gpu_provider.scaling.wait.wait_loop import Narrator
from airflow_gpu_provider.training.life.creation import CREATE_WITHIN, check_pods, placement_of
from airflow_gpu_provider.training.life.deadline import PodDeadlines
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.preemptions import AttemptRecord
from airflow_gpu_provider.training.life.task import PodTask
from airflow_gpu_provider.training.place.pod_placement import check_gpus, place
from airflow_gpu_provider.training.wait.gpu_use import GpuUse
from airflow_gpu_provider.training.wait.pod_wait import phase_in_words
from airflow_gpu_provider.training.wait.wait_outcome import AttemptWait, WaitOutcome
from airflow_gpu_provider.training.watch.following import Following, wait_in_worker
from airflow_gpu_provider.training.watch.gpu_sampler import sampled_time


@dataclass(frozen=True, kw_only=True)
class Found:
    """What an attempt of this try has created, found in the cluster; `number` is the attempt's."""

    name: str
    uid: str
    number: int


class TaskAttempt(ABC):
    """What is created, waited for, collected and released once in a try, in this order.

    Args:
        task: The task that runs it.
        owner: Returns its owner; asks Airflow.
        record: The attempt's number and what earlier attempts passed on.

    Attributes:
        following: How it is waited for.
        pod: The pod, or the template of a gang's pods; None before it is known.
        phases: The phases of its life.
    """

    following: ClassVar[Following]

    def __init__(self, task: PodTask, owner: Callable[[], Ownership], record: AttemptRecord) -> None:
        self._task = task
        self._cluster = task.cluster
        self._owner_of_try = owner
        self.record = record
        self.pod: V1Pod | None = None
        self.phases: Sequence[Mapping[str, Any]] = ()
        self.is_released = False
        """Whether its end has been decided, and what it left has been deleted or kept, as the task wants."""

    @property
    @abstractmethod
    def what(self) -> str:
        """What is waited for, as text."""

    @property
    @abstractmethod
    def uids(self) -> set[str]:
        """The uids of its pods, as far as known."""

    @abstractmethod
    def adopt(self, watched: WaitOutcome) -> None:
        """Take over by name what was waited for elsewhere: it may have to be killed before it is read."""

    @abstractmethod
    def newest_of_try(self, namespace: str) -> Found | None:
        """Return what this try's latest attempt has created, if it exists and is not being deleted."""

    @abstractmethod
    def delete_left(self, namespace: str) -> set[str]:
        """Delete everything that tries of the task have left; return the uids of the pods."""

    @abstractmethod
    def start(self) -> None:
        """Create it, and tell Airflow its name."""

    @abstractmethod
    def create(self, request: V1Pod) -> V1Pod:
        """Create what runs the pod, unless an interrupted try has done so; earlier ones are ended first.

        Return `request`, or the pod that was created.
        """

    @abstractmethod
    def to_stream(self) -> dict[str, Any] | None:
        """Return what the triggerer streams of the log: TaskLog.to_stream."""

    @abstractmethod
    def wait(self) -> AttemptWait:
        """Return the wait for it; it is known at this point."""

    def watch_here(self) -> WaitOutcome:
        """Wait in this process until it has ended, writing its log."""
        wait = self.wait()
        return self._watch(wait, Narrator(self._task.log.info, started=wait.started))

    def _watch(self, wait: AttemptWait, narrator: Narrator) -> WaitOutcome:
        log, owner = self._task.pod_log, self.owner.writer
        watch = partial(
            wait_in_worker, self.following, wait, self.to_stream, self._cluster, log, owner=owner, narrator=narrator
        )
        setbacks = Narrator(self._task.log.warning, started=wait.started)
        return self._task.stop.run(persistently(watch, until=wait.deadline, narrator=setbacks))

    @abstractmethod
    def collect(self, watched: WaitOutcome, setbacks: Setbacks) -> Any:
        """Decide how it ended, collect what it left, release it, then return its result or raise.

        Args:
            watched: The wait for it.
            setbacks: The try's, including this one if it fails.

        Raises:
            GpuError: How it ended; or it may still run, or could not be collected: then it is left untouched.
        """

    def why_not_again(self, error: GpuError) -> str:
        """Return why this end is not to be followed by another attempt; empty where one may help."""
        return ""

    @abstractmethod
    def release_uncollected(self) -> None:
        """Release what is not collected, if it is known and not released yet."""

    @abstractmethod
    def kill(self) -> None:
        """Delete what was created; may be called in a signal handler."""

    def request(self, build: Callable[[], V1Pod]) -> V1Pod:
        """Return the pod to create: what `build` returns, checked and placed.

        Errors that may be transient are tolerated for some minutes. It is built once: KubernetesPodOperator logs that.
        """
        built = cache(build)

        def once() -> V1Pod:
            check_gpus(self._cluster.pool, self._task.placement.gpus)
            pod = built()
            own = (pod, self._cluster.base_container, self._task.placement.gpus)
            check_pods(self._task, [own], is_wanted=lambda: self.deadlines.is_wanted)
            return place(pod, placement_of(self._task, self.owner, self.deadlines))

        return call_with_retries(once, within=CREATE_WITHIN, say=self._task.log.warning)

    @property
    def owner(self) -> Ownership:
        return replace(self._owner_of_try(), attempt=self.record.number)

    @property
    def demand_key(self) -> DemandKey:
        """The demand that covers it, or its own if no other does."""
        return self.owner.key

    @property
    def owns_demand(self) -> bool:
        """Whether that demand is its own Lease, which no ScaleDownSensor will withdraw."""
        return False

    @cached_property
    def deadlines(self) -> PodDeadlines:
        return PodDeadlines(
            api=self._cluster.api,
            clock=self._cluster.clock,
            key=self._owner_of_try().key,
            max_runtime=self._cluster.pool.max_runtime,
            execution_timeout=self._task.execution_timeout,
            started_at=self._task.started_at,
            at_latest=self.record.deadline,
        )

    def _limits(self, created_at: datetime | None) -> dict[str, Any]:
        """Return the task's limits for the wait for what was created at that time; note its deadline."""
        started = created_at or self._cluster.clock.now()
        deadline = self.deadlines.of_pod(started)
        self.record = self.record.until(deadline)
        return {
            "started": started,
            "schedule_seconds": self._task.schedule_seconds,
            "start_seconds": self._task.start_seconds,
            "deadline": deadline,
            "is_covered": self.deadlines.is_covered,
            "gpus": self._task.gpus,
        }

    def _set_pod(self, pod: V1Pod | None) -> None:
        self.pod = pod
        self._task.on_pod(pod)

    def _tell_timeline(self, phases: Sequence[Mapping[str, Any]]) -> None:
        if not phases:
            return
        self.phases = phases
        for phase in phases:
            self._task.log.info("  %s", phase_in_words(phase))
        whole = self.record.whole_timeline(phases) if self.record.number > 1 else phases
        self._push("timeline", [*map(dict, whole)])

    def _tell_use(self, use: GpuUse, pods: Iterable[Any]) -> None:
        """Log what the GPUs did, and record it for the run's bill; takes V1Pods, or the JSON of pods."""
        if use.is_known:
            self._task.log.info("  %s", use.in_words())
            self._push("utilization", use.to_json())
        if use.mean is not None:
            self._cluster.pods.note_computed(pods, use.mean / 100, sampled=sampled_time(use))

    def _push_result_of_failed(self, result: Any) -> None:
        """Push the result of an attempt that has failed, as Airflow pushes what a task returns."""
        if result is None:
            return
        outputs = result if self._task.multiple_outputs and isinstance(result, Mapping) else {}
        for key, value in (*outputs.items(), ("return_value", result)):
            self._push(key, value)

    def _push(self, key: str, value: Any) -> None:
        """Push what is known at the end; an error is only logged, since how it ended is what matters."""
        try:
            self._task.push(key, value)
        except Exception as error:  # noqa: BLE001 - an XCom backend raises what it likes
            self._task.log.warning("The XCom %s could not be pushed: %r", key, error)

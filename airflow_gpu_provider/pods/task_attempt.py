"""TaskAttempt: what one attempt of a task's try is to PodTry, whether it has one pod or a gang of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

from kubernetes.client import V1Pod

from airflow_gpu_provider.cluster.demand import DemandKey
from airflow_gpu_provider.pods.creation import CREATE_WITHIN, check_request, placed
from airflow_gpu_provider.pods.deadline import PodDeadlines
from airflow_gpu_provider.pods.gpu_sampler import SAMPLE_EVERY
from airflow_gpu_provider.pods.gpu_use import GpuUse
from airflow_gpu_provider.pods.ownership import Ownership
from airflow_gpu_provider.pods.placement import check_gpus
from airflow_gpu_provider.pods.preemptions import Attempt
from airflow_gpu_provider.pods.task import PodTask
from airflow_gpu_provider.pods.verdict import AttemptWait, Watched
from airflow_gpu_provider.pods.wait import phase_in_words
from airflow_gpu_provider.scaling.call_with_retries import call_with_retries
from airflow_gpu_provider.scaling.setbacks import Setbacks


@dataclass(frozen=True, kw_only=True)
class Found:
    """What an attempt of this try has created, found in the cluster; `number` is the attempt's."""

    name: str
    uid: str
    number: int


class TaskAttempt(ABC):
    """What is created, waited for, collected and released once in a try, in this order.

    Args:
        task: For whom.
        owner: Returns whose it is; asks Airflow.
        record: Which of the try's attempts it is.

    Attributes:
        pod: The pod, or what a gang's pods are made by; None before it is known.
        phases: Those of its life.
    """

    def __init__(self, task: PodTask, owner: Callable[[], Ownership], record: Attempt) -> None:
        self._task = task
        self._cluster = task.cluster
        self._owner_of_try = owner
        self.record = record
        self.pod: V1Pod | None = None
        self.phases: Sequence[Mapping[str, Any]] = ()
        self._is_released = False

    @property
    @abstractmethod
    def what(self) -> str:
        """What is waited for, in words."""

    @property
    @abstractmethod
    def uids(self) -> set[str]:
        """The uids of its pods, as far as they are known."""

    @abstractmethod
    def take_up(self, watched: Watched) -> None:
        """Know what was waited for elsewhere by its name: it may have to be killed before it is read."""

    @abstractmethod
    def newest_of_try(self, namespace: str) -> Found | None:
        """Return what this try's latest attempt has created, if that is there; what is being deleted is left out."""

    @abstractmethod
    def delete_left(self, namespace: str) -> set[str]:
        """Delete all that tries of the task have left; return the uids of the pods."""

    @abstractmethod
    def start(self) -> None:
        """Create it, and tell Airflow its name."""

    @abstractmethod
    def create(self, request: V1Pod) -> V1Pod:
        """Create what runs the pod, unless the try has done so before it was interrupted; what is earlier ends first.

        Return `request`, or the pod that was created.
        """

    @abstractmethod
    def to_stream(self) -> dict[str, Any] | None:
        """Return what the triggerer streams of the log: TaskLog.to_stream."""

    @abstractmethod
    def wait(self) -> AttemptWait:
        """Return the wait for it; it is known by now."""

    @abstractmethod
    def watch_here(self) -> Watched:
        """Wait in this process until it has ended, with its log."""

    @abstractmethod
    def collect(self, watched: Watched, setbacks: Setbacks) -> Any:
        """Decide how it ended, collect what it has left, release it, and then return its result or raise.

        Args:
            watched: The wait for it.
            setbacks: Those of the try, with the one that this would be.

        Raises:
            GpuError: How it ended. Or that it may still run, or could not be collected: then it is untouched.
        """

    @abstractmethod
    def let_go(self) -> None:
        """Release what is not collected, where it is known and that has not been done."""

    @abstractmethod
    def kill(self) -> None:
        """Delete what was created; may be called in a signal handler."""

    def request(self, build: Callable[[], V1Pod]) -> V1Pod:
        """Return the pod to create: what `build` returns, checked and placed.

        Errors that may be transient are tolerated for some minutes.
        """

        def once() -> V1Pod:
            check_gpus(self._cluster.pool, self._task.placement.gpus)
            pod = build()
            check_request(pod, self._task, is_wanted=lambda: self.deadlines.is_wanted)
            return placed(pod, self._task, self.owner, self.deadlines)

        return call_with_retries(once, within=CREATE_WITHIN, say=self._task.log.warning)

    @property
    def is_released(self) -> bool:
        """Whether it has been decided how it ended, and what it left is deleted, or left, as the task wants it."""
        return self._is_released

    @property
    def owner(self) -> Ownership:
        return replace(self._owner_of_try(), attempt=self.record.number)

    @property
    def demand_key(self) -> DemandKey:
        """The demand that covers it, or that it is where no other does."""
        return self.owner.key

    @property
    def owns_demand(self) -> bool:
        """Whether that demand is a Lease of its own, for which no ScaleDownSensor comes."""
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
        self._task.push("timeline", [*map(dict, whole)])

    def _tell_use(self, use: GpuUse, pods: Iterable[Any]) -> None:
        """Say what the GPUs did, and write it down for the bill of the run; V1Pods, or the JSON of pods."""
        if use.is_known:
            self._task.log.info("  %s", use.in_words())
            self._task.push("utilization", use.to_json())
        if use.mean is not None:
            sampled = timedelta(seconds=use.samples * SAMPLE_EVERY)
            self._cluster.pods.note_computed(pods, use.mean / 100, sampled=sampled)

"""Run, PodSettings, Host: one try of a task as its attempts need it: what it uses, what was chosen, and who runs it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NoReturn, Protocol

from kubernetes.client import V1Pod

from airflow_gpu_provider.cluster.pod_state import Json
from airflow_gpu_provider.scaling.wait.stopping import Stop
from airflow_gpu_provider.training.life.hook import PoolHook
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.preemptions import AttemptRecord, Preemptions
from airflow_gpu_provider.training.log.task_log import TaskLog
from airflow_gpu_provider.training.place.pod_placement import Placement
from airflow_gpu_provider.training.wait.gpu_use import GpuWatching

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_gpu_provider.training.life.task_attempt import TaskAttempt


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """What a task's author has chosen for its pods.

    Attributes:
        placement: Where they run, without what differs from pod to pod.
        checkpoint: Where the training keeps its checkpoint, or None.
        preemptions: What to do if a pod is preempted.
        schedule_seconds, start_seconds: See AttemptWait.
        execution_timeout: None for none; counts from the start of the try.
        grace_seconds: The grace period for deleting a pod; None for the pod's own.
        reattaches: Continue with what the try has already created.
        deferrable: Wait in the triggerer.
        on_finish: KubernetesPodOperator's on_finish_action.
        is_kept_when_killed: The pod is kept if the task is killed.
        gpus: What to do about GPUs that do not compute; None: they are not sampled.
        has_result: The pod leaves a result.
        multiple_outputs: A result that is a dictionary becomes one XCom for each key, too.
        trigger_kwargs: More entries for the trigger's event.
        nodes: The number of nodes it runs on, with a pod on each.
        log_ranks: The ranks whose lines are wanted, on several nodes; None for all.
        hang_seconds: See AttemptWait.
        gets_larger_gpu: The next try gets a larger GPU if one was too small.
        skips: Exit codes with which a rank skips the task. For several nodes.
        variables: Further variables of the containers.
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
        has_next_try: Airflow may try the task once more.
    """

    log: Logger
    pod_log: TaskLog
    cluster: PoolHook
    stop: Stop
    started_at: datetime | None
    holder: str
    settings: PodSettings
    has_next_try: bool = False


class Host(Protocol):
    """The operator, as its try calls it."""

    def ownership(self) -> Ownership:
        """Return the owner of what the try creates; asks Airflow."""

    def new_attempt(self, run: Run, owner: Callable[[], Ownership], record: AttemptRecord) -> TaskAttempt:
        """Return an attempt, with the operator as its host; `owner` returns its owner."""

    def run_again(self) -> object:
        """Run the try once more through `execute`, whose preparation each worker that builds a pod needs."""

    def wait_in_triggerer(self, record: dict[str, object], timeout: timedelta) -> NoReturn:
        """Raise TaskDeferred, with the trigger of this record."""

    def push(self, key: str, value: object) -> None:
        """Push an XCom."""

    def show_pod(self, pod: V1Pod | None) -> None:
        """Take the pod as it is known now, or None."""


class PodHost(Host, Protocol):
    """An operator that creates pods itself, or the template of a gang's."""

    def unplaced_pod(self) -> V1Pod:
        """Return the pod to create, not placed yet."""

    def call_back(self, name: str, **what: V1Pod) -> None:
        """Call this method of the task's KubernetesPodOperatorCallbacks."""

    def extract_xcom(self, pod: V1Pod) -> object:
        """Read a pod's result, and end the container that keeps it."""

    def release_pod(self, pod: V1Pod, result: object) -> None:
        """Delete or keep a pod as on_finish_action says; also takes its result, and pushes nothing."""


class WorkloadHost(Host, Protocol):
    """An operator that creates an object whose controller creates pods."""

    @property
    def named_manifest(self) -> Json:
        """The object, rendered, with name and namespace."""

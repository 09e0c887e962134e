"""PodTask: a task that runs pods, as their life cycle needs it: its arguments, and what Airflow does for it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from kubernetes.client import V1Pod

from airflow_gpu_provider.scaling.wait.stopping import Stop
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.preemptions import AttemptRecord, Preemptions
from airflow_gpu_provider.training.life.task_cluster import TaskCluster
from airflow_gpu_provider.training.log.task_log import TaskLog
from airflow_gpu_provider.training.place.pod_placement import Placement
from airflow_gpu_provider.training.wait.gpu_use import GpuWatching

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_gpu_provider.training.life.task_attempt import TaskAttempt


@dataclass(frozen=True, kw_only=True)
class PodTask:
    """One try of a task.

    Attributes:
        log, pod_log: The task's log, and its pods' log in it.
        placement: Where its pods run, without what differs from pod to pod.
        checkpoint: Where its training keeps its checkpoint, or None.
        preemptions: What to do if a pod is preempted.
        schedule_seconds, start_seconds: See PodWait.
        execution_timeout: None for none; counts from `started_at`, the start of the try by Airflow's clock.
        grace_seconds: The grace period for deleting the pod; None for the pod's own.
        reattaches: Continue with a pod that the try has already created.
        has_result: The pod leaves a result.
        multiple_outputs: A result that is a dictionary becomes one XCom for each key, too.
        is_kept_when_killed: The pod is kept if the task is killed.
        holder: The name under which it holds the pool's lock.
        owner: Returns the pods' owner; asks Airflow.
        execute: Calls the try's `run` through the task's `execute`, whose preparation each worker that builds a pod
            needs.
        build, create: Return the pod to create, placed, and create it.
        defer: Takes the trigger's record and the timeout, and raises TaskDeferred.
        extract_result: Reads a pod's result, and ends the container that keeps it.
        release: Deletes or keeps a pod according to on_finish_action; also takes its result, and pushes nothing.
        call_back: Takes the name of a KubernetesPodOperatorCallback method, and its keyword arguments.
        push: Takes the key and the value of an XCom.
        on_pod: Takes the pod as it is known now, or None.
        trigger_kwargs: More entries for the trigger's event.
        gpus: What to do about GPUs that do not compute; None: they are not sampled.
        nodes: The number of nodes it runs on, with a pod on each.
        log_ranks: The ranks whose lines are wanted, on several nodes; None for all.
        hang_seconds: See GangWait. For several nodes.
        new_attempt: Makes an attempt. Default: PodAttempt, a single pod.
        manifest: Returns the workload that creates its pods, rendered, with name and namespace. For a workload.
        skips: Exit codes with which a rank skips the task. For several nodes.
        keeps: Takes whether the attempt has succeeded; returns whether its pods are kept. For several nodes.
    """

    log: Logger
    pod_log: TaskLog
    cluster: TaskCluster
    stop: Stop
    placement: Placement
    checkpoint: str | None
    preemptions: Preemptions
    schedule_seconds: float
    start_seconds: float
    execution_timeout: timedelta | None
    started_at: datetime | None
    grace_seconds: int | None
    reattaches: bool
    has_result: bool
    deferrable: bool
    is_kept_when_killed: bool
    holder: str
    owner: Callable[[], Ownership]
    execute: Callable[[], Any]
    build: Callable[[], V1Pod]
    create: Callable[[V1Pod], V1Pod]
    defer: Callable[[dict[str, Any], timedelta], None]
    extract_result: Callable[[V1Pod], Any]
    release: Callable[[V1Pod, Any], None]
    call_back: Callable[..., None]
    push: Callable[[str, Any], None]
    on_pod: Callable[[V1Pod | None], None]
    multiple_outputs: bool = False
    trigger_kwargs: Mapping[str, Any] = field(default_factory=dict)
    gpus: GpuWatching | None = None
    nodes: int = 1
    log_ranks: Sequence[int] | None = None
    hang_seconds: float | None = None
    new_attempt: Callable[[PodTask, Callable[[], Ownership], AttemptRecord], TaskAttempt] | None = None
    manifest: Callable[[], dict[str, Any]] | None = None
    skips: Container[int] = ()
    keeps: Callable[[bool], bool] = bool

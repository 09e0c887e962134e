"""PodTask: a task that runs pods, as the life of these needs it: its arguments, and what Airflow does for it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from kubernetes.client import V1Pod

from airflow_gpu_provider.pods.gpu_use import GpuWatching
from airflow_gpu_provider.pods.ownership import Ownership
from airflow_gpu_provider.pods.placement import Placement
from airflow_gpu_provider.pods.preemptions import Attempt, Preemptions
from airflow_gpu_provider.pods.task_cluster import TaskCluster
from airflow_gpu_provider.pods.task_log import TaskLog
from airflow_gpu_provider.stopping import Stop

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_gpu_provider.pods.task_attempt import TaskAttempt


@dataclass(frozen=True, kw_only=True)
class PodTask:
    """One try of a task.

    Attributes:
        log, pod_log: The task's, and its pods' in it.
        placement: Where its pods run; what differs from pod to pod is not in it yet.
        checkpoint: Where its training keeps one, or None.
        preemptions: What to do where a pod is taken away.
        schedule_seconds, start_seconds: See PodWait.
        execution_timeout: None for none; counts from `started_at`, the start of the try by Airflow's clock.
        grace_seconds: The pod's grace period where it is deleted; None for its own.
        reattaches: A pod that the try has created before is gone on with.
        has_result: The pod leaves a result.
        is_kept_when_killed: The pod stays where the task is told to stop.
        holder: Who has the pool's lock, in words.
        owner: Returns whose pods they are; asks Airflow.
        execute: Calls the try's `run`, by the task's `execute`: what it prepares, each worker that builds a pod needs.
        build, create: Return the pod to create, placed, and create it.
        defer: Takes the trigger's record and the timeout, and raises TaskDeferred.
        extract_result: Reads a pod's result, and ends the container that keeps it.
        release: Does with a pod what on_finish_action says; takes its result too.
        call_back: Takes the name of a KubernetesPodOperatorCallback's method, and what it is told by keyword.
        push: Takes the key and the value of an XCom.
        on_pod: Takes the pod as it is known now, or None.
        trigger_kwargs: More entries for the trigger's event.
        gpus: What to do about GPUs that do not compute; None: nobody asks what they do.
        nodes: On how many nodes it runs, with a pod on each.
        log_ranks: Whose lines of several nodes' are wanted; None for all.
        hang_seconds: See GangWait. For several nodes.
        new_attempt: Makes what one attempt is. Default: PodAttempt, a single pod.
        manifest: Returns the workload that makes its pods, rendered, with name and namespace. For a workload.
        skips: Exit codes with which a rank skips the task. For several nodes.
        keeps: Takes whether the attempt has succeeded; returns whether its pods stay. For several nodes.
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
    trigger_kwargs: Mapping[str, Any] = field(default_factory=dict)
    gpus: GpuWatching | None = None
    nodes: int = 1
    log_ranks: Sequence[int] | None = None
    hang_seconds: float | None = None
    new_attempt: Callable[[PodTask, Callable[[], Ownership], Attempt], TaskAttempt] | None = None
    manifest: Callable[[], dict[str, Any]] | None = None
    skips: Container[int] = ()
    keeps: Callable[[bool], bool] = bool

"""The pod that a task creates: checked before, placed, and created once, when all earlier ones have ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache

from kubernetes.client import V1Pod

from airflow_gpu_provider.pods.checkpoint import (
    check_claims_reach,
    check_location,
    check_outlives_pod,
    environment,
)
from airflow_gpu_provider.pods.deadline import PodDeadlines
from airflow_gpu_provider.pods.ownership import Ownership
from airflow_gpu_provider.pods.placement import Placement, place
from airflow_gpu_provider.pods.store import attempt_of
from airflow_gpu_provider.pods.task import PodTask
from airflow_gpu_provider.scaling.release_without_sensor import check_nodes_can_come
from airflow_gpu_provider.workload_placement import idle_gpus_warning

CREATE_WITHIN = timedelta(minutes=5)
"""For how long a worker tries to create a pod: a quota that is used up for longer is the task's retries' affair."""


def check_request(pod: V1Pod, task: PodTask, is_wanted: Callable[[], bool]) -> None:
    """Check that a pod can keep its checkpoint and have nodes; `is_wanted`: somebody wants nodes of the pool already.

    Raises:
        GpuError: It cannot; or it cannot be found out.
    """
    cluster, pool = task.cluster, task.cluster.pool
    if warning := idle_gpus_warning(pool, task.placement.gpus):
        task.log.warning("%s", warning)
    groups = cache(cluster.hook.platform.observe)
    if task.checkpoint:
        check_location(task.checkpoint)
        check_outlives_pod(task.checkpoint, pod, cluster.base_container, pool, groups)
    check_claims_reach(pod, pool, cluster.client, groups)
    if not is_wanted():
        check_nodes_can_come(pool, groups)


def placed(pod: V1Pod, task: PodTask, owner: Ownership, deadlines: PodDeadlines) -> V1Pod:
    """Return the pod with its place, its owner, its deadline and what its container is to know."""
    return place(pod, placement_of(task, owner, deadlines))


def placement_of(task: PodTask, owner: Ownership, deadlines: PodDeadlines) -> Placement:
    """Return where the task's next pod runs, whose it is, until when, and what its container is to know."""
    now = task.cluster.clock.now()
    return replace(
        task.placement,
        active_deadline_seconds=max(1, int((deadlines.of_pod(now) - now).total_seconds())),
        labels=owner.labels,
        annotations=owner.annotations,
        avoid=task.cluster.gpu_health.bad_hosts(),
        env=environment(checkpoint=task.checkpoint, run_id=owner.task, attempt=owner.attempt),
    )


def find_or_create(request: V1Pod, owner: Ownership, task: PodTask, on_request: Callable[[V1Pod], None]) -> V1Pod:
    """Return this try's pod, created now unless the try was interrupted before; all earlier pods end first.

    `on_request` is called just before it is created: from then on it may be there.

    Raises:
        GpuError: It is refused, or the cluster does not answer.
    """
    pods, namespace = task.cluster.pods, request.metadata.namespace
    newest = pods.newest_of_try(namespace, owner) if task.reattaches else None
    current = newest if newest is not None and attempt_of(newest) >= owner.attempt else None
    there = pods.of_task(namespace, owner)
    earlier = [pod for pod in there if current is None or pod.metadata.uid != current.metadata.uid]
    for pod in earlier:
        if not pod.metadata.deletion_timestamp:
            task.log.info("Deleting pod %s of an earlier try or attempt.", pod.metadata.name)
            pods.delete(pod)
    if current is not None:
        task.log.info("Goes on with pod %s, which this try has created before.", current.metadata.name)
        return current
    pods.await_end(earlier, task.cluster.clock, task.log.info)
    on_request(request)
    pod = pods.create(request, owner, grace_seconds=task.grace_seconds or 30)
    task.log.info("Created pod %s/%s.", pod.metadata.namespace, pod.metadata.name)
    return pod

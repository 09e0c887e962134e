"""The pod that a task creates: checked first, placed, and created once, when all earlier ones have ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from functools import cache

from kubernetes.client import V1Pod

from airflow_gpu_provider.cluster.access_review import verbs_missing_for_exec
from airflow_gpu_provider.errors import GpuError, PermissionDenied
from airflow_gpu_provider.pools.workload_placement import grace_warning, idle_gpus_warning
from airflow_gpu_provider.scaling.end.release_now import check_nodes_can_come
from airflow_gpu_provider.training.life.deadline import PodDeadlines
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.store import attempt_of
from airflow_gpu_provider.training.life.task import PodTask
from airflow_gpu_provider.training.place.checkpoint import (
    check_claims_reach,
    check_location,
    check_outlives_pod,
    environment,
)
from airflow_gpu_provider.training.place.pod_placement import Placement, check_gpus

_log = logging.getLogger(__name__)

CREATE_WITHIN = timedelta(minutes=5)
"""How long a worker tries to create a pod: a quota exhausted for longer is left to the task's retries."""


def check_pods(task: PodTask, pods: Iterable[tuple[V1Pod, str, int | None]], is_wanted: Callable[[], bool]) -> None:
    """Check that pods can keep their checkpoint and get nodes; `is_wanted`: some run already wants the pool's nodes.

    Each comes with the name of the container that has the GPUs, and their number; None if unknown.

    Raises:
        GpuError: They cannot, or it cannot be determined.
    """
    cluster, pool = task.cluster, task.cluster.pool
    groups = cache(cluster.hook.platform.observe)
    if task.checkpoint:
        check_location(task.checkpoint)
    for pod, base, gpus in pods:
        warnings = [grace_warning(pool, pod.spec.termination_grace_period_seconds)]
        if gpus:
            check_gpus(pool, gpus)
            warnings.append(idle_gpus_warning(pool, gpus))
        for warning in filter(None, warnings):
            task.log.warning("%s", warning)
        if task.checkpoint:
            check_outlives_pod(task.checkpoint, pod, base, pool, groups)
        check_claims_reach(pod, pool, cluster.client, groups)
    if not is_wanted():
        check_nodes_can_come(pool, groups)


def check_exec(task: PodTask, namespace: str) -> None:
    """Raise PermissionDenied if the result of the task's pod could not be read; not if the API server does not say."""
    if not task.has_result:
        return
    try:
        missing = verbs_missing_for_exec(task.cluster.api, namespace)
    except GpuError as error:
        _log.debug("Whether exec is allowed is not known: %s", error)
        return
    if missing:
        verbs = ", ".join(f'"{verb}"' for verb in missing)
        raise PermissionDenied(
            f"The cluster denies permission to {' and '.join(missing)} pods/exec in namespace {namespace}: the pod's"
            " result could not be read. No pod is created.",
            f'Grant it: resources ["pods/exec"], verbs [{verbs}], as in docs/rbac/; or leave out do_xcom_push.',
            resource="pods/exec",
            namespace=namespace,
        )


def placement_of(task: PodTask, owner: Ownership, deadlines: PodDeadlines) -> Placement:
    """Return the placement of the task's next pod: where it runs, its owner, its deadline and its environment."""
    now = task.cluster.clock.now()
    return replace(
        task.placement,
        active_deadline_seconds=max(1, int((deadlines.of_pod(now) - now).total_seconds())),
        labels=owner.labels,
        annotations=owner.annotations,
        avoid=task.cluster.gpu_health.avoidance(),
        env=environment(checkpoint=task.checkpoint, run_id=owner.task, attempt=owner.attempt),
    )


def find_or_create(request: V1Pod, owner: Ownership, task: PodTask, on_request: Callable[[V1Pod], None]) -> V1Pod:
    """Return this try's pod, created now unless an interrupted try did so; all earlier pods are ended first.

    `on_request` is called just before it is created: from then on it may exist.

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
        task.log.info("Continuing with pod %s, which this try has already created.", current.metadata.name)
        return current
    check_exec(task, namespace)
    pods.await_end(earlier, task.cluster.clock, task.log.info)
    on_request(request)
    pod = pods.create(request, owner, grace_seconds=task.grace_seconds or 30)
    task.log.info("Created pod %s/%s.", pod.metadata.namespace, pod.metadata.name)
    return pod

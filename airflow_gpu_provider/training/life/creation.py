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
from airflow_gpu_provider.scaling.decide.placement import memory_of
from airflow_gpu_provider.scaling.end.release_now import check_nodes_can_come
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.preemptions import PodDeadlines
from airflow_gpu_provider.training.life.run import Run
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


def check_pods(run: Run, pods: Iterable[tuple[V1Pod, str, int | None]], is_wanted: Callable[[], bool]) -> None:
    """Check that pods can keep their checkpoint and get nodes; `is_wanted`: some run already wants the pool's nodes.

    Each comes with the name of the container that has the GPUs, and their number; None if unknown.

    Raises:
        GpuError: They cannot, or it cannot be determined.
    """
    cluster, pool, checkpoint = run.cluster, run.cluster.pool, run.settings.checkpoint
    groups = cache(cluster.platform.observe)
    if checkpoint:
        check_location(checkpoint)
    for pod, base, gpus in pods:
        warnings = [grace_warning(pool, pod.spec.termination_grace_period_seconds)]
        if gpus:
            check_gpus(pool, gpus)
            warnings.append(idle_gpus_warning(pool, gpus))
        for warning in filter(None, warnings):
            run.log.warning("%s", warning)
        if checkpoint:
            check_outlives_pod(checkpoint, pod, base, pool, groups)
        check_claims_reach(pod, pool, cluster.core_v1_client, groups)
    if not is_wanted():
        check_nodes_can_come(pool, groups)


def check_exec(run: Run, namespace: str) -> None:
    """Raise PermissionDenied if the result of the task's pod could not be read; not if the API server does not say."""
    if not run.settings.has_result:
        return
    try:
        missing = verbs_missing_for_exec(run.cluster.api, namespace)
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


def placement_of(run: Run, owner: Ownership, deadlines: PodDeadlines) -> Placement:
    """Return the placement of the try's next pod: where it runs, its owner, its deadline and its environment."""
    now, settings = run.cluster.clock.now(), run.settings
    demand = deadlines.own_demand if settings.gets_larger_gpu else None
    larger = demand.larger_of(owner.task_id, owner.map_index) if demand is not None else None
    if larger is not None:
        run.log.info("Asking for %s: an earlier try ran out of GPU memory.", memory_of(larger.instance_type))
    return replace(
        settings.placement,
        instance_type=larger.instance_type if larger is not None else "",
        active_deadline_seconds=max(1, int((deadlines.of_pod(now) - now).total_seconds())),
        labels=owner.labels,
        annotations=owner.annotations,
        avoid=run.cluster.gpu_health.avoidance(),
        env={
            **environment(checkpoint=settings.checkpoint, run_id=owner.task, attempt=owner.attempt),
            **settings.variables,
        },
    )

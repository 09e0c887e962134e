"""Checks the pods that an attempt is to create, and says where they are placed, once the run's demand allows that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

from kubernetes.client import V1Pod

from airflow_gpu_provider.pools.workload_placement import grace_warning, idle_gpus_warning
from airflow_gpu_provider.scaling.decide.placement import memory_of
from airflow_gpu_provider.scaling.end.release_now import check_nodes_can_come
from airflow_gpu_provider.training.life.code_of_try import code_volume
from airflow_gpu_provider.training.life.demand_spec import follow_spec, task_nodes_for
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.run import PodDeadlines, Run
from airflow_gpu_provider.training.place.checkpoint import (
    check_claims_reach,
    check_location,
    check_outlives_pod,
    environment,
)
from airflow_gpu_provider.training.place.pod_placement import Placement, check_gpus


def check_pods(run: Run, pods: Iterable[tuple[V1Pod, str, int | None]], is_wanted: Callable[[], bool]) -> None:
    """Check that pods can keep their checkpoint and get nodes; `is_wanted`: some run already wants the pool's nodes.

    Each comes with the name of the container that has the GPUs, and their number; None if unknown.
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


def _keep_machines(run: Run) -> bool:
    """Whether external groups have a minimum size, below which no switch sets them."""
    cluster, pool = run.cluster, run.cluster.pool
    is_asked = pool.ends_by_itself and pool.manage == "scale"
    return is_asked and any(group.keeps for group in cluster.platform.observe())


def placement_of(
    run: Run, owner: Ownership, deadlines: PodDeadlines, namespace: str, left_zones: tuple[str, ...] = ()
) -> Placement:
    """Return the placement of the try's next pod, once the run's demand allows the machines that it needs.

    It prefers not to run in `left_zones`.
    The code of the task is in `namespace` then, that of its pods.
    """
    now, settings, demand = run.cluster.clock.now(), run.settings, deadlines.own_demand
    follow_spec(run, demand)
    nodes = task_nodes_for(run, owner, demand)
    larger = nodes.instance_type if nodes is not None and settings.gets_larger_gpu else ""
    if larger:
        run.log.info("Asking for %s: an earlier try ran out of GPU memory.", memory_of(run.cluster.pool, larger))
    placed = replace(
        settings.placement,
        instance_type=larger,
        off_spot=nodes is not None and nodes.market == "ON_DEMAND",
        left_zones=left_zones,
        active_deadline_seconds=deadlines.seconds_of_pod(run.cluster.pool, now, keeps_machines=_keep_machines(run)),
        labels=owner.labels,
        annotations={**owner.annotations, **run.asked.annotations},
        avoid=run.cluster.gpu_health.avoidance(owner.key, gpus=settings.placement.gpus, nodes=settings.nodes),
        env={
            **environment(checkpoint=settings.checkpoint, run_id=owner.task, attempt=owner.attempt),
            **settings.variables,
        },
    )
    return replace(placed, code=code_volume(run, owner, namespace))

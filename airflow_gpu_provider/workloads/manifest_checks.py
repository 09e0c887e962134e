"""What is checked of a workload before it is created: its checkpoint, its volumes, and that nodes can come."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from airflow_gpu_provider.pods.checkpoint import check_claims_reach, check_location, check_outlives_pod
from airflow_gpu_provider.pods.placement import check_gpus
from airflow_gpu_provider.pods.task import PodTask
from airflow_gpu_provider.scaling.release_without_sensor import check_nodes_can_come
from airflow_gpu_provider.workload_placement import idle_gpus_warning
from airflow_gpu_provider.workloads.kinds import Manifest
from airflow_gpu_provider.workloads.manifest_placement import training_pods


def check_workload(manifest: Manifest, task: PodTask, is_wanted: Callable[[], bool]) -> None:
    """Check that the pods with GPUs can keep their checkpoint and have nodes, as a single pod is checked.

    Args:
        manifest: Rendered.
        task: For whom.
        is_wanted: Says whether somebody wants nodes of the pool already.

    Raises:
        GpuError: They cannot; or it cannot be found out.
    """
    cluster, pool = task.cluster, task.cluster.pool
    groups = cache(cluster.hook.platform.observe)
    if task.checkpoint:
        check_location(task.checkpoint)
    for pod, base, gpus in training_pods(manifest):
        if gpus:
            check_gpus(pool, gpus)
            if warning := idle_gpus_warning(pool, gpus):
                task.log.warning("%s", warning)
        if task.checkpoint:
            check_outlives_pod(task.checkpoint, pod, base, pool, groups)
        check_claims_reach(pod, pool, cluster.client, groups)
    if not is_wanted():
        check_nodes_can_come(pool, groups)

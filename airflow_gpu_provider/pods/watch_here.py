"""The wait for a pod in a worker, for a task that does not defer: the same watch as the trigger's, and its log."""

from __future__ import annotations

from kubernetes.client import V1Pod

from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.cluster.informer import connected
from airflow_gpu_provider.errors import PodPreempted
from airflow_gpu_provider.pods.followed_log import LAST_WORDS_WITHIN, PodLogs
from airflow_gpu_provider.pods.gpu_sampler import PodSampler, each
from airflow_gpu_provider.pods.task_cluster import TaskCluster
from airflow_gpu_provider.pods.task_log import TaskLog
from airflow_gpu_provider.pods.verdict import Watched
from airflow_gpu_provider.pods.wait import PodWait
from airflow_gpu_provider.pods.watch import watch_pod
from airflow_gpu_provider.scaling.wait_loop import Narrator


async def watch_here(
    wait: PodWait, pod: V1Pod | None, cluster: TaskCluster, log: TaskLog, *, owner: str, narrator: Narrator
) -> Watched:
    """Wait for a pod, and write its log meanwhile; `owner` and `narrator` as for watch_pod.

    Raises:
        GpuError: The cluster, or credentials for it, cannot be found.
    """
    pool = cluster.pool

    def open_access() -> ClusterAccess:
        return cluster.hook.access

    async with connected(pool.cluster_identity, open_access) as api:
        logs = PodLogs(api, wait, log.to_stream(pod, cluster.api), log.log.log, write=log.write_line, alone=True)
        gpus = PodSampler(api, wait, say=log.log.info, warn=log.log.warning)
        try:
            async with logs, gpus:
                on_pod = each(logs.follow, gpus.follow)
                watching = watch_pod(pool, wait, owner=owner, narrator=narrator, open_access=open_access, on_pod=on_pod)
                progress = await gpus.beside(watching)
                if isinstance(progress.error, PodPreempted):
                    await logs.drain(LAST_WORDS_WITHIN)
        finally:
            log.followed = logs.rest()
    return Watched.of_progress(wait, progress, log.followed, gpus.use)

"""The wait for a gang in a worker, for a task that does not defer: the same watch as the trigger's, and its logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kubernetes.client import V1Pod

from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.cluster.informer import connected
from airflow_gpu_provider.pods.followed_log import WriteLine
from airflow_gpu_provider.pods.gpu_sampler import each
from airflow_gpu_provider.pods.task_cluster import TaskCluster
from airflow_gpu_provider.pods.task_log import TaskLog
from airflow_gpu_provider.pods.verdict import Watched
from airflow_gpu_provider.scaling.wait_loop import Narrator
from airflow_gpu_provider.workloads.end_ranks import end_ranks
from airflow_gpu_provider.workloads.gang_sampler import GangSampler
from airflow_gpu_provider.workloads.gang_wait import GangWait
from airflow_gpu_provider.workloads.logs import GangLogs, shown_as
from airflow_gpu_provider.workloads.watch import watch_gang


async def watch_here(
    wait: GangWait,
    pod: V1Pod | None,
    cluster: TaskCluster,
    log: TaskLog,
    *,
    ranks: Sequence[int] | None,
    owner: str,
    narrator: Narrator,
) -> Watched:
    """Wait for a gang, and write the log of these ranks meanwhile, or of all; `pod` is what its pods are made by.

    Raises:
        GpuError: The cluster, or credentials for it, cannot be found.
    """
    pool = cluster.pool

    def open_access() -> ClusterAccess:
        return cluster.hook.access

    def write_line(rank: int) -> WriteLine:
        return replace(log, shown_as=partial(shown_as, rank=rank, base=wait.base_container)).write_line

    async with connected(pool.cluster_identity, open_access) as api:
        wanted = {**(log.to_stream(pod, cluster.api) or {}), "ranks": ranks}
        logs = GangLogs(api, wait, wanted, log.log.log, write_line=write_line, alone=True)
        gpus = GangSampler(api, wait, say=log.log.info, warn=log.log.warning)
        try:
            async with logs, gpus:
                watching = watch_gang(
                    pool,
                    wait,
                    owner=owner,
                    narrator=narrator,
                    open_access=open_access,
                    on_pod=each(logs.follow, gpus.follow),
                    silence=logs.silence,
                )
                progress = await gpus.beside(watching)
                if progress.error is not None:
                    await end_ranks(api, wait, logs, log.log.log)
        finally:
            log.followed = logs.rest()
    return Watched.of_progress(wait, progress, log.followed, gpus.use)

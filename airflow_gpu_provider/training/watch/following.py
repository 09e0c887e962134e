"""Following: the wait for what a task runs, with its log and its GPU use; in a worker and a triggerer alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.cluster.async_api import AsyncApi
from airflow_gpu_provider.cluster.informer import connected
from airflow_gpu_provider.errors import LOST
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.wait.wait_loop import Narrator
from airflow_gpu_provider.scaling.wait.waits import Progress
from airflow_gpu_provider.training.log.followed_log import LAST_WORDS_WITHIN, PodLogs
from airflow_gpu_provider.training.wait.wait_outcome import WaitOutcome
from airflow_gpu_provider.training.watch.gpu_sampler import GpuSampler, each
from airflow_gpu_provider.training.watch.pod_view import PodView
from airflow_gpu_provider.training.watch.watch_loop import watch

if TYPE_CHECKING:
    from airflow_gpu_provider.training.life.task_cluster import TaskCluster
    from airflow_gpu_provider.training.log.task_log import TaskLog

Wanted = dict[str, Any] | None


class Following(ABC):
    """What differs between the waits for one pod, for a gang, and for a workload."""

    @abstractmethod
    def logs(
        self, api: AsyncApi, wait: Any, wanted: Wanted, log: Callable[..., None], task_log: TaskLog | None = None
    ) -> Any:
        """Return the streams of the pods' logs; in a worker they are written as its `task_log` says."""

    @abstractmethod
    def watching(self, pool: GpuPool, wait: Any, logs: Any, **how: Any) -> Coroutine[Any, Any, Progress]:
        """Return the wait itself, with arguments of `watch`."""

    @abstractmethod
    async def finish(self, api: AsyncApi, wait: Any, progress: Progress, logs: Any, log: Callable[..., None]) -> None:
        """Do what is urgent when the wait is over, while the logs are still streamed."""

    async def follow(
        self, api: AsyncApi, pool: GpuPool, wait: Any, logs: Any, gpus: GpuSampler, log: Callable[..., None], **how: Any
    ) -> Progress:
        """Wait until it is over, within the contexts of `logs` and `gpus`; errors as for `watch`."""
        watching = self.watching(pool, wait, logs, on_pod=each(logs.follow, gpus.follow), **how)
        progress = await gpus.beside(watching)
        await gpus.stop()
        await self.finish(api, wait, progress, logs, log)
        return progress


class PodFollowing(Following):
    """Follows one pod."""

    def logs(
        self, api: AsyncApi, wait: Any, wanted: Wanted, log: Callable[..., None], task_log: TaskLog | None = None
    ) -> PodLogs:
        if task_log is None:
            return PodLogs(api, wait, wanted, log)
        return PodLogs(api, wait, wanted, log, write=task_log.write_line, alone=True)

    def watching(self, pool: GpuPool, wait: Any, logs: Any, **how: Any) -> Coroutine[Any, Any, Progress]:
        return watch(PodView, pool, wait, **how)

    async def finish(self, api: AsyncApi, wait: Any, progress: Progress, logs: Any, log: Callable[..., None]) -> None:
        if isinstance(progress.error, LOST):  # its log may be gone before a worker can read it
            await logs.drain(LAST_WORDS_WITHIN)


async def wait_in_worker(
    following: Following,
    wait: Any,
    to_stream: Callable[[], Wanted],
    cluster: TaskCluster,
    log: TaskLog,
    *,
    owner: str,
    narrator: Narrator,
) -> WaitOutcome:
    """Wait in a worker, for a task that does not defer, and write the log meanwhile.

    Raises:
        GpuError: The cluster, or credentials for it, cannot be found.
    """
    pool, say = cluster.pool, log.log.log

    def open_access() -> ClusterAccess:
        return cluster.hook.access

    async with connected(pool.cluster_identity, open_access) as api:
        logs = following.logs(api, wait, to_stream(), say, log)
        gpus = GpuSampler(api, wait, say=log.log.info, warn=log.log.warning)
        how = {"owner": owner, "narrator": narrator, "open_access": open_access}
        try:
            async with logs, gpus:
                progress = await following.follow(api, pool, wait, logs, gpus, say, **how)
        finally:
            log.followed = logs.rest()
    return WaitOutcome.of_progress(wait, progress, log.followed, gpus.use)

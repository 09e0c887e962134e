"""How a gang, and a workload, are followed: see pods.following."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.cluster.async_api import AsyncApi
from airflow_gpu_provider.cluster.gang_labels import jobs_path
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.wait.waits import Progress
from airflow_gpu_provider.training.log.followed_log import LAST_WORDS_WITHIN, WriteLine
from airflow_gpu_provider.training.log.object_logs import GangLogs, WorkloadLogs, shown_as
from airflow_gpu_provider.training.wait.gang_wait import GangWait
from airflow_gpu_provider.training.watch.following import Following, Wanted
from airflow_gpu_provider.training.watch.object_view import GangView, WorkloadView
from airflow_gpu_provider.training.watch.watch_loop import watch

if TYPE_CHECKING:
    from airflow_gpu_provider.training.log.task_log import TaskLog


class GangFollowing(Following):
    """Follows a gang; when a rank has failed, the others are ended as soon as their logs are read."""

    def logs(
        self, api: AsyncApi, wait: Any, wanted: Wanted, log: Callable[..., None], task_log: TaskLog | None = None
    ) -> GangLogs:
        if task_log is None:
            return GangLogs(api, wait, wanted, log)

        def write_line(rank: int) -> WriteLine:
            return replace(task_log, shown_as=partial(shown_as, rank=rank, base=wait.base_container)).write_line

        return GangLogs(api, wait, wanted, log, write_line=write_line, alone=True)

    def watching(self, pool: GpuPool, wait: Any, logs: Any, **how: Any) -> Coroutine[Any, Any, Progress]:
        return watch(GangView, pool, wait, silence=logs.silence, **how)

    async def finish(self, api: AsyncApi, wait: Any, progress: Progress, logs: Any, log: Callable[..., None]) -> None:
        if progress.error is not None:
            await end_ranks(api, wait, logs, log)


class WorkloadFollowing(Following):
    """Follows a workload."""

    def logs(
        self, api: AsyncApi, wait: Any, wanted: Wanted, log: Callable[..., None], task_log: TaskLog | None = None
    ) -> WorkloadLogs:
        return WorkloadLogs(api, wait, wanted, log, alone=task_log is not None)

    def watching(self, pool: GpuPool, wait: Any, logs: Any, **how: Any) -> Coroutine[Any, Any, Progress]:
        return watch(WorkloadView, pool, wait, **how)

    async def finish(self, api: AsyncApi, wait: Any, progress: Progress, logs: Any, log: Callable[..., None]) -> None:
        await logs.drain(LAST_WORDS_WITHIN)


_STOPPED_WITHIN = 30.0  # seconds, Kubernetes' default grace period; what a rank prints goes with its pod


async def end_ranks(api: AsyncApi, wait: GangWait, logs: GangLogs, log: Callable[..., None]) -> None:
    """Have the running ranks deleted; those that have ended stay, and can be read.

    If a log is not followed, the ranks are left to the worker that reads it. `log` takes a level, a format and its
    arguments.
    """
    await logs.drain(LAST_WORDS_WITHIN)
    if not logs.is_whole:
        return
    body = {"metadata": {"uid": wait.uid}, "spec": {"parallelism": 0}}
    try:
        if await api.patch(f"{jobs_path(wait.namespace).lstrip('/')}/{wait.name}", body) and logs.has_pods:
            log(logging.INFO, "%s", "The ranks that still run are ended.")
    except GpuError as error:
        log(logging.WARNING, "The ranks that still run are left to a worker: %s", error)
        return
    await logs.drain(_STOPPED_WITHIN)

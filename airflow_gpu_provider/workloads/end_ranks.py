"""The end of the ranks that still run where one has failed: their logs are followed to the last word."""

from __future__ import annotations

import logging
from collections.abc import Callable

from airflow_gpu_provider.cluster.async_api import AsyncApi
from airflow_gpu_provider.cluster.gangs import jobs_path
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pods.followed_log import LAST_WORDS_WITHIN
from airflow_gpu_provider.workloads.gang_wait import GangWait
from airflow_gpu_provider.workloads.logs import GangLogs

_STOPPED_WITHIN = 3.0  # seconds; what a rank prints later, in its grace period, a worker reads


async def end_ranks(api: AsyncApi, wait: GangWait, logs: GangLogs, log: Callable[..., None]) -> None:
    """Have the ranks that still run deleted; those that have ended stay, and can be read.

    Where a log is not followed, the ranks are left to the worker that reads it. `log` takes a level, a format and its
    arguments.
    """
    await logs.drain(LAST_WORDS_WITHIN)
    if not logs.is_whole:
        return
    body = {"metadata": {"uid": wait.uid}, "spec": {"parallelism": 0}}
    try:
        if await api.patch(f"{jobs_path(wait.namespace).lstrip('/')}/{wait.name}", body):
            log(logging.INFO, "%s", "The ranks that still run are ended.")
    except GpuError as error:
        log(logging.WARNING, "The ranks that still run are left to a worker: %s", error)
        return
    await logs.drain(_STOPPED_WITHIN)

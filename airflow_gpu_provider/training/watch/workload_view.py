"""OneWorkload: how a workload is waited for, and WorkloadView: what the watches show of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.async_api import AsyncApi
from airflow_gpu_provider.cluster.informer import Feed
from airflow_gpu_provider.cluster.pod_state import Json
from airflow_gpu_provider.cluster.watched import (
    Resource,
    all_job_events,
    all_pod_events,
    workload_pods,
    workloads,
)
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.wait.waits import Progress
from airflow_gpu_provider.training.log.followed_log import LAST_WORDS_WITHIN
from airflow_gpu_provider.training.log.kept_lines import Log
from airflow_gpu_provider.training.log.object_logs import ObjectLogs
from airflow_gpu_provider.training.wait.hang import Silence
from airflow_gpu_provider.training.wait.workload_wait import WorkloadSnapshot, WorkloadWait
from airflow_gpu_provider.training.watch.object_view import ObjectView, pods_of
from airflow_gpu_provider.training.watch.run_kind import Logs, RunKind, Wanted
from airflow_gpu_provider.training.watch.view import OnPod, View

if TYPE_CHECKING:
    from airflow_gpu_provider.training.log.task_log import TaskLog


@dataclass(frozen=True)
class OneWorkload(RunKind):
    wait: WorkloadWait

    @property
    def wants(self) -> dict[Resource, str]:
        return WorkloadView.wants(self.wait)

    def view(
        self, pool: GpuPool, feed: Feed, on_pod: OnPod | None, silence: Callable[[], Silence | None] | None
    ) -> View:
        return WorkloadView(self.wait, pool, feed, on_pod)

    def logs(self, api: AsyncApi, wanted: Wanted, log: Log, task_log: TaskLog | None = None) -> ObjectLogs:
        return ObjectLogs(api, self.wait, wanted, log, alone=task_log is not None)

    async def pods(self, api: AsyncApi) -> list[Json]:
        return await pods_of(self.wait, api)

    async def finish(self, api: AsyncApi, progress: Progress, logs: Logs, log: Log) -> None:
        await logs.drain(LAST_WORDS_WITHIN)


class WorkloadView(ObjectView[str]):
    """What the feed has reported about one workload, which its own controller, or Kueue, admits."""

    _wait: WorkloadWait
    _ended_at: datetime | None = None

    def __init__(self, wait: WorkloadWait, pool: GpuPool, feed: Feed, on_pod: OnPod | None = None) -> None:
        super().__init__(wait, pool, feed, on_pod, wants=self.wants(wait))

    @staticmethod
    def wants(wait: WorkloadWait) -> dict[Resource, str]:
        """Return what to watch: the objects of the kind, the pods of workloads, and events about any pods and Jobs."""
        own = {workloads(wait.path.rpartition("/")[0]): wait.name, workload_pods(wait.namespace): wait.task}
        return {**own, all_pod_events(wait.namespace): "", all_job_events(wait.namespace): ""}

    def _is_own_job(self, name: str) -> bool:
        """Return True for the Job itself, and for Jobs that JobSet and Trainer name after their owner."""
        return name == self._wait.name or name.startswith(f"{self._wait.name}-")

    @property
    def needs_pool_loop(self) -> bool:
        """Whether the pool has to be checked: pods wait for nodes; while suspended, it is not demand."""
        workload = self._object
        if workload is None or self._is_gone or workload.is_suspended or workload.end is not None:
            return False
        return any(pod.scheduled_at is None for pod in self._there())

    def snapshot(self, now: datetime) -> WorkloadSnapshot:
        workload = self._object
        if workload is not None and workload.is_suspended:
            self._queued_at = now
        if workload is not None and workload.end is not None:
            self._ended_at = self._ended_at or now
        return replace(
            super().snapshot(now),
            ended_at=self._ended_at,
            evicted=self._queue.evicted or self._evicted,
            refused=self._refused.now() if not self._newest() else None,
        )

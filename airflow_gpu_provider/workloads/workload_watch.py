"""What the shared watch tells of a workload (WorkloadView), and the wait for one in a worker."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.cluster.informer import connected
from airflow_gpu_provider.cluster.pod_state import ATTEMPT_ANNOTATION, OWNER_ANNOTATION, Json, PodState
from airflow_gpu_provider.cluster.watched import Resource, all_job_events, all_pod_events, workload_pods, workloads
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pods.followed_log import LAST_WORDS_WITHIN
from airflow_gpu_provider.pods.gpu_sampler import each
from airflow_gpu_provider.pods.task_cluster import TaskCluster
from airflow_gpu_provider.pods.task_log import TaskLog
from airflow_gpu_provider.pods.verdict import Watched
from airflow_gpu_provider.scaling.wait_loop import Narrator
from airflow_gpu_provider.workloads.gang_sampler import GangSampler
from airflow_gpu_provider.workloads.kinds import KINDS
from airflow_gpu_provider.workloads.watch import GangView, watch_object
from airflow_gpu_provider.workloads.workload_logs import WorkloadLogs
from airflow_gpu_provider.workloads.workload_state import WorkloadState, main_container
from airflow_gpu_provider.workloads.workload_wait import WorkloadSnapshot, WorkloadWait


async def watch_here(
    wait: WorkloadWait,
    cluster: TaskCluster,
    log: TaskLog,
    wanted: dict[str, Any] | None,
    *,
    owner: str,
    narrator: Narrator,
) -> Watched:
    """Wait for a workload in a worker, and write its pods' logs meanwhile; `wanted` as WorkloadLogs has it.

    Raises:
        GpuError: The cluster, or credentials for it, cannot be found.
    """
    pool = cluster.pool

    def open_access() -> ClusterAccess:
        return cluster.hook.access

    async with connected(pool.cluster_identity, open_access) as api:
        logs = WorkloadLogs(api, wait, wanted, log.log.log, alone=True)
        gpus = GangSampler(api, wait, say=log.log.info, warn=log.log.warning)
        try:
            async with logs, gpus:
                watching = watch_object(
                    WorkloadView,
                    pool,
                    wait,
                    owner=owner,
                    narrator=narrator,
                    open_access=open_access,
                    on_pod=each(logs.follow, gpus.follow),
                )
                progress = await gpus.beside(watching)
                await logs.drain(LAST_WORDS_WITHIN)
        finally:
            log.followed = logs.rest()
    return Watched.of_progress(wait, progress, log.followed, gpus.use)


class WorkloadView(GangView):
    """What the feed has told so far about one workload: the object, its pods, their events and its pool's nodes."""

    _wait: WorkloadWait
    _job: WorkloadState | None
    _failed_at: datetime | None = None

    @classmethod
    def wants(cls, wait: WorkloadWait) -> dict[Resource, str]:
        """Return what to watch: the objects of the kind, the pods of workloads, and events about any pods."""
        objects = workloads(wait.path.rpartition("/")[0])
        own = {objects: wait.name, workload_pods(wait.namespace): wait.task}
        return {**own, all_pod_events(wait.namespace): "", cls._job_events(wait): ""}

    @classmethod
    def _job_events(cls, wait: WorkloadWait) -> Resource:
        return all_job_events(wait.namespace)

    def _is_own_job(self, name: str) -> bool:
        """Return True for the Job itself, and for those that JobSet and Trainer name for what they are made for."""
        return name == self._wait.name or name.startswith(f"{self._wait.name}-")

    @property
    def is_admitted_here(self) -> bool:
        """Return False: what lets a workload begin is its own controller, or Kueue."""
        return False

    @property
    def needs_keeper(self) -> bool:
        """Whether the pool is to be looked at: pods wait for nodes; while it is suspended, it is no demand."""
        if self._job is None or self._is_gone or self._job.is_suspended or self._job.end is not None:
            return False
        return any(pod.scheduled_at is None for pod in self._there())

    def snapshot(self, now: datetime) -> WorkloadSnapshot:
        """Return what is known now."""
        workload = self._job
        if workload is not None and workload.is_suspended:
            self._queued_at = now
        if workload is not None and workload.end is not None and not workload.end.succeeded:
            self._failed_at = self._failed_at or now
        return WorkloadSnapshot(
            workload=workload,
            gone=self._is_gone,
            pods={title: self._seen(uid) for title, uid in self._newest().items()},
            failed_at=self._failed_at,
            queued=self._queue.in_words,
            evicted=self._queue.evicted or self._evicted,
            refused=self._refused.now() if not self._newest() else None,
            queued_at=self._queued_at,
            notes=self._notes(),
        )

    async def believes(self, error: GpuError, now: datetime) -> bool:
        """Return whether what was seen is enough to end the wait with this error: the watches do not stand still."""
        return not (self._is_blind and now < self._wait.deadline)

    def _parsed(self, raw: Json) -> WorkloadState:
        return WorkloadState.parse(raw, KINDS[self._wait.kind])

    def _member(self, raw: Json) -> tuple[str, PodState] | None:
        annotations = raw["metadata"].get("annotations") or {}
        attempt = (annotations.get(OWNER_ANNOTATION), annotations.get(ATTEMPT_ANNOTATION))
        if attempt != (self._wait.try_id, str(self._wait.attempt)):
            return None
        return KINDS[self._wait.kind].pod_title(raw), PodState.parse(raw, main_container(raw))

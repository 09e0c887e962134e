"""GpuWorkloadTrigger: waits for a workload in the triggerer, by the shared watch, with all its pods' logs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_gpu_provider.cluster.pod_state import Json, PodState
from airflow_gpu_provider.cluster.pods import WORKLOAD_LABEL
from airflow_gpu_provider.pods.end import end_of
from airflow_gpu_provider.pods.followed_log import LAST_WORDS_WITHIN
from airflow_gpu_provider.pods.gpu_sampler import each
from airflow_gpu_provider.pools import deserialize_pool
from airflow_gpu_provider.scaling.wait_loop import Narrator
from airflow_gpu_provider.scaling.waits import Progress
from airflow_gpu_provider.triggers.deferral_delay import settle
from airflow_gpu_provider.triggers.gang import GpuGangTrigger
from airflow_gpu_provider.workloads.watch import watch_object
from airflow_gpu_provider.workloads.workload_logs import WorkloadLogs
from airflow_gpu_provider.workloads.workload_state import main_container
from airflow_gpu_provider.workloads.workload_wait import WorkloadWait
from airflow_gpu_provider.workloads.workload_watch import WorkloadView


class GpuWorkloadTrigger(GpuGangTrigger):
    """Waits until a workload has ended by its own account, or never will.

    Its record is GpuPodTrigger's, with "wait" of a WorkloadWait; so is its event, `name` and `uid` of which are the
    workload's.
    """

    def _wait(self) -> Any:
        return WorkloadWait.from_record(self.record["wait"])

    async def _watch(self, wait: Any, narrator: Narrator) -> Progress:
        pool, owner = deserialize_pool(self.record["pool"]), self.record["owner"]
        if self._api is None:
            self._api = await self._connection.enter_async_context(self._connected())
        wanted = self.record.get("logs")
        if wanted is not None and self._logs is not None:
            wanted = {**wanted, "positions": self._logs.rest()["positions"]}
        logs = self._logs = WorkloadLogs(self._api, wait, wanted, self.log.log)
        gpus = self._sampler(wait)
        async with logs, gpus:
            on_pod = each(logs.follow, gpus.follow)
            watching = watch_object(WorkloadView, pool, wait, owner=owner, narrator=narrator, on_pod=on_pod)
            progress = await gpus.beside(watching)
            await logs.drain(LAST_WORDS_WITHIN)
            await settle(self.record["deferred_at"])
        return progress

    def _pod_of_result(self, wait: Any, progress: Progress) -> None:
        """Return None: a workload leaves no result."""

    def _words(self, wait: Any) -> str:
        return f"{wait.kind} {wait.name}"

    def _selector(self, wait: Any) -> str:
        return f"{WORKLOAD_LABEL}={wait.task}"

    def _path(self, wait: Any) -> str:
        return str(wait.path)

    def _has_ended(self, pods: Iterable[Json], wait: Any) -> bool:
        """Return True if all its pods have ended."""
        states = [PodState.parse(pod, main_container(pod)) for pod in pods]
        return bool(states) and all(map(end_of, states))

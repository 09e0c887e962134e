"""GpuGangTrigger: waits for a gang in the triggerer, by the shared watch, with all ranks' logs in the task's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_gpu_provider.cluster.gangs import JOB_LABEL, jobs_path
from airflow_gpu_provider.cluster.pod_state import Json, PodState
from airflow_gpu_provider.cluster.threads import in_thread
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pods.end import end_of
from airflow_gpu_provider.pods.gpu_sampler import GpuSampler, each
from airflow_gpu_provider.pools import deserialize_pool
from airflow_gpu_provider.scaling.wait_loop import Narrator
from airflow_gpu_provider.scaling.waits import Progress
from airflow_gpu_provider.triggers.deferral_delay import settle
from airflow_gpu_provider.triggers.pod import GpuPodTrigger
from airflow_gpu_provider.triggers.task_state import goes_on, is_still_deferred
from airflow_gpu_provider.workloads.end_ranks import end_ranks
from airflow_gpu_provider.workloads.gang_sampler import GangSampler
from airflow_gpu_provider.workloads.gang_wait import GangWait
from airflow_gpu_provider.workloads.logs import GangLogs
from airflow_gpu_provider.workloads.watch import watch_gang


class GpuGangTrigger(GpuPodTrigger):
    """Waits until all ranks of a gang have ended well, or one has not.

    Its record is GpuPodTrigger's, with "wait" of a GangWait; so is its event, `name` and `uid` of which are the Job's.
    When a rank has failed, the others are ended here, as soon as their logs are read: a worker comes seconds later.
    """

    def _wait(self) -> Any:
        return GangWait.from_record(self.record["wait"])

    async def _watch(self, wait: Any, narrator: Narrator) -> Progress:
        pool = deserialize_pool(self.record["pool"])
        if self._api is None:
            self._api = await self._connection.enter_async_context(self._connected())
        wanted = self.record.get("logs")
        if wanted is not None and self._logs is not None:
            wanted = {**wanted, "positions": self._logs.rest()["positions"]}
        logs = self._logs = GangLogs(self._api, wait, wanted, self.log.log)
        gpus = self._sampler(wait)
        async with logs, gpus:
            watching = watch_gang(
                pool,
                wait,
                owner=self.record["owner"],
                narrator=narrator,
                on_pod=each(logs.follow, gpus.follow),
                silence=logs.silence,
            )
            progress = await gpus.beside(watching)
            if progress.error is not None:
                await end_ranks(self._api, wait, logs, self.log.log)
            await settle(self.record["deferred_at"])
        return progress

    def _sampler(self, wait: Any) -> GpuSampler:
        assert self._api is not None
        if self._gpus is None:
            self._gpus = GangSampler(self._api, wait, say=self.log.info, warn=self.log.warning)
        return self._gpus

    def _pod_of_result(self, wait: Any, progress: Progress) -> str | None:
        name: str | None = ((progress.result or {}).get("pods") or {}).get("0")
        return name

    async def _delete_pod(self) -> None:
        """Delete the Job, unless the task still waits for it; as GpuPodTrigger does with a pod."""
        wait = self._wait()
        if await is_still_deferred(self):
            self.log.info("The task still waits for %s, elsewhere; it is left alone.", self._words(wait))
            return
        if not self.record["delete_on_kill"]:
            self.log.info("%s is kept, as on_kill_action says.", self._words(wait))
            await self._release()
            return
        pods: list[dict[str, Any]] = []
        try:
            async with self._connected() as api:
                path = f"api/v1/namespaces/{wait.namespace}/pods"
                found = await api.get(path, labelSelector=self._selector(wait))
                pods = (found or {}).get("items") or []
                if self._has_ended(pods, wait) and await goes_on(self):
                    self.log.info("%s has ended; the task that goes on collects it.", self._words(wait))
                    return
                is_deleted = await api.delete(self._path(wait), uid=wait.uid, with_dependents=True)
        except GpuError as error:
            self.log.error("%s could not be deleted, and runs until its deadline: %s", self._words(wait), error)
            return
        self.log.info("%s %s.", self._words(wait), "is deleted" if is_deleted else "was gone already")
        self._own = {pod["metadata"]["uid"] for pod in pods}
        for pod in pods:
            await in_thread(self._note_use, pod)
        await self._release()

    def _words(self, wait: Any) -> str:
        return f"Job {wait.name}"

    def _selector(self, wait: Any) -> str:
        """Return that of its pods."""
        return f"{JOB_LABEL}={wait.name}"

    def _path(self, wait: Any) -> str:
        return f"{jobs_path(wait.namespace).lstrip('/')}/{wait.name}"

    def _has_ended(self, pods: Iterable[Json], wait: Any) -> bool:
        """Return True if all ranks have ended, or one has failed."""
        ends = [end_of(PodState.parse(pod, wait.base_container)) for pod in pods]
        return len([end for end in ends if end]) >= wait.nodes or any(end and end.error for end in ends)

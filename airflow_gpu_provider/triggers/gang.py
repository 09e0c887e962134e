"""GpuGangTrigger: waits for a gang in the triggerer, through the shared watch, with all ranks' logs in the task's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from airflow_gpu_provider.cluster.async_api import AsyncApi
from airflow_gpu_provider.cluster.gang_labels import JOB_LABEL, jobs_path
from airflow_gpu_provider.cluster.pod_state import Json, PodState
from airflow_gpu_provider.scaling.wait.waits import Progress
from airflow_gpu_provider.training.wait.end import end_of
from airflow_gpu_provider.training.wait.gang_wait import GangWait
from airflow_gpu_provider.training.watch.following import Following
from airflow_gpu_provider.training.watch.object_following import GangFollowing
from airflow_gpu_provider.triggers.pod import GpuPodTrigger


class GpuGangTrigger(GpuPodTrigger):
    """Waits until all ranks of a gang have succeeded, or one has failed.

    Its record is GpuPodTrigger's, with a GangWait's "wait"; so is its event, whose `name` and `uid` are the Job's. When
    a rank has failed, the others are ended here, as soon as their logs are read: a worker starts seconds later.
    """

    following: ClassVar[Following] = GangFollowing()

    def _wait(self) -> Any:
        return GangWait.from_record(self.record["wait"])

    def _pod_of_result(self, wait: Any, progress: Progress) -> str | None:
        name: str | None = ((progress.result or {}).get("pods") or {}).get("0")
        return name

    def _path(self, wait: Any) -> str:
        return f"{jobs_path(wait.namespace).lstrip('/')}/{wait.name}"

    async def _pods(self, api: AsyncApi, wait: Any) -> list[dict[str, Any]]:
        found = await api.get(f"api/v1/namespaces/{wait.namespace}/pods", labelSelector=self._selector(wait))
        return (found or {}).get("items") or []

    def _selector(self, wait: Any) -> str:
        """Return its pods' selector."""
        return f"{JOB_LABEL}={wait.name}"

    def _has_ended(self, pods: Sequence[Json], wait: Any) -> bool:
        """Return True if all ranks have ended, or one has failed."""
        ends = [end_of(PodState.parse(pod, wait.base_container)) for pod in pods]
        return len([end for end in ends if end]) >= wait.nodes or any(end and end.error for end in ends)

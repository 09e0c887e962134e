"""GangSampler: asks the pods of a gang, or of a workload, in turn what their GPUs do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import GpuIdle
from airflow_gpu_provider.pods.gpu_sampler import GpuSampler
from airflow_gpu_provider.pods.wait import PodSnapshot
from airflow_gpu_provider.scaling.waits import Progress
from airflow_gpu_provider.workloads.gang_timeline import gang_timeline
from airflow_gpu_provider.workloads.workload_state import has_gpus

if TYPE_CHECKING:
    from airflow_gpu_provider.cluster.async_api import AsyncApi
    from airflow_gpu_provider.cluster.pod_state import Json, PodState


@dataclass(frozen=True)
class _Created:
    created_at: datetime


class GangSampler(GpuSampler):
    """Samples the GPUs of all pods of one wait, a GangWait or a WorkloadWait; pods without GPUs are not asked."""

    def __init__(
        self, api: AsyncApi, wait: Any, *, say: Callable[[str], object], warn: Callable[[str], object]
    ) -> None:
        super().__init__(api, wait, what=wait.what, named={"job": wait.name}, say=say, warn=warn)
        self._wait = wait
        self._pods: dict[str, PodState] = {}

    def follow(self, _: Any, pod: PodState, raw: Json) -> None:
        """Take a rank's pod as it is now."""
        if pod.base is not None and has_gpus(raw, pod.base.name):
            self._pods[pod.name] = pod
            self._take(pod)

    def _end(self, error: GpuIdle) -> Progress:
        pods = [PodSnapshot(pod=pod) for _, pod in sorted(self._pods.items())]
        phases = gang_timeline(_Created(self._wait.started), pods)
        return Progress(error=error, result={"timeline": phases, "container_ended": False, "machine": ""})

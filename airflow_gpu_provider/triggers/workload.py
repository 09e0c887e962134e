"""GpuWorkloadTrigger: waits for a workload in the triggerer, through the shared watch, with all its pods' logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_gpu_provider.cluster.pod_state import Json, PodState
from airflow_gpu_provider.cluster.pods import WORKLOAD_LABEL
from airflow_gpu_provider.scaling.wait.waits import Progress
from airflow_gpu_provider.training.wait.end import end_of
from airflow_gpu_provider.training.wait.workload_state import main_container
from airflow_gpu_provider.training.wait.workload_wait import WorkloadWait
from airflow_gpu_provider.training.watch.object_following import WorkloadFollowing
from airflow_gpu_provider.triggers.gang import GpuGangTrigger


class GpuWorkloadTrigger(GpuGangTrigger):
    """Waits until a workload's own status says that it has ended, or it never can.

    Its record is GpuPodTrigger's, with a WorkloadWait's "wait"; so is its event, whose `name` and `uid` are the
    workload's.
    """

    following = WorkloadFollowing()

    def _wait(self) -> Any:
        return WorkloadWait.from_record(self.record["wait"])

    def _pod_of_result(self, wait: Any, progress: Progress) -> None:
        """Return None: a workload leaves no result."""

    def _selector(self, wait: Any) -> str:
        return f"{WORKLOAD_LABEL}={wait.task}"

    def _path(self, wait: Any) -> str:
        return str(wait.path)

    def _has_ended(self, pods: Sequence[Json], wait: Any) -> bool:
        """Return True if all its pods have ended."""
        states = [PodState.parse(pod, main_container(pod)) for pod in pods]
        return bool(states) and all(map(end_of, states))

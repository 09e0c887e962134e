"""WorkloadLogs: the logs of all pods of a workload, streamed into the log of the task that waits for it."""

from __future__ import annotations

from typing import Any

from airflow_gpu_provider.cluster.pod_state import Json
from airflow_gpu_provider.workloads.logs import GangLogs
from airflow_gpu_provider.workloads.workload_state import main_container

EACH = ["*"]
"""Instead of the names of containers whose lines are wanted: all that a pod has."""


class WorkloadLogs(GangLogs):
    """The streams of a workload's pods, each of which may have containers of its own."""

    def _path_of(self, wait: Any) -> str:
        return str(wait.path)

    def _containers(self, raw: Json) -> tuple[str, Any]:
        wanted = self._wanted.get("containers")
        return main_container(raw), [each["name"] for each in raw["spec"]["containers"]] if wanted == EACH else wanted

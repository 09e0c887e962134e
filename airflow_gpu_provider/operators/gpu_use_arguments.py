"""Arguments about what a training's GPUs do while it runs, of the operators that run one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pods.gpu_use import GpuWatching
from airflow_gpu_provider.pool_operator import PoolOperator, duration

IDLE_GPU_WARNING = timedelta(minutes=15)


class GpuUseArguments(PoolOperator):
    """Takes these, next to the arguments that other operators have.

    Args:
        utilization: Ask nvidia-smi in the container once a minute what the GPUs do, of several pods in one of them at a
            time: docs/gpu-pod.md. Default True.
        idle_gpu_warning: After how long without computing the log has a warning, in seconds or as a timedelta; None or
            0 for never. Default 15 minutes.
        idle_gpu_timeout: After how long without computing the task fails with GpuIdle, in seconds or as a timedelta;
            its pods are deleted. None or 0 for never. Default None.

    Raises:
        PoolSpecError: idle_gpu_timeout without utilization, or no duration.
    """

    def __init__(
        self,
        *,
        utilization: bool = True,
        idle_gpu_warning: float | timedelta | None = IDLE_GPU_WARNING,
        idle_gpu_timeout: float | timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.utilization = utilization
        self.idle_gpu_warning = idle_gpu_warning
        self.idle_gpu_timeout = idle_gpu_timeout
        warn = _seconds("idle_gpu_warning", idle_gpu_warning)
        end = _seconds("idle_gpu_timeout", idle_gpu_timeout)
        if end is not None and not utilization:
            raise PoolSpecError(
                f"Task {self.task_id}: idle_gpu_timeout with utilization=False.", "Leave out one of the two."
            )
        self.gpu_watching = GpuWatching(warn_seconds=warn, end_seconds=end) if utilization else None


def _seconds(name: str, given: float | timedelta | None) -> float | None:
    return duration(name, given).total_seconds() or None if given is not None else None

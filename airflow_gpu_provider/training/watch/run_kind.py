"""RunKind: how a pod, a gang or a workload is waited for, with its log and its GPU use; in a worker and a triggerer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from airflow_gpu_provider.cluster.async_api import AsyncApi
from airflow_gpu_provider.cluster.pod_state import Json, PodState
from airflow_gpu_provider.scaling.wait.wait_loop import Progress
from airflow_gpu_provider.training.log.trigger_log import Log
from airflow_gpu_provider.training.wait.attempt_wait import AttemptWait
from airflow_gpu_provider.training.wait.first_failure import Rank
from airflow_gpu_provider.training.wait.hang import Silence
from airflow_gpu_provider.training.watch.view import View

if TYPE_CHECKING:
    from airflow_gpu_provider.training.log.task_log import TaskLog

Wanted = Json | None
"""What of the logs is streamed: see PodLogs."""


class Logs(Protocol):
    """The streams of the pods' logs."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...

    def follow(self, pod: PodState, raw: Json, rank: Rank) -> None: ...

    async def drain(self, seconds: float) -> None: ...

    def rest(self) -> Json: ...

    async def safe_rest(self) -> Json: ...

    @property
    def is_whole(self) -> bool: ...

    def silence(self) -> Silence | None: ...


class RunKind(ABC):
    """What an attempt runs, as those see it that wait for it. What its wait decides from all that is the wait's own."""

    wait: AttemptWait
    view_type: ClassVar[type[View]]

    @abstractmethod
    def logs(self, api: AsyncApi, wanted: Wanted, log: Log, task_log: TaskLog | None = None) -> Logs:
        """Return the streams of the pods' logs; in a worker they are written as its `task_log` says."""

    @abstractmethod
    async def pods(self, api: AsyncApi) -> list[Json]:
        """Return its pods, as JSON."""

    @abstractmethod
    async def finish(self, api: AsyncApi, progress: Progress, logs: Logs, log: Log) -> None:
        """Do what is urgent when the wait is over, while the logs are still streamed."""

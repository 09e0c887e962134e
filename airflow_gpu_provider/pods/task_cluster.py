"""TaskCluster: a pool's cluster as the worker of one task reaches it. Nothing is asked of it before it is needed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cached_property

from airflow.providers.cncf.kubernetes.utils.pod_manager import PodManager
from kubernetes.client import ApiClient, CoreV1Api, V1Pod

from airflow_gpu_provider.cluster.clock import ServerClock, SystemClock
from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pods.gpu_health import GpuHealth
from airflow_gpu_provider.pods.hook import PoolHook
from airflow_gpu_provider.pods.store import TaskPods
from airflow_gpu_provider.pools import GpuPool


class TaskCluster:
    """The cluster, and what is the same for all pods of a task.

    Args:
        pool: The rendered spec.
        hook: Its connection; `client` returns its client, and `manager` what creates and deletes pods with that.
        base_container: The container whose end decides.
    """

    def __init__(
        self,
        pool: GpuPool,
        hook: PoolHook,
        base_container: str,
        client: Callable[[], CoreV1Api],
        manager: Callable[[], PodManager],
    ) -> None:
        self.pool = pool
        self.hook = hook
        self.base_container = base_container
        self._client = client
        self._manager = manager

    @cached_property
    def client(self) -> CoreV1Api:
        return self._client()

    @property
    def api(self) -> ApiClient:
        return self.client.api_client

    @cached_property
    def manager(self) -> PodManager:
        return self._manager()

    @cached_property
    def pods(self) -> TaskPods:
        return TaskPods(self.hook, self.manager)

    @cached_property
    def clock(self) -> ServerClock:
        return ServerClock(self.api)

    @cached_property
    def gpu_health(self) -> GpuHealth:
        return GpuHealth(self.api, self.pool)

    def now(self) -> datetime:
        """Return the cluster's time, or this machine's where the cluster does not answer."""
        try:
            return self.clock.now()
        except GpuError:
            return SystemClock().now()

    def state(self, pod: V1Pod) -> PodState:
        return PodState.parse(self.api.sanitize_for_serialization(pod), self.base_container)

"""TaskCluster: a pool's cluster, as reached by one task's worker. Nothing is requested before it is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from kubernetes.client import ApiClient, CoreV1Api, V1Pod

from airflow_gpu_provider.cluster.clock import ServerClock, SystemClock
from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.state.gpu_health import GpuHealth
from airflow_gpu_provider.training.life.hook import PoolHook
from airflow_gpu_provider.training.life.store import CarefulPodManager, TaskPods


@dataclass(kw_only=True)
class TaskCluster:
    """The cluster, and what all pods of a task share.

    Attributes:
        pool: The rendered spec.
        hook: Its connection.
        base_container: The container whose end decides.
        make_manager: Returns the manager that creates and deletes pods, with the hook's client.
    """

    pool: GpuPool
    hook: PoolHook
    base_container: str
    make_manager: Callable[[], CarefulPodManager]

    @cached_property
    def manager(self) -> CarefulPodManager:
        return self.make_manager()

    @property
    def client(self) -> CoreV1Api:
        return self.manager.client

    @property
    def api(self) -> ApiClient:
        return self.client.api_client

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
        """Return the cluster's time, or this machine's if the cluster does not answer."""
        try:
            return self.clock.now()
        except GpuError:
            return SystemClock().now()

    def state(self, pod: V1Pod) -> PodState:
        return PodState.parse(self.api.sanitize_for_serialization(pod), self.base_container)

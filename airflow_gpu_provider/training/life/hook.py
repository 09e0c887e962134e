"""PoolHook: a pool's cluster as one task's worker reaches it, and the hook that KubernetesPodOperator needs."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cached_property
from typing import Any

from airflow.providers.cncf.kubernetes.callbacks import KubernetesPodOperatorCallback
from kubernetes.client import ApiClient, CoreV1Api, V1Pod

from airflow_gpu_provider.clouds.base import Platform, platform_for
from airflow_gpu_provider.clouds.from_connection import extras_of
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.clock import ServerClock, SystemClock
from airflow_gpu_provider.cluster.api.gpu_health import GpuHealth
from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.errors import ConnectionNotFound, GpuError, PoolSpecError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.training.life.store import CarefulPodManager, TaskPods

_MAY_BE_MISSING = "kubernetes_default"  # as for KubernetesPodOperator, whose default it is


class PoolHook:
    """Reaches the cluster with the pool's own connection; tokens are made in-process.

    It satisfies `PodOperatorHookProtocol`. Nothing is requested before it is needed.

    Args:
        pool: The rendered spec.
        settings_conn_id: The connection of type kubernetes that has the XCom sidecar's settings, if the pool's own
            connection is a cloud's, which has none; None for no settings.
        callbacks: KubernetesPodOperator's, of the task.
    """

    is_in_cluster = False

    def __init__(
        self,
        pool: GpuPool,
        *,
        settings_conn_id: str | None = None,
        callbacks: list[type[KubernetesPodOperatorCallback]] | None = None,
    ) -> None:
        self.pool = pool
        self._callbacks = callbacks
        self._settings_conn_id = pool.kubernetes_connection or settings_conn_id

    @cached_property
    def platform(self) -> Platform:
        """The pool's cloud."""
        return platform_for(self.pool)

    @cached_property
    def access(self) -> ClusterAccess:
        """The cluster's address and credentials, found once."""
        return self.platform.cluster_access()

    @cached_property
    def core_v1_client(self) -> CoreV1Api:
        return self.new_client()

    def new_client(self) -> CoreV1Api:
        """Return a separate client, for a thread or a signal handler that must not wait for another's locks."""
        return CoreV1Api(self.access.api_client(for_exec=True))

    @property
    def api(self) -> ApiClient:
        return self.core_v1_client.api_client

    @cached_property
    def manager(self) -> CarefulPodManager:
        """What creates and deletes pods."""
        return CarefulPodManager(kube_client=self.core_v1_client, callbacks=self._callbacks)

    @cached_property
    def pods(self) -> TaskPods:
        return TaskPods(self.api)

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

    def get_pod(self, name: str, namespace: str) -> V1Pod:
        return self.core_v1_client.read_namespaced_pod(name, namespace)

    def get_namespace(self) -> str | None:
        """Return the namespace of pods that name none; not that of Airflow, which may run in another cluster."""
        return "default"

    # -- the XCom sidecar, as the connection's extra has it --------------------------------------------------

    def get_xcom_sidecar_container_image(self) -> str | None:
        return self._settings.get("xcom_sidecar_container_image") or None

    def get_xcom_sidecar_container_resources(self) -> Json | None:
        return self._json_setting("xcom_sidecar_container_resources")

    def get_xcom_sidecar_container_security_context(self) -> Json | None:
        return self._json_setting("xcom_sidecar_container_security_context")

    @cached_property
    def _settings(self) -> dict[str, Any]:
        conn_id = self._settings_conn_id
        try:
            return extras_of(conn_id) if conn_id else {}
        except ConnectionNotFound:
            if conn_id == _MAY_BE_MISSING:
                return {}
            raise

    def _json_setting(self, name: str) -> Json | None:
        """Return a setting that is an object: as text, which is how Airflow's form stores it, or as it is."""
        given = self._settings.get(name) or None
        try:
            value = json.loads(given) if isinstance(given, str) else given
        except ValueError:
            value = given
        if value is None or isinstance(value, dict):
            return value
        raise PoolSpecError(
            f"{name} in the extra of Airflow connection {self._settings_conn_id} is not a JSON object.",
            'Give an object of Kubernetes\' API there, like {"limits": {"memory": "32Mi"}}.',
            connection=self._settings_conn_id,
        )

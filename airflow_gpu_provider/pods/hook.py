"""PoolHook: the hook that KubernetesPodOperator needs, for the cluster of a GPU pool."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
from functools import cached_property
from typing import IO, Any

from kubernetes.client import CoreV1Api, V1Pod

from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.errors import ConnectionNotFound, PoolSpecError
from airflow_gpu_provider.platforms.base import Platform, platform_for
from airflow_gpu_provider.platforms.external.platform import extras_of
from airflow_gpu_provider.pools import GpuPool, KubernetesGpuPool

_MAY_BE_MISSING = "kubernetes_default"  # as for KubernetesPodOperator, whose default it is


class PoolHook:
    """Reaches the cluster with the pool's own connection; tokens are made in-process.

    It satisfies `PodOperatorHookProtocol`. It is never stored: a trigger makes its own from the pool's spec.

    Args:
        pool: The rendered spec.
        settings_conn_id: The connection of type kubernetes that has the XCom sidecar's settings, if the pool's own
            connection is a cloud's, which has none; None for no settings.
    """

    is_in_cluster = False

    def __init__(self, pool: GpuPool, *, settings_conn_id: str | None = None) -> None:
        self._pool = pool
        own = pool.kubernetes_conn_id if isinstance(pool, KubernetesGpuPool) else None
        self._settings_conn_id = own or settings_conn_id

    @cached_property
    def platform(self) -> Platform:
        """The pool's cloud."""
        return platform_for(self._pool)

    @cached_property
    def access(self) -> ClusterAccess:
        """The cluster's address and credentials, found once."""
        return self.platform.cluster_access()

    @cached_property
    def core_v1_client(self) -> CoreV1Api:
        return self.new_client()

    def new_client(self) -> CoreV1Api:
        """Return a separate client, for a thread or a signal handler that must not wait for another's locks."""
        client = self.access.api_client()
        # Exec, which reads results, uses a WebSocket client that takes certificates from files only, and
        # without one trusts certifi's instead of the system's, as SSL_CERT_FILE names them.
        trusted = _path(self._ca_file) if self._ca_file else ssl.get_default_verify_paths().cafile
        client.configuration.ssl_ca_cert = trusted
        if self._client_file:
            client.configuration.cert_file = client.configuration.key_file = _path(self._client_file)
        return CoreV1Api(client)

    @cached_property
    def _ca_file(self) -> IO[bytes] | None:
        return _pem_file(self.access.ca_data)

    @cached_property
    def _client_file(self) -> IO[bytes] | None:
        return _pem_file(self.access.client_certificate_data, self.access.client_key_data)

    def get_pod(self, name: str, namespace: str) -> V1Pod:
        return self.core_v1_client.read_namespaced_pod(name, namespace)

    def get_namespace(self) -> str | None:
        """Return the namespace of pods that name none; not that of Airflow, which may run in another cluster."""
        return "default"

    # -- the XCom sidecar, as the connection's extra has it --------------------------------------------------

    def get_xcom_sidecar_container_image(self) -> str | None:
        return self._settings.get("xcom_sidecar_container_image") or None

    def get_xcom_sidecar_container_resources(self) -> Any:
        return self._json_setting("xcom_sidecar_container_resources")

    def get_xcom_sidecar_container_security_context(self) -> Any:
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

    def _json_setting(self, name: str) -> Any:
        """Return a setting that is an object: as text, which is how Airflow's form stores it, or as it is."""
        given = self._settings.get(name) or None
        try:
            value = json.loads(given) if isinstance(given, str) else given
        except ValueError:
            value = given
        if value is None or isinstance(value, dict):
            return value
        raise PoolSpecError(
            f"{name}={given!r} in the extra of Airflow connection {self._settings_conn_id} is not a JSON object.",
            'Give an object of Kubernetes\' API there, like {"limits": {"memory": "32Mi"}}.',
            connection=self._settings_conn_id,
        )


def _pem_file(*parts: str) -> IO[bytes] | None:
    """Return a file that exists as long as it is held; None if there is nothing to write.

    It has no name: Airflow ends a task's process without cleaning up, and a named file would stay behind, with the key.
    """
    if not any(parts):
        return None
    file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the hook
    file.write(b"\n".join(base64.b64decode(part) for part in parts))
    file.flush()
    return file


def _path(file: IO[bytes]) -> str:
    """Return a path by which this process, and no other user, can open an unnamed file."""
    return f"/proc/self/fd/{file.fileno()}"

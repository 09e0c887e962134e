"""The way to a cluster from Airflow's own connection of type kubernetes."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.errors import ConnectionNotFound, CredentialsError


def access_from_connection(conn_id: str, context: str | None) -> ClusterAccess:
    """Read the connection as the Kubernetes provider's hook does, but leave the client's global settings alone.

    One that is missing is an error, kubernetes_default too.

    Raises:
        ConnectionNotFound: There is no such connection.
        CredentialsError: There is nothing in it to reach a cluster with.
    """
    from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException

    settings = Configuration()
    try:
        _load(_extras(conn_id), settings, context)
    except AirflowNotFoundException as error:
        raise ConnectionNotFound.named(conn_id, "kubernetes_conn_id") from error
    except (AirflowException, ConfigException, OSError, ValueError) as error:
        raise CredentialsError(
            f"Airflow connection {conn_id} gives no way to a cluster: {error}.",
            "Give it a kubeconfig (kube_config_path or kube_config), or in_cluster where Airflow runs in the cluster.",
            connection=conn_id,
        ) from error
    if not settings.verify_ssl:
        raise CredentialsError(
            f"Airflow connection {conn_id} does not verify the API server's certificate.",
            "Give the kubeconfig the cluster's certificate-authority-data: GPU pools always verify.",
            connection=conn_id,
        )
    return ClusterAccess(
        server=settings.host,
        ca_data=_base64_of(settings.ssl_ca_cert),
        token=_token(settings),
        client_certificate_data=_base64_of(settings.cert_file),
        client_key_data=_base64_of(settings.key_file),
    )


def _extras(conn_id: str) -> dict[str, Any]:
    # Not by KubernetesHook: without a kubernetes_default it uses whatever access to a cluster the worker has.
    from airflow.sdk import BaseHook

    prefix = "extra__kubernetes__"  # of connections that were made before Airflow 2.3
    extras = BaseHook.get_connection(conn_id).extra_dejson
    return {name.removeprefix(prefix): value for name, value in extras.items()}


def _load(extras: dict[str, Any], settings: Any, context: str | None) -> None:
    import yaml
    from kubernetes import config

    context = context or extras.get("cluster_context") or None
    if extras.get("in_cluster"):
        config.load_incluster_config(client_configuration=settings)
    elif path := extras.get("kube_config_path"):
        config.load_kube_config(config_file=path, client_configuration=settings, context=context)
    elif kubeconfig := extras.get("kube_config"):
        parsed = yaml.safe_load(kubeconfig) if isinstance(kubeconfig, str) else kubeconfig
        config.load_kube_config_from_dict(parsed, client_configuration=settings, context=context)
    else:
        try:
            config.load_incluster_config(client_configuration=settings)
        except config.ConfigException:
            config.load_kube_config(client_configuration=settings, context=context)


def _token(settings: Any) -> Callable[[], str] | None:
    """Return what makes a token: a service account's file is read again, and a kubeconfig's own plugin asked again."""

    def token() -> str:
        # The name depends on the client's version; the hook that renews the token runs in either case.
        value = settings.get_api_key_with_prefix("authorization") or settings.api_key.get("BearerToken", "")
        return str(value).removeprefix("Bearer ").removeprefix("bearer ")

    return token if token() else None


def _base64_of(path: str | None) -> str:
    return base64.b64encode(Path(path).read_bytes()).decode() if path else ""

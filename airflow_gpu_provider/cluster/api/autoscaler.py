"""Requests for what autoscalers report of themselves (`autoscaler_status`)."""

from __future__ import annotations

from datetime import datetime

from airflow_gpu_provider.cluster.api.rest import ApiClient, find
from airflow_gpu_provider.cluster.model.autoscaler_status import (
    STATUS_NAME,
    STATUS_NAMESPACE,
    AutoscalerStatus,
    ComputeClass,
)
from airflow_gpu_provider.errors import AutoscalerNotRunning

_CLASSES = "/apis/cloud.google.com/v1/computeclasses"


def read_autoscaler_status(api: ApiClient) -> AutoscalerStatus | None:
    path = f"/api/v1/namespaces/{STATUS_NAMESPACE}/configmaps/{STATUS_NAME}"
    found = find(api, path, resource="configmaps")
    return AutoscalerStatus.parse(found) if found else None


def check_running(api: ApiClient, pool_name: str, now: datetime, *, or_else: str = "") -> AutoscalerStatus:
    """Return the newest report of an autoscaler that is alive; `or_else` is what can be done without one.

    Raises:
        AutoscalerNotRunning: There is no report, or it is old.
    """
    status = read_autoscaler_status(api)
    if status is not None and status.is_fresh(now):
        return status
    report = f"ConfigMap {STATUS_NAMESPACE}/{STATUS_NAME}"
    why = f"{report} does not exist"
    if status is not None:
        written = f"at {status.updated_at:%Y-%m-%d %H:%M:%SZ}" if status.updated_at else "at an unknown time"
        why = f"{report} was last written {written}, and a living one writes it every few seconds"
    raise AutoscalerNotRunning(
        f"Pool {pool_name}: no cluster-autoscaler reports from the cluster: {why}.",
        "Install it (InstallClusterAutoscalerOperator), or look at the log of the one that is there, which needs its"
        f" default --write-status-configmap{f'; {or_else}' if or_else else ''}.",
        pool=pool_name,
        config_map=f"{STATUS_NAMESPACE}/{STATUS_NAME}",
    )


def read_compute_class(api: ApiClient, name: str) -> ComputeClass | None:
    """Return a ComputeClass; None where the cluster has none of that name, or knows no ComputeClasses."""
    found = find(api, f"{_CLASSES}/{name}", resource="computeclasses")
    return ComputeClass.parse(found) if found else None

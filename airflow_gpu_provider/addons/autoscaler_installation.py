"""Which cluster-autoscaler is in a cluster: this package's or another, and whether this package's runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.addons.cluster_autoscaler import MANAGED_BY, NAME, is_autoscaler_image
from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.autoscaler_status import STATUS_NAME, STATUS_NAMESPACE, read_status
from airflow_gpu_provider.cluster.rest import call, list_items
from airflow_gpu_provider.errors import AutoscalerConflict

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

FULL_NAME = f"{STATUS_NAMESPACE}/{NAME}"

_DEPLOYMENTS = "/apis/apps/v1/deployments"


def check_no_other(api: ApiClient, now: datetime) -> None:
    """Check that there is no cluster-autoscaler but one that this package installed.

    Raises:
        AutoscalerConflict: There is one; the message names it.
    """
    found = [raw for raw in list_items(api, _DEPLOYMENTS, resource="deployments") if _is_autoscaler(raw)]
    others = [raw for raw in found if not _is_ours(raw)]
    if others:
        names = ", ".join(f"{raw['metadata']['namespace']}/{raw['metadata']['name']}" for raw in others)
        raise _conflict(f"Deployment {names} is a cluster-autoscaler already", names)
    status = None if found else read_status(api)
    if status is not None and status.is_fresh(now):
        name = f"{STATUS_NAMESPACE}/{STATUS_NAME}"
        raise _conflict(f"a cluster-autoscaler that is no Deployment reports in ConfigMap {name}", name)


def what_is_missing(api: ApiClient, now: datetime) -> str:
    """Return why this package's cluster-autoscaler cannot be relied on yet; empty when it can."""
    path = f"/apis/apps/v1/namespaces/{STATUS_NAMESPACE}/deployments/{NAME}"
    try:
        raw = call(api, "get", path, resource="deployments")
    except ObjectNotFound:
        return f"Deployment {FULL_NAME} does not exist"
    if not _is_rolled_out(raw):
        return f"Deployment {FULL_NAME} is not available yet"
    status = read_status(api)
    if status is None or not status.is_fresh(now):
        return f"it runs, and has not written ConfigMap {STATUS_NAMESPACE}/{STATUS_NAME}"
    return ""


def _is_rolled_out(raw: Mapping[str, Any]) -> bool:
    status = raw.get("status") or {}
    is_seen = status.get("observedGeneration", 0) >= raw["metadata"]["generation"]
    new, all_replicas = status.get("updatedReplicas", 0), status.get("replicas", 0)
    # While one of an earlier template is there, it is that one which is available.
    return bool(is_seen and new and all_replicas == new and status.get("availableReplicas", 0) >= new)


def _is_autoscaler(raw: Mapping[str, Any]) -> bool:
    containers = raw["spec"]["template"]["spec"].get("containers") or ()
    return any(is_autoscaler_image(container.get("image") or "") for container in containers)


def _is_ours(raw: Mapping[str, Any]) -> bool:
    meta = raw["metadata"]
    labels = meta.get("labels") or {}
    return f"{meta['namespace']}/{meta['name']}" == FULL_NAME and labels.items() >= MANAGED_BY.items()


def _conflict(what: str, names: str) -> AutoscalerConflict:
    return AutoscalerConflict(
        f"{what[0].upper()}{what[1:]}; two would set the same groups' sizes, and nothing was installed.",
        "Use that one and leave this task out; or remove it first.",
        found=names,
    )

"""cluster-autoscaler in a pool's cluster: its manifest, by the pool's cloud, and whether another one is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.cluster.api.autoscaler import read_autoscaler_status
from airflow_gpu_provider.cluster.api.rest import ApiClient, list_items
from airflow_gpu_provider.cluster.model.autoscaler_status import STATUS_NAME, STATUS_NAMESPACE
from airflow_gpu_provider.cluster.model.lease import PART_OF
from airflow_gpu_provider.errors import AutoscalerConflict, PoolSpecError
from airflow_gpu_provider.pools import GpuPool

NAME = "cluster-autoscaler"

FULL_NAME = f"{STATUS_NAMESPACE}/{NAME}"

_DEPLOYMENTS = "/apis/apps/v1/deployments"


def check_takes(pool: GpuPool) -> None:
    """Raise PoolSpecError where cluster-autoscaler is not installed in a cluster like the pool's."""
    if not pool.takes_cluster_autoscaler:
        raise PoolSpecError(
            f"Pool {pool.name}: cluster-autoscaler is installed on EKS only.",
            'GKE has its own: scaling="autoscaler" is enough there.',
        )


def manifest_for(pool: GpuPool, *, flags: Sequence[str] = (), image: str | None = None, role_arn: str | None) -> str:
    """Return the YAML of all objects for a pool's cluster, in the order in which they are to be applied.

    Args:
        flags: Of cluster-autoscaler's command line, like "--scan-interval=20s"; its last one of a name counts.
        image: Another image, with its tag or digest. None: that of the cluster's minor version, which the cloud is
            asked for.
        role_arn: IAM role of the service account (IRSA). None: no annotation.

    Raises:
        PoolSpecError: The pool is not on EKS.
    """
    check_takes(pool)
    return platform_for(pool).cluster_autoscaler(flags=flags, image=image, role_arn=role_arn)


def check_no_other(api: ApiClient, now: datetime) -> None:
    """Check that there is no cluster-autoscaler but one that this package installed; else raise AutoscalerConflict."""
    found = [raw for raw in list_items(api, _DEPLOYMENTS, resource="deployments") if _is_autoscaler(raw)]
    others = [raw for raw in found if not _is_ours(raw)]
    if others:
        names = ", ".join(f"{raw['metadata']['namespace']}/{raw['metadata']['name']}" for raw in others)
        raise _conflict(f"Deployment {names} is a cluster-autoscaler already", names)
    status = None if found else read_autoscaler_status(api)
    if status is not None and status.is_fresh(now):
        name = f"{STATUS_NAMESPACE}/{STATUS_NAME}"
        raise _conflict(f"A cluster-autoscaler that is no Deployment reports in ConfigMap {name}", name)


def is_autoscaler_image(image: str) -> bool:
    """Return True if an image is a cluster-autoscaler, from any registry."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0].startswith(NAME)


def _is_autoscaler(raw: Mapping[str, Any]) -> bool:
    containers = raw["spec"]["template"]["spec"].get("containers") or ()
    return any(is_autoscaler_image(container.get("image") or "") for container in containers)


def _is_ours(raw: Mapping[str, Any]) -> bool:
    meta = raw["metadata"]
    labels = meta.get("labels") or {}
    return f"{meta['namespace']}/{meta['name']}" == FULL_NAME and labels.items() >= PART_OF.items()


def _conflict(what: str, names: str) -> AutoscalerConflict:
    return AutoscalerConflict(
        f"{what}; two would set the same groups' sizes, and nothing was installed.",
        "Use that one and leave this task out; or remove it first.",
        found=names,
    )

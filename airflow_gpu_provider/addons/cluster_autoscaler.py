"""cluster-autoscaler for an EKS cluster: its manifest, the image for a cluster, and whether another one is there.

The manifest is the text in cluster_autoscaler.yaml.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from string import Template
from typing import Any

from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.cluster.autoscaler_status import STATUS_NAME, STATUS_NAMESPACE, read_status
from airflow_gpu_provider.cluster.leases import PART_OF
from airflow_gpu_provider.cluster.rest import ApiClient, list_items
from airflow_gpu_provider.errors import AutoscalerConflict, PoolSpecError
from airflow_gpu_provider.pools import GpuPool

NAME = "cluster-autoscaler"

IMAGE = "registry.k8s.io/autoscaling/cluster-autoscaler"

_RELEASES = {31: "v1.31.5", 32: "v1.32.7", 33: "v1.33.5", 34: "v1.34.4", 35: "v1.35.1", 36: "v1.36.1"}
_MINOR = re.compile(r"v?1\.(\d+)\b")


def on_eks(pool: GpuPool) -> EksGpuPool:
    """Return the pool; PoolSpecError where it is not on EKS."""
    if isinstance(pool, EksGpuPool):
        return pool
    raise PoolSpecError(
        f"Pool {pool.name}: cluster-autoscaler is installed on EKS only.",
        'GKE has its own: scaling="autoscaler" is enough there.',
    )


def manifest_for(pool: GpuPool, *, flags: Sequence[str] = (), image: str | None = None, role_arn: str | None) -> str:
    """Return the manifest for a pool's cluster, with the image of its minor version, which EKS is asked for.

    Args:
        flags: Of cluster-autoscaler's command line, like "--scan-interval=20s"; its last one of a name counts.
        image: Another image, with its tag or digest.
        role_arn: IAM role of the service account (IRSA). None: no annotation.

    Raises:
        PoolSpecError: The pool is not on EKS.
    """
    from airflow_gpu_provider.clouds.aws.cluster import EksCluster

    of_eks = on_eks(pool)
    image = image or image_for(str(EksCluster(of_eks).description["version"]))
    return manifest(of_eks, image=image, flags=flags, role_arn=role_arn)


def manifest(pool: EksGpuPool, *, image: str, flags: Sequence[str] = (), role_arn: str | None = None) -> str:
    """Return the YAML of all objects, in the order in which they are to be applied."""
    text = Path(__file__).with_name("cluster_autoscaler.yaml").read_text(encoding="utf-8")
    return Template(text).substitute(
        cluster=pool.cluster_name,
        region=pool.region,
        image=json.dumps(image),
        flags="\n".join(f"            - {json.dumps(flag)}" for flag in flags),
        annotations=json.dumps({"eks.amazonaws.com/role-arn": role_arn} if role_arn else {}),
    )


def image_for(kubernetes: str) -> str:
    """Return the image of the minor version of a cluster, like "1.36"; the newest known one for a newer Kubernetes.

    Up to Kubernetes 1.33 a newer one never starts: from 1.35 on it waits for resource.k8s.io/v1
    (kubernetes/autoscaler#9244).
    """
    newest = max(_RELEASES)
    found = _MINOR.match(kubernetes)
    minor = min(int(found[1]), newest) if found else newest
    return f"{IMAGE}:{_RELEASES.get(minor, f'v1.{minor}.0')}"


# -- which cluster-autoscaler is in a cluster, this package's or another --------------------------------------

FULL_NAME = f"{STATUS_NAMESPACE}/{NAME}"

_DEPLOYMENTS = "/apis/apps/v1/deployments"


def check_no_other(api: ApiClient, now: datetime) -> None:
    """Check that there is no cluster-autoscaler but one that this package installed; else raise AutoscalerConflict."""
    found = [raw for raw in list_items(api, _DEPLOYMENTS, resource="deployments") if _is_autoscaler(raw)]
    others = [raw for raw in found if not _is_ours(raw)]
    if others:
        names = ", ".join(f"{raw['metadata']['namespace']}/{raw['metadata']['name']}" for raw in others)
        raise _conflict(f"Deployment {names} is a cluster-autoscaler already", names)
    status = None if found else read_status(api)
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

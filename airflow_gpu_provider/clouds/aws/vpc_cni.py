"""Amazon's VPC CNI: whether the version in the cluster can handle the network of the pool's nodes."""

from __future__ import annotations

import re
from typing import Any

from airflow_gpu_provider.clouds.aws.instance_types import Fabric
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.rest import list_items
from airflow_gpu_provider.errors import (
    CloudError,
    ClusterUnreachable,
    CredentialsError,
    PermissionDenied,
    PoolSpecError,
)

SINCE = (1, 18, 5)
""""You must have VPC CNI version 1.18.5 or later for EFA-only interfaces": EKS user guide, node-efa."""

_PATH = "/apis/apps/v1/namespaces/kube-system/daemonsets"
_IMAGE = re.compile(r"(?:^|/)amazon-k8s-cni:v?(\d+)\.(\d+)\.(\d+)")


def check(access: ClusterAccess, pool: EksGpuPool, fabric: Fabric) -> tuple[str, ...]:
    """Ask the cluster for its DaemonSet aws-node, if nodes have EFA-only interfaces. Returns what to know of it.

    A cluster without it has another CNI, or its administrator has given it another name.

    Raises:
        PoolSpecError: The version is older than 1.18.5: no node of the pool would become Ready.
    """
    if not (several := [name for name, has in fabric.cards.items() if has.cards > 1]):
        return ()
    try:
        found = list_items(access.api_client(), _PATH, resource="daemonsets", fieldSelector="metadata.name=aws-node")
    except (CloudError, ClusterUnreachable, CredentialsError, PermissionDenied) as error:
        return (f"whether the cluster's VPC CNI knows EFA-only interfaces is not checked: {error.what}",)
    versions = [version for each in found if (version := version_of(each))]
    if not versions or min(versions) >= SINCE:
        return ()
    is_, wanted = ".".join(map(str, min(versions))), ".".join(map(str, SINCE))
    raise PoolSpecError(
        f'Pool {pool.name}: network="efa" gives {", ".join(several)} EFA-only interfaces, which the VPC CNI knows since'
        f" {wanted}, and cluster {pool.cluster_name} has {is_} (DaemonSet kube-system/aws-node).",
        f"Upgrade it: aws eks update-addon --cluster-name {pool.cluster_name} --addon-name vpc-cni --addon-version ...,"
        " or as it was installed.",
        vpc_cni=is_,
    )


def version_of(daemon_set: dict[str, Any]) -> tuple[int, ...] | None:
    """Return the version of a DaemonSet's image amazon-k8s-cni; None where it has none, or tells no version. Pure."""
    containers = daemon_set["spec"]["template"]["spec"]["containers"]
    matches = (_IMAGE.search(str(each.get("image"))) for each in containers)
    return next((tuple(map(int, match.groups())) for match in matches if match), None)

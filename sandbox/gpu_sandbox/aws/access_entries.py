"""A cluster's authentication mode, and the access entries that two of its three modes have.

"Grant IAM users access to Kubernetes with EKS access entries" in EKS's user guide; the default mode of a cluster that
the API makes is in botocore's model, CreateAccessConfigRequest. Whom the API server lets in is the authenticator's
matter: an entry changes nothing there, and is not kept.
"""

from __future__ import annotations

from typing import Any

from moto.eks.exceptions import InvalidParameterException, InvalidRequestException
from moto.eks.models import Cluster

_MODES = ("CONFIG_MAP", "API_AND_CONFIG_MAP", "API")


def set_mode(cluster: Cluster, mode: str) -> None:
    """Set it as CreateCluster does."""
    cluster.access_config = {"authenticationMode": mode}  # type: ignore[attr-defined]


def mode_of(cluster: Cluster) -> str:
    return str(cluster.access_config["authenticationMode"])  # type: ignore[attr-defined]


def change_mode(cluster: Cluster, mode: str) -> None:
    """Take the next step. InvalidParameterException for any other: there is no way back, and none is left out."""
    before = mode_of(cluster)
    if _MODES.index(mode) - _MODES.index(before) != 1:
        raise InvalidParameterException(
            clusterName=cluster.name,
            nodegroupName=None,
            fargateProfileName=None,
            addonName=None,
            message=f"Unsupported authentication mode update from {before} to {mode}",
        )
    set_mode(cluster, mode)


def create_entry(cluster: Cluster, principal: str, groups: list[str]) -> dict[str, Any]:
    """Return CreateAccessEntry's answer. InvalidRequestException where the mode has none."""
    if mode_of(cluster) == "CONFIG_MAP":
        raise InvalidRequestException(
            message="The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP] to perform this "
            "operation."
        )
    return {"clusterName": cluster.name, "principalArn": principal, "kubernetesGroups": groups, "type": "STANDARD"}

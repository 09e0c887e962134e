"""Releases of EKS's node images: which one nodes are to have, and from when on a new one may be it.

An image of the day before may be one with which no GPU pod starts, and EKS goes back to none (awslabs/amazon-eks-ami
#2165, #2706, #2790): a release is adopted once others have had it for a week, unless the pool names one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_gpu_provider.clouds.aws.clients import AwsService
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.errors import CloudError, PermissionDenied, QuotaExceeded

ADOPTED_AFTER = timedelta(days=7)
"""How old a release is before nodes get it."""

_LOOKED_BACK = 6
"""How many releases are read at most to find one that is old enough: there is one each week or two."""

# EKS user guide, "Retrieve recommended Amazon Linux AMI IDs", and "... Bottlerocket AMI IDs".
_AMAZON_LINUX = "/aws/service/eks/optimized-ami/{kubernetes}/%s/recommended/release_version"
_BOTTLEROCKET = "/aws/service/bottlerocket/aws-k8s-{kubernetes}-%s/latest/image_version"
PARAMETERS = {
    "AL2023_x86_64_NVIDIA": _AMAZON_LINUX % "amazon-linux-2023/x86_64/nvidia",
    "AL2023_ARM_64_NVIDIA": _AMAZON_LINUX % "amazon-linux-2023/arm64/nvidia",
    "AL2_x86_64_GPU": _AMAZON_LINUX % "amazon-linux-2-gpu",
    "BOTTLEROCKET_x86_64_NVIDIA": _BOTTLEROCKET % "nvidia/x86_64",
    "BOTTLEROCKET_ARM_64_NVIDIA": _BOTTLEROCKET % "nvidia/arm64",
    "BOTTLEROCKET_x86_64_NVIDIA_FIPS": _BOTTLEROCKET % "nvidia-fips/x86_64",
    "BOTTLEROCKET_ARM_64_NVIDIA_FIPS": _BOTTLEROCKET % "nvidia-fips/arm64",
}
"""The parameters of Parameter Store that hold the newest releases, by ami_type."""

_DAY = re.compile(r"-(\d{8})$")


@dataclass(frozen=True, kw_only=True)
class Releases:
    """Those of one kind of image that count.

    Attributes:
        adopted: The newest that is old enough; empty where none is, as far back as was read.
        newest: The newest.
        adopted_at: From when on that one is old enough.
    """

    adopted: str
    newest: str
    adopted_at: datetime


def read(ssm: AwsService, ami_type: str, kubernetes: str) -> Releases:
    """Read them from Parameter Store, which keeps earlier values of a parameter by its version.

    Raises:
        CloudError, PermissionDenied, QuotaExceeded: The newest cannot be read.
    """
    name = PARAMETERS[ami_type].format(kubernetes=kubernetes)
    found = ssm.call("get_parameter", Name=name)["Parameter"]
    newest, now = str(found["Value"]), ssm.now()
    adopted_at, version = _adopted_at(ami_type, found), int(found.get("Version", 1))
    for earlier in range(version - 1, max(version - _LOOKED_BACK, 0), -1):
        if now >= _adopted_at(ami_type, found):
            break
        try:
            found = ssm.call("get_parameter", Name=f"{name}:{earlier}")["Parameter"]
        except (CloudError, PermissionDenied, QuotaExceeded):
            break
    adopted = str(found["Value"]) if now >= _adopted_at(ami_type, found) else ""
    return Releases(adopted=adopted, newest=newest, adopted_at=adopted_at)


def _adopted_at(ami_type: str, parameter: Mapping[str, Any]) -> datetime:
    """Return from when on a release may be used: Amazon Linux's have their day, of Bottlerocket's the parameter tells.

    One of which nothing tells its age has always been.
    """
    match = _DAY.search(str(parameter["Value"]))
    if match and ami_type.startswith("AL"):  # Bottlerocket's end in a hash, which may have digits alone
        return datetime.strptime(match[1], "%Y%m%d").replace(tzinfo=UTC) + ADOPTED_AFTER
    at: datetime | None = parameter.get("LastModifiedDate")
    return at.astimezone(UTC) + ADOPTED_AFTER if at else datetime.min.replace(tzinfo=UTC)


def held(pool: EksGpuPool, ami_type: str, kubernetes: str) -> str:
    """Return the release that the pool names for such nodes; empty where it names none, or one of other Kubernetes."""
    return pool.ami_release or "" if ami_type == pool.ami_type and fits(pool, kubernetes) else ""


def fits(pool: EksGpuPool, kubernetes: str) -> bool:
    """Return False if the pool names a release for another Kubernetes; Bottlerocket's name none."""
    release = pool.ami_release or ""
    return pool.has_image_volume or not release or release.startswith(f"{kubernetes}.")


def of_new_groups(ssm: AwsService, pool: EksGpuPool, kubernetes: str) -> str:
    """Return the release that a pool's new groups are made from; empty where EKS is to take the newest."""
    if release := held(pool, pool.ami_type, kubernetes):
        return release
    try:
        return read(ssm, pool.ami_type, kubernetes).adopted if pool.ami_type in PARAMETERS else ""
    except (CloudError, PermissionDenied, QuotaExceeded):
        return ""  # the plan says that releases could not be read


def numbers(release: str) -> tuple[int, ...]:
    """Return "1.36", "1.36.3-20260827" or "1.64.0-7c4f0d2b" as numbers, to compare; a hash tells no order."""
    version, _, build = release.partition("-")
    found = [*version.split("."), *([build] if len(build) == len("20260827") else [])]
    return tuple(int(each) for each in found if each.isdigit())

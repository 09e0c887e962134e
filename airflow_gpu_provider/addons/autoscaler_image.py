"""Which image of cluster-autoscaler goes with a cluster's Kubernetes: the release of the same minor version."""

from __future__ import annotations

import re

from airflow_gpu_provider.errors import PoolSpecError

IMAGE = "registry.k8s.io/autoscaling/cluster-autoscaler"
NEWEST = "v1.36.1"

_RELEASES = {31: "v1.31.5", 32: "v1.32.7", 33: "v1.33.5", 34: "v1.34.4", 35: "v1.35.1", 36: NEWEST}
_WATCHES_RESOURCE_V1 = 35
"""From this minor on it does so always, and never starts where there is no such API (kubernetes/autoscaler#9244)."""
_HAS_RESOURCE_V1 = 34
_MINOR = re.compile(r"v?1\.(\d+)\b")


def release_for(kubernetes: str) -> str:
    """Return the tag for a cluster's version, like "1.36"; the newest known one for a newer Kubernetes."""
    minor = _minor(kubernetes)
    if minor is None or minor > max(_RELEASES):
        return NEWEST
    return _RELEASES.get(minor, f"v1.{minor}.0")


def check_release(image: str, kubernetes: str) -> None:
    """Refuse an image, with its tag, that cannot work in a cluster; a tag that says no version is let through.

    Raises:
        PoolSpecError: It is of 1.35 or later, and the cluster's Kubernetes of 1.33 or earlier.
    """
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    release, cluster = _minor(tag), _minor(kubernetes)
    if release is None or cluster is None or release < _WATCHES_RESOURCE_V1 or cluster >= _HAS_RESOURCE_V1:
        return
    raise PoolSpecError(
        f"cluster-autoscaler {tag} never starts in a cluster with Kubernetes {kubernetes}: from"
        f" 1.{_WATCHES_RESOURCE_V1} on it needs the API resource.k8s.io/v1, which a cluster has from"
        f" 1.{_HAS_RESOURCE_V1}.",
        f"Leave version out, or use {release_for(kubernetes)}.",
        image=image,
        kubernetes=kubernetes,
    )


def _minor(version: str) -> int | None:
    found = _MINOR.match(version)
    return int(found[1]) if found else None

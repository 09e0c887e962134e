"""cluster-autoscaler for an EKS cluster: its manifest, and the image for a cluster's version.

The manifest is the text in cluster_autoscaler.yaml.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template

from airflow_gpu_provider.clouds.aws.pool import EksGpuPool

IMAGE = "registry.k8s.io/autoscaling/cluster-autoscaler"

_RELEASES = {31: "v1.31.5", 32: "v1.32.7", 33: "v1.33.5", 34: "v1.34.4", 35: "v1.35.1", 36: "v1.36.1"}
_MINOR = re.compile(r"v?1\.(\d+)\b")


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

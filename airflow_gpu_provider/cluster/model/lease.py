"""The Leases in which this package keeps what has to outlive a process: their namespace, labels and form. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEMAND_NAMESPACE = "airflow-gpu-provider"
"""The namespace of all leases of this package."""

KIND_LABEL = "airflow-gpu-provider/kind"
"""The label that tells demand, locks, usage and the like from one another."""

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{DEMAND_NAMESPACE}/leases"
PART_OF = {"app.kubernetes.io/managed-by": "airflow-gpu-provider"}
"""The label of all that this package keeps there."""


def lease_manifest(
    name: str, kind: str, *, labels: Mapping[str, str], notes: Mapping[str, str], spec: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a Lease of this package, with `notes` as its annotations."""
    metadata = {"name": name, "labels": {**PART_OF, KIND_LABEL: kind, **labels}}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {**metadata, "annotations": notes} if notes else metadata,
        "spec": spec,
    }

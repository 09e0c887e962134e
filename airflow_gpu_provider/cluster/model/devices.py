"""GPUs that a node offers, and GPUs that a pod asks for: the one place that reads their numbers from JSON. Pure.

Both are of the extended resource of NVIDIA's device plugin. GPUs in resource slices and claims (Dynamic Resource
Allocation) would be counted here as well.
"""

from __future__ import annotations

from typing import NamedTuple

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.cluster.model.pod_state import Json


class Offered(NamedTuple):
    """The GPUs of a node: `allocatable` to pods, and all of them, those that are unhealthy included."""

    allocatable: int
    capacity: int


def offered(node: Json) -> Offered:
    """Return the GPUs of a node; none before its device plugin has registered them."""
    status = node.get("status") or {}
    return Offered(*(int((status.get(part) or {}).get(GPU_RESOURCE, 0)) for part in Offered._fields))


def asked(pod_spec: Json) -> int:
    """Return how many GPUs a pod with this spec gets: beside its containers, sidecars count, and init containers."""
    first = pod_spec.get("initContainers") or ()
    sidecars = sum(int(limit_of(each)) for each in first if each.get("restartPolicy") == "Always")
    running = sidecars + sum(int(limit_of(each)) for each in pod_spec.get("containers") or ())
    return max(running, *(int(limit_of(each)) for each in first)) if first else running


def limit_of(container: Json) -> str | float:
    """Return the GPUs in a container's limits as they are written; 0 where there are none.

    A manifest that no API server has seen may have anything there.
    """
    limit: str | float = ((container.get("resources") or {}).get("limits") or {}).get(GPU_RESOURCE, 0)
    return limit

"""The GPUs that a workload's manifest asks for, and the nodes that its pods fill. Pure; loads no client."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from airflow_gpu_provider.cluster.nodes import GPU_RESOURCE
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.workloads.kinds import TRAINER, Manifest, PodTemplate, templates_of


def nodes_needed(manifest: Mapping[str, Any], pool: GpuPool) -> int | None:
    """Return how many nodes the pods with GPUs fill; None where the manifest does not say, or is still to be rendered.

    Where nobody knows how many GPUs a node has, each pod counts as a node.
    """
    asked: list[int] = []
    for template in templates_of(copy.deepcopy(dict(manifest))):
        gpus = gpus_of(template)
        if gpus is None or (gpus and template.pods is None):
            return None
        asked += [gpus] * (template.pods or 0) if gpus else []
    free: list[int] = []  # GPUs that the pods leave, of each node
    for gpus in sorted(asked, reverse=True):
        node = next((index for index, left in enumerate(free) if left >= gpus), None)
        if node is None:
            free.append((pool.gpus_per_node or gpus) - gpus)
        else:
            free[node] -= gpus
    return len(free)


def containers_of(each: PodTemplate) -> list[Manifest]:
    if each.trainer is None:
        containers: list[Manifest] = (each.template.get("spec") or {}).get("containers") or []
        return containers
    trainer = each.trainer
    return [{"name": TRAINER, "resources": trainer.get("resourcesPerNode") or {}, "env": trainer.get("env") or []}]


def asks_for_gpus(each: PodTemplate) -> bool:
    return gpus_of(each) != 0


def gpus_of(each: PodTemplate) -> int | None:
    """Return the GPUs of one pod; None where its runtime says it, or an expression that is still to be rendered."""
    limits = [limit_of(container) for container in containers_of(each)]
    if each.trainer is not None and not each.trainer.get("resourcesPerNode"):
        return None
    return None if None in limits else sum(limit for limit in limits if limit)


def limit_of(container: Manifest) -> int | None:
    """Return the GPUs that a container asks for; None where they are an expression that is still to be rendered."""
    asked = ((container.get("resources") or {}).get("limits") or {}).get(GPU_RESOURCE, 0)
    if is_template(asked):
        return None
    try:
        return int(asked)
    except (TypeError, ValueError) as error:
        raise PoolSpecError(
            f"Container {container.get('name')} has limits of {GPU_RESOURCE}={asked!r}.",
            "Kubernetes hands out whole GPUs: give a whole number.",
        ) from error

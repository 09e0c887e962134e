"""The GPUs that a workload's manifest asks for, and the nodes that its pods fill. Pure; loads no client."""

from __future__ import annotations

import copy

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.cluster.pod_state import Json
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.training.place.kinds import TRAINER, Manifest, PodTemplate, templates_of

_SCALES = ("RayJob",)
"""Kinds that may start without a GPU pod: their autoscaler adds it."""


def nodes_needed(manifest: Json, pool: GpuPool) -> int | None:
    """Return how many nodes the GPU pods fill; None if the manifest does not say, or is not rendered yet.

    If it is unknown how many GPUs a node has, each pod counts as a node. The pods of a Job that is not Indexed take
    turns if the pool has no room for all: no more than `max_nodes` are needed.
    """
    asked: list[int] = []
    for template in templates_of(copy.deepcopy(dict(manifest))):
        gpus = gpus_of(template)
        if gpus is None or (gpus and template.pods is None):
            return None
        asked += [gpus] * (template.pods or 0) if gpus else []
    free: list[int] = []  # GPUs left free on each node
    for gpus in sorted(asked, reverse=True):
        node = next((index for index, left in enumerate(free) if left >= gpus), None)
        if node is None:
            free.append((pool.gpus_per_node or gpus) - gpus)
        else:
            free[node] -= gpus
    take_turns = manifest["kind"] == "Job" and (manifest.get("spec") or {}).get("completionMode") != "Indexed"
    return min(len(free), pool.max_nodes) if take_turns else len(free)


def gpus_of_all(manifest: Json) -> int | None:
    """Return how many GPUs all pods have together; None if the manifest does not say."""
    each = [(gpus_of(template), template.pods) for template in templates_of(copy.deepcopy(dict(manifest)))]
    known = [(gpus or 0) * (pods or 0) for gpus, pods in each if gpus is not None and (not gpus or pods is not None)]
    return sum(known) if len(known) == len(each) else None


def gpus_asked(manifest: Json) -> list[int]:
    """Return how many GPUs the pods of each template have, for templates that state a number.

    Raises:
        PoolSpecError: No pod requests GPUs, or no such pod is ever made, or two containers of one pod request them.
    """
    with_gpus = [each for each in templates_of(copy.deepcopy(dict(manifest))) if asks_for_gpus(each)]
    known = [(each, gpus) for each in with_gpus if (gpus := gpus_of(each))]
    for each, _ in known:
        container_with_gpus(each)
    if not with_gpus:
        raise PoolSpecError(
            f"No pod template of the {manifest['kind']} asks for {GPU_RESOURCE}.",
            f"Give the containers that train {GPU_RESOURCE} in resources.limits.",
        )
    if manifest["kind"] not in _SCALES and all(each.pods == 0 for each in with_gpus):
        raise PoolSpecError(
            f"The {manifest['kind']} would never create a pod with GPUs: its templates with GPUs have 0 pods.",
            "Give a number of pods above 0 (parallelism and completions, or replicas).",
        )
    return [gpus for _, gpus in known]


def container_with_gpus(each: PodTemplate) -> Manifest:
    """Return the container that has the pod's GPUs.

    Raises:
        PoolSpecError: Several have.
    """
    containers = containers_of(each)
    training = [one for one in containers if limit_of(one) != 0] or containers
    if len(training) > 1:
        names = ", ".join(str(one.get("name")) for one in training)
        raise PoolSpecError(
            f"Containers {names} of one pod ask for {GPU_RESOURCE}.", "Give the GPUs to one container of each pod."
        )
    return training[0]


def containers_of(each: PodTemplate) -> list[Manifest]:
    if each.trainer is None:
        containers: list[Manifest] = (each.template.get("spec") or {}).get("containers") or []
        return containers
    trainer = each.trainer
    return [{"name": TRAINER, "resources": trainer.get("resourcesPerNode") or {}, "env": trainer.get("env") or []}]


def asks_for_gpus(each: PodTemplate) -> bool:
    return gpus_of(each) != 0


def gpus_of(each: PodTemplate) -> int | None:
    """Return the GPUs of one pod; None if its runtime or an expression not rendered yet sets them."""
    limits = [limit_of(container) for container in containers_of(each)]
    if each.trainer is not None and not each.trainer.get("resourcesPerNode"):
        return None
    return None if None in limits else sum(limit for limit in limits if limit)


def limit_of(container: Manifest) -> int | None:
    """Return the GPUs that a container requests; None if they are an expression that is not rendered yet."""
    asked = ((container.get("resources") or {}).get("limits") or {}).get(GPU_RESOURCE, 0)
    if is_template(asked):
        return None
    try:
        limit = int(asked)
    except (TypeError, ValueError):
        limit = -1
    if limit < 0 or (isinstance(asked, float) and asked != limit):
        raise PoolSpecError(
            f"Container {container.get('name')} has limits of {GPU_RESOURCE}={asked!r}.",
            "Kubernetes hands out whole GPUs: use a whole number.",
        )
    return limit

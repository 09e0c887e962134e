"""What pods ask for, and whether a pool's nodes can take them: by size, node selector, and what the scheduler says.

For a workload, its manifest tells which GPUs, and how many nodes its pods fill. Pure; loads no client.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping
from typing import Any

from airflow_gpu_provider.accelerators import GPU_RESOURCE, NodeSize
from airflow_gpu_provider.cluster.model import devices
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.cluster.model.quantity import amount
from airflow_gpu_provider.errors import PodUnschedulable, PoolSpecError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.training.place.kinds import TRAINER, Manifest, PodTemplate, templates_of

_NAMED = 5

_TAKEN = re.compile(
    rf"Insufficient {re.escape(GPU_RESOURCE)}|anti-affinity rules|ReadWriteOncePod access mode|had no available disk"
)
_LITTLE_ROOM = re.compile(r"Insufficient \S|Too many pods|have free ports|exceed max volume count")


def requests_of(spec: Mapping[str, Any]) -> NodeSize:
    """Return the requests of a pod with this spec, as the scheduler adds them up; keys are JSON's or the client's.

    Native sidecars (init containers that are always restarted) run beside the containers, and beside the init
    containers that come after them. What the pod asks for as a whole counts instead of all these
    (k8s.io/component-helpers/resource).
    """
    beside, most = dict.fromkeys(_RESOURCES, 0.0), dict.fromkeys(_RESOURCES, 0.0)
    for container in spec.get("initContainers") or spec.get("init_containers") or ():
        together = _sum(beside, _request(container))
        if "Always" in (container.get("restartPolicy"), container.get("restart_policy")):
            beside = together
        most = {name: max(most[name], together[name]) for name in _RESOURCES}
    running = _sum(beside, *map(_request, spec.get("containers") or ()))
    whole = {name: max(most[name], running[name]) for name in _RESOURCES} | _of_whole_pod(spec, running)
    whole = _sum(whole, {name: amount((spec.get("overhead") or {}).get(name) or 0) for name in _RESOURCES})
    return NodeSize(cpus=whole["cpu"], memory=whole["memory"], gpus=int(whole[GPU_RESOURCE]))


def size_of(node: Node) -> NodeSize | None:
    """Return what a node offers to pods; None until its kubelet reports it. GPUs may come later."""
    if not {"cpu", "memory"} <= node.allocatable.keys():
        return None
    cpus, memory = amount(node.allocatable["cpu"]), amount(node.allocatable["memory"])
    return NodeSize(cpus=cpus, memory=memory, gpus=node.gpu_capacity or None)


def check_fits(requests: NodeSize, sizes: Mapping[str, NodeSize | None], *, pool: str) -> None:
    """Raise PodUnschedulable if the pod fits on none of the nodes; an unknown size may be large enough."""
    known = {name: size for name, size in sizes.items() if size is not None}
    if not known or len(known) < len(sizes) or any(not _short_of(requests, size) for size in known.values()):
        return
    named = [f"{name} has {_in_words(_amounts(size))}" for name, size in known.items()]
    short = {resource for size in known.values() for resource in _short_of(requests, size)}
    asked = {resource: wanted for resource, wanted in _amounts(requests).items() if resource in short}
    more = f"; and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    raise PodUnschedulable(
        f"The pod asks for {_in_words(asked)}, more than any machine of pool {pool} has for pods: "
        f"{'; '.join(named[:_NAMED])}{more}.",
        "Ask for less in container_resources, or add a larger machine type to the pool.",
        pool=pool,
    )


def waits_for_other_pods(message: str, *, is_any_node_empty: bool) -> bool:
    """Return True if the scheduler's message names a node that would fit without its other pods.

    The scheduler reports this only for a node that has passed its filters for taints, node selector and node affinity,
    and names every resource that is short (kube-scheduler's plugins NodeResourcesFit, NodePorts, NodeVolumeLimits,
    VolumeRestrictions, InterPodAffinity).

    Args:
        message: From the pod's condition PodScheduled.
        is_any_node_empty: A usable node runs nothing but DaemonSet pods. If CPU or memory is short even so, no other
            pod's end helps.
    """
    if _TAKEN.search(message):
        return True
    return not is_any_node_empty and _LITTLE_ROOM.search(message) is not None


def is_left_out(message: str, *, ready: Collection[str], empty: Collection[str]) -> bool:
    """Return True if the scheduler excludes usable nodes for another reason than the pods running there.

    Args:
        message: As for `waits_for_other_pods`; empty if the scheduler has not reported that it finds no node.
        ready: The usable nodes, by name.
        empty: The pool's nodes that run nothing but DaemonSet pods.
    """
    if not message or not ready:
        return False
    return not waits_for_other_pods(message, is_any_node_empty=any(node in empty for node in ready))


def not_on_any(selector: Mapping[str, str], nodes: Collection[Node]) -> str:
    """Return the node selector's labels that no node satisfies; empty if one does, or without nodes."""
    if not nodes or any(selector.items() <= node.labels.items() for node in nodes):
        return ""
    nowhere = {k: v for k, v in selector.items() if all(node.labels.get(k) != v for node in nodes)}
    return ", ".join(f"{k}={v}" for k, v in sorted((nowhere or selector).items()))


_RESOURCES = ("cpu", "memory", GPU_RESOURCE)


def _request(container: Mapping[str, Any]) -> dict[str, float]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: amount(asked.get(name) or 0) for name in _RESOURCES}


def _sum(*amounts: Mapping[str, float]) -> dict[str, float]:
    return {name: sum(each[name] for each in amounts) for name in _RESOURCES}


def _of_whole_pod(spec: Mapping[str, Any], running: Mapping[str, float]) -> dict[str, float]:
    """Return the pod's own requests; its limits count as such where no container asks for anything."""
    resources = spec.get("resources") or {}
    limits = {name: asked for name, asked in (resources.get("limits") or {}).items() if not running.get(name)}
    asked = {**limits, **(resources.get("requests") or {})}
    return {name: amount(asked[name]) for name in _RESOURCES if name in asked}


def _amounts(size: NodeSize) -> dict[str, float]:
    known = {"cpu": size.cpus, "memory": size.memory, GPU_RESOURCE: size.gpus}
    return {resource: value for resource, value in known.items() if value is not None}


def _short_of(requests: NodeSize, size: NodeSize) -> list[str]:
    """Return the resources of which a node has less than the pod asks for."""
    has = _amounts(size)
    return [resource for resource, wanted in _amounts(requests).items() if wanted > has.get(resource, wanted)]


def _in_words(amounts: Mapping[str, float]) -> str:
    words = [
        f"{value:.4g} CPUs"
        if resource == "cpu"
        else f"{value / 2**30:.1f} GiB of memory"
        if resource == "memory"
        else f"{value:g} {'GPU' if value == 1 else 'GPUs'}"
        for resource, value in amounts.items()
    ]
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


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
    """Return the container that has the pod's GPUs; raises PoolSpecError if several have."""
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
    asked = devices.limit_of(container)
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

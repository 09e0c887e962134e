"""Places a workload's manifest on a pool: each pod template that requests GPUs, like a single pod. Pure.

What the placement does not touch is left as written: the client's models know only the fields of one Kubernetes
release. A template without GPUs, such as a RayJob's head, gets the run's labels, and runs where its author wants it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from kubernetes.client import ApiClient
from kubernetes.client import models as k8s

from airflow_gpu_provider.cluster.pods import TASK_LABEL, WORKLOAD_LABEL, WORKLOAD_PATH
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.training.place.gpu_requests import (
    asks_for_gpus,
    container_with_gpus,
    containers_of,
    gpus_asked,
    limit_of,
)
from airflow_gpu_provider.training.place.kinds import Manifest, PodTemplate, kind_of, path_of, templates_of
from airflow_gpu_provider.training.place.pod_placement import Placement, place

_API = ApiClient()


def place_workload(manifest: Mapping[str, Any], placement: Placement) -> Manifest:
    """Return a copy of the manifest whose pods run on the pool.

    Args:
        manifest: Of a known kind, rendered.
        placement: For the pods; the manifest says how many GPUs, and for which container.

    Raises:
        PoolSpecError: As for `gpus_asked`, or the manifest contradicts the placement.
        PodUnschedulable: No machine of the pool is as large as one of the pods.
    """
    placed: Manifest = copy.deepcopy(dict(manifest))
    templates = templates_of(placed)
    gpus_asked(placed)
    own = {POOL_LABEL: placement.pool.name, **placement.labels}
    _add_metadata(placed, labels=own, annotations=placement.annotations)
    for each in templates:
        _add_metadata(
            each.template,
            labels={**own, WORKLOAD_LABEL: placement.labels.get(TASK_LABEL, "")},
            annotations={**placement.annotations, WORKLOAD_PATH: path_of(placed)},
        )
        if asks_for_gpus(each):
            _place_template(each, placement)
    if placement.active_deadline_seconds is not None:
        kind_of(placed).limit_time(placed, placement.active_deadline_seconds)
    kind_of(placed).limit_stay(placed)
    return placed


def training_pods(manifest: Mapping[str, Any]) -> Iterator[tuple[k8s.V1Pod, str, int | None]]:
    """Yield the GPU pods that the manifest describes, the container with the GPUs, and their number.

    None for a TrainJob, whose pods come from its runtime.
    """
    for each in templates_of(copy.deepcopy(dict(manifest))):
        if each.trainer is None and asks_for_gpus(each):
            pod, base = _pod(each, containers_of(each)), container_with_gpus(each)
            pod.metadata.namespace = manifest["metadata"]["namespace"]
            yield pod, base["name"], limit_of(base)


# -- one template --------------------------------------------------------------------------------------------


def _place_template(each: PodTemplate, placement: Placement) -> None:
    base = container_with_gpus(each)
    pod = _pod(each, containers_of(each))
    can_end = each.trainer is None  # a TrainJob's patch has no deadline for its pods
    placed = place(
        pod,
        replace(
            placement,
            gpus=limit_of(base) or 0,
            base_container=base["name"],
            active_deadline_seconds=placement.active_deadline_seconds if can_end else None,
        ),
    )
    _take_over(each, base, _API.sanitize_for_serialization(pod), _API.sanitize_for_serialization(placed))


def _take_over(each: PodTemplate, base: Manifest, before: Manifest, placed: Manifest) -> None:
    """Write into the template what the placement has added to the pod."""
    template, spec = each.template, each.template.setdefault("spec", {})
    _add_metadata(template, **{key: placed["metadata"].get(key, {}) for key in ("labels", "annotations")})
    # A TrainJob's patch has no hostIPC: its runtime has to say it.
    only_of_pods = ("hostIPC",) if each.trainer is None else ()
    for key in ("nodeSelector", "affinity", "activeDeadlineSeconds", *only_of_pods):
        if placed["spec"].get(key) != before["spec"].get(key):
            spec[key] = placed["spec"][key]
    for key in ("tolerations", "volumes"):
        _append(spec, key, before["spec"], placed["spec"])
    was, now = (_container(one["spec"], base["name"]) for one in (before, placed))
    if each.trainer is None:
        container = variables = _container(spec, base["name"])
    else:
        container, variables = {"name": base["name"]}, each.trainer
        spec["containers"] = [container]
    _append(variables, "env", was, now)
    _append(container, "volumeMounts", was, now)


def _append(to: Manifest, key: str, before: Manifest, placed: Manifest) -> None:
    """Append what the placement has appended to a list."""
    added = (placed.get(key) or [])[len(before.get(key) or []) :]
    if added:
        to[key] = [*(to.get(key) or []), *added]


def _pod(each: PodTemplate, containers: list[Manifest]) -> k8s.V1Pod:
    """Return the template as a pod of the client's model."""
    metadata, spec = each.template.get("metadata") or {}, each.template.get("spec") or {}
    return PodGenerator.deserialize_model_dict({"metadata": metadata, "spec": {**spec, "containers": containers}})


def _container(spec: Manifest, name: str) -> Manifest:
    return next(one for one in spec["containers"] if one["name"] == name)


def _add_metadata(to: Manifest, *, labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
    metadata = to["metadata"] = {**(to.get("metadata") or {})}
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}

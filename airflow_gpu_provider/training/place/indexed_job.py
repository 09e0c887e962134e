"""A pod as a gang: the Indexed Job that runs it on several nodes, and the headless Service that names its ranks. Pure.

The Service belongs to the Job, and goes with it. The Job is created suspended; its admission sets `suspend` to false.
Kubernetes restarts none of its pods: a failed rank stays as it ended, and the other ranks run until the task has read
their logs and ends them.
"""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

from airflow.providers.cncf.kubernetes.utils.xcom_sidecar import PodDefaults

from airflow_gpu_provider.cluster.model.node import ZONE_LABEL
from airflow_gpu_provider.cluster.model.pod_state import DEADLINE_ANNOTATION, Json
from airflow_gpu_provider.cluster.model.pool_pod import GANG_LABEL, JOB_LABEL, RANK_ANNOTATION
from airflow_gpu_provider.scaling.deadlines import job_seconds
from airflow_gpu_provider.scaling.state.gang_jobs import QUEUE_LABEL
from airflow_gpu_provider.training.place.kinds import FINISHED_STAYS_SECONDS

MASTER_PORT = 29500
"""torchrun's default; each pod has its own IP, so two gangs on one node do not collide."""

NCCL_HEARTBEAT_SECONDS = 300
"""NCCL ends a rank after this long without progress; its default is 480 or 600, depending on the release."""

LONGEST_NAME = 54
"""For a Job, so that the pods' host names, "<job>-<rank>", are DNS labels; the Service's name already is one."""

_SIDECAR = f'[ "$JOB_COMPLETION_INDEX" = 0 ] || exit 0; trap "exit 0" TERM; {PodDefaults.XCOM_CMD}'


def job_name(pod_name: str) -> str:
    """Return the Job's name for a pod with this name; its random suffix is kept."""
    name = pod_name if pod_name[0].isalpha() else f"g-{pod_name}"
    if len(name) <= LONGEST_NAME:
        return name
    head, _, suffix = name.rpartition("-")
    return f"{head[: LONGEST_NAME - len(suffix) - 1].rstrip('-.')}-{suffix}"[:LONGEST_NAME]


def indexed_job(
    pod: Json, *, nodes: int, gpus: int, base_container: str, own_deadline: int | None = None
) -> dict[str, Any]:
    """Return the suspended Job that runs a placed pod on this many nodes, with so many GPUs on each.

    The placed pod's activeDeadlineSeconds are the Job's, since these may be raised while it runs.

    Args:
        base_container: Gets the peers' environment.
        own_deadline: The activeDeadlineSeconds that the author gives each pod; None for none.
    """
    name, template = job_name(pod["metadata"]["name"]), copy.deepcopy(pod)
    labels = {**(pod["metadata"].get("labels") or {}), GANG_LABEL: str(nodes)}
    of_pods = {name: value for name, value in labels.items() if name != QUEUE_LABEL}  # the Job is queued as a whole
    annotations = pod["metadata"].get("annotations") or {}
    of_each = {**annotations, DEADLINE_ANNOTATION: str(own_deadline or "")}
    spec = template["spec"]
    spec["subdomain"] = name
    _spread(spec, name)
    for container in spec["containers"]:
        if container["name"] == base_container:
            _tell(container, peers_environment(name, nodes=nodes, gpus=gpus))
        if container["name"] == PodDefaults.SIDECAR_CONTAINER_NAME:
            container["command"] = ["sh", "-c", _SIDECAR]
    limit = spec.pop("activeDeadlineSeconds", None)
    if own_deadline is not None:
        spec["activeDeadlineSeconds"] = own_deadline
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": pod["metadata"]["namespace"],
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "completions": nodes,
            "parallelism": nodes,
            # Without it, the controller deletes all other pods, logs included, at the first failure.
            "backoffLimitPerIndex": 0,
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": FINISHED_STAYS_SECONDS,
            **({"activeDeadlineSeconds": job_seconds(timedelta(seconds=limit))} if limit else {}),
            "template": {"metadata": {"labels": of_pods, "annotations": of_each}, "spec": spec},
        },
    }


def headless_service(job: Json) -> dict[str, Any]:
    """Return the Service that names a created Job's ranks, ready or not; it is deleted with the Job."""
    meta = job["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": meta.get("labels") or {},
            "ownerReferences": [owner],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB_LABEL: meta["name"]},
        },
    }


def hosts(job: str, nodes: int) -> list[str]:
    """Return the ranks' names in their cluster's DNS, within the namespace."""
    return [f"{job}-{rank}.{job}" for rank in range(nodes)]


def peers_environment(job: str, *, nodes: int, gpus: int) -> list[dict[str, Any]]:
    """Return the variables by which a rank finds its peers; torchrun reads its arguments from PET_*."""
    names = hosts(job, nodes)
    rank = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{RANK_ANNOTATION}']"}}}
    values = {
        "PET_NNODES": str(nodes),
        "PET_NPROC_PER_NODE": str(gpus),
        "PET_MASTER_ADDR": names[0],
        "PET_MASTER_PORT": str(MASTER_PORT),
        "MASTER_ADDR": names[0],
        "MASTER_PORT": str(MASTER_PORT),
        "AIRFLOW_GPU_NODES": str(nodes),
        "AIRFLOW_GPU_HOSTS": ",".join(names),
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(NCCL_HEARTBEAT_SECONDS),
    }
    given = [{"name": name, "value": value} for name, value in values.items()]
    return [*({"name": name, **rank} for name in ("PET_NODE_RANK", "AIRFLOW_GPU_NODE_RANK")), *given]


def _tell(container: dict[str, Any], variables: list[dict[str, Any]]) -> None:
    given = container.get("env") or []
    own = {each["name"] for each in given}
    container["env"] = [*given, *(each for each in variables if each["name"] not in own)]


def _spread(spec: dict[str, Any], job: str) -> None:
    """Put each rank on its own node, in addition to the user's affinity.

    Admission puts all of them into one zone. If nodes come only when pods request them, it has no zone to name, and the
    ranks prefer each other's zone: nodes may have no zone label, so it cannot be required.
    """
    term = {"labelSelector": {"matchLabels": {JOB_LABEL: job}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = spec["affinity"] = spec.get("affinity") or {}
    apart = affinity["podAntiAffinity"] = affinity.get("podAntiAffinity") or {}
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    apart[key] = [*(apart.get(key) or []), term]
    together = affinity["podAffinity"] = affinity.get("podAffinity") or {}
    wish = "preferredDuringSchedulingIgnoredDuringExecution"
    near = {"weight": 100, "podAffinityTerm": {**term, "topologyKey": ZONE_LABEL}}
    together[wish] = [*(together.get(wish) or []), near]

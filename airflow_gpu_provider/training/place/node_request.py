"""What asks for all nodes of a gang at once: a ProvisioningRequest, and the PodTemplate that it names. Pure.

Both belong to the gang's Job, and go with it. What its annotations say they ask for.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from airflow_gpu_provider.cluster.gang_labels import GANG_LABEL
from airflow_gpu_provider.cluster.pod_state import Json
from airflow_gpu_provider.cluster.provisioning_requests import (
    API_VERSION,
    CLASS_ANNOTATION,
    PARAMETER_PREFIX,
    REQUEST_ANNOTATION,
)
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.queued_nodes import provisioning_class
from airflow_gpu_provider.scaling.state.gang_jobs import QUEUE_LABEL
from airflow_gpu_provider.training.place.kinds import Manifest

_WARDEN = {"cloud.google.com/apply-warden-policies": "true"}
"""The label of a PodTemplate that GKE is to change like the pods, by which it knows what they need."""


def ask_for_nodes(job: Json, pool: GpuPool) -> None:
    """Note on a Job that is to be created what it asks for; nothing where its nodes come otherwise.

    In a queue of Kueue, Kueue makes the request, with the same parameters, and gives the pods their annotations.
    """
    if not (class_name := provisioning_class(pool)):
        return
    lifetime = getattr(pool, "node_lifetime", None)
    if lifetime is not None:
        seconds = str(int(lifetime.total_seconds()))
        _annotate(job["metadata"], {f"{PARAMETER_PREFIX}maxRunDurationSeconds": seconds})
    if job["metadata"]["labels"].get(QUEUE_LABEL):
        return
    consumed = {REQUEST_ANNOTATION: job["metadata"]["name"], CLASS_ANNOTATION: class_name}
    _annotate(job["spec"]["template"]["metadata"], consumed)


def node_request(job: Json) -> tuple[Json, Json] | None:
    """Return the PodTemplate and the ProvisioningRequest of a created Job; None where its nodes come otherwise."""
    meta, template = job["metadata"], job["spec"]["template"]
    class_name = (template["metadata"].get("annotations") or {}).get(CLASS_ANNOTATION)
    if class_name is None:
        return None
    labels = meta.get("labels") or {}
    own = {
        "name": meta["name"],
        "namespace": meta["namespace"],
        "labels": labels,
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}],
    }
    spec = copy.deepcopy(template["spec"])
    for between_pods in ("podAffinity", "podAntiAffinity"):  # GKE does not look at it, and each rank fills its node
        (spec.get("affinity") or {}).pop(between_pods, None)
    pod_template = {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {**own, "labels": labels | _WARDEN},
        "template": {"metadata": {"labels": template["metadata"].get("labels") or {}}, "spec": spec},
    }
    request = {
        "apiVersion": API_VERSION,
        "kind": "ProvisioningRequest",
        "metadata": own,
        "spec": {
            "provisioningClassName": class_name,
            "parameters": _parameters(meta.get("annotations") or {}),
            "podSets": [{"count": int(labels[GANG_LABEL]), "podTemplateRef": {"name": meta["name"]}}],
        },
    }
    return pod_template, request


def _annotate(metadata: Manifest, annotations: dict[str, str]) -> None:
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}


def _parameters(annotations: Mapping[str, str]) -> dict[str, str]:
    given = annotations.items()
    return {key.removeprefix(PARAMETER_PREFIX): value for key, value in given if key.startswith(PARAMETER_PREFIX)}

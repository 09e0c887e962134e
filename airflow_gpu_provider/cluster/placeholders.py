"""Placeholder pods: they make an autoscaler add a node before the pod that is to run there exists.

Each requests a whole node's GPUs, at a priority at which every other pod preempts it. The demand Lease that it is made
for owns it, so that the cluster deletes it with the Lease, even if the process that created it has died.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.apply import server_side_apply
from airflow_gpu_provider.cluster.demand import DemandLease
from airflow_gpu_provider.cluster.events import PodEvent
from airflow_gpu_provider.cluster.leases import DEMAND_NAMESPACE, LEASES
from airflow_gpu_provider.cluster.nodes import GPU_RESOURCE, ZONE_LABEL
from airflow_gpu_provider.cluster.pods import PLACEHOLDER_LABEL, RUN_LABEL
from airflow_gpu_provider.cluster.rest import call, delete, list_items

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

IMAGE = "registry.k8s.io/pause:3.10"

PRIORITY = "airflow-gpu-provider-placeholder"
PRIORITY_CLASS = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": PRIORITY},
    # The least for which cluster-autoscaler adds nodes: its --expendable-pods-priority-cutoff.
    "value": -10,
    "preemptionPolicy": "Never",
    "globalDefault": False,
    "description": "Pods that hold the place of a training that is about to start; any other pod may take it.",
}

_PODS = f"/api/v1/namespaces/{DEMAND_NAMESPACE}/pods"
_EVENTS = f"/api/v1/namespaces/{DEMAND_NAMESPACE}/events"


def apply_priority_class(api: ApiClient) -> None:
    """Create the placeholders' PriorityClass where it is not there yet."""
    server_side_apply(api, PRIORITY_CLASS)


def create_placeholder(
    api: ApiClient,
    lease: DemandLease,
    *,
    node_selector: Mapping[str, str],
    tolerations: Sequence[Mapping[str, str]],
    gpus: int,
    now: datetime,
) -> str:
    """Create one placeholder for a demand Lease with `warm` set, and return its name; empty where the Lease is gone."""
    try:
        owner = call(api, "get", f"{LEASES}/{lease.key.lease_name}", resource="leases")
    except ObjectNotFound:
        return ""
    container = {
        "name": "placeholder",
        "image": lease.warm,
        "resources": {"limits": {GPU_RESOURCE: str(gpus)}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    manifest = {
        "metadata": {
            "generateName": f"{_prefix(lease)}-",
            "labels": {RUN_LABEL: lease.key.hash, PLACEHOLDER_LABEL: "true"},
            "ownerReferences": [
                {
                    "apiVersion": owner["apiVersion"],
                    "kind": owner["kind"],
                    "name": owner["metadata"]["name"],
                    "uid": owner["metadata"]["uid"],
                }
            ],
        },
        "spec": {
            "priorityClassName": PRIORITY,
            "nodeSelector": dict(node_selector),
            "tolerations": [dict(each) for each in tolerations],
            "containers": [container],
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": max(1, round((lease.until - now).total_seconds())),
            **({"affinity": _in_one_zone(lease)} if lease.gang else {}),
        },
    }
    return str(call(api, "create", _PODS, resource="pods", body=manifest)["metadata"]["name"])


def _in_one_zone(lease: DemandLease) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {RUN_LABEL: lease.key.hash}}, "topologyKey": ZONE_LABEL}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def delete_placeholder(api: ApiClient, name: str) -> None:
    """Delete one placeholder; fine where it is gone."""
    delete(api, f"{_PODS}/{name}", resource="pods")


def list_placeholder_events(api: ApiClient, leases: Sequence[DemandLease]) -> tuple[PodEvent, ...]:
    """Return what happened to the placeholders of these Leases, those that are gone too, oldest first."""
    prefixes = tuple(_prefix(lease) for lease in leases)
    raw = list_items(api, _EVENTS, resource="events", fieldSelector="involvedObject.kind=Pod")
    events = (PodEvent.parse(each) for each in raw)
    return tuple(sorted((e for e in events if e.pod.startswith(prefixes)), key=lambda event: event.at))


def _prefix(lease: DemandLease) -> str:
    return f"placeholder-{lease.key.hash}"

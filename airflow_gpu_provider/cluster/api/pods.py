"""Requests about the pods that matter to a pool: those on its nodes, those that wait for it, and those of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from airflow_gpu_provider.cluster.api.rest import ApiClient, call, count_items, delete, find, list_items, list_pages
from airflow_gpu_provider.cluster.api.shared_lists import Wanted, shared_items
from airflow_gpu_provider.cluster.api.threads import AT_ONCE, batches, in_parallel
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.cluster.model.pool_pod import RUN_LABEL, Pod
from airflow_gpu_provider.cluster.model.uncollected import UNCOLLECTED
from airflow_gpu_provider.errors import GpuError

_PODS = "/api/v1/pods"
_FEW_NODES = 8  # that are asked one by one, all at once
_PODS_FOR_A_REQUEST = 50  # as many, read in pages, cost both sides about as much as one more request
_NODES_BETWEEN_SIGNS_OF_LIFE = 64

_SELECTS_UNBOUND = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
_UNBOUND = Wanted(path=_PODS, resource="pods", own=_SELECTS_UNBOUND, wide=_SELECTS_UNBOUND)

_log = logging.getLogger(__name__)


def list_pool_pods(
    api: ApiClient,
    selector: Mapping[str, str],
    nodes: Iterable[Node],
    *,
    at_once: int = AT_ONCE,
    alive: Callable[[], None] = lambda: None,
    shared: str = "",
) -> tuple[Pod, ...]:
    """Return all pods on these nodes, and the unbound pods that select the pool.

    Where nodes are asked one by one, the unbound pods are read first: a pod that is bound in between is then seen
    twice, not missed. All pages of one list show the same moment.

    Args:
        alive: Called between requests, to renew the caller's lock.
        shared: As in `shared_items`, for the unbound pods.
    """
    names = {node.name for node in nodes}
    if _is_one_list_cheaper(api, names):
        raw = [*_bound_or_unbound(api, names, alive)]
    else:
        raw = [*shared_items(shared, api, _UNBOUND), *_on_each(api, names, at_once, alive)]
    found = {pod.uid: pod for pod in map(Pod.parse, raw) if pod.node or pod.selects(selector)}
    return tuple(sorted(found.values(), key=lambda pod: (pod.created_at, pod.namespace, pod.name)))


def list_pods_on(api: ApiClient, nodes: Iterable[Node], *, at_once: int = AT_ONCE) -> list[Pod]:
    """Return the pods that are bound to these nodes, finished ones too."""
    names = {node.name for node in nodes}
    if _is_one_list_cheaper(api, names):
        return [pod for pod in map(Pod.parse, _bound_or_unbound(api, names)) if pod.node]
    return [Pod.parse(raw) for raw in _on_each(api, names, at_once)]


def _is_one_list_cheaper(api: ApiClient, names: Collection[str]) -> bool:
    """Return True if a list of the cluster's pods costs less than one for each node."""
    if len(names) <= _FEW_NODES:
        return False
    pods = count_items(api, _PODS, resource="pods")
    return pods is not None and pods <= len(names) * _PODS_FOR_A_REQUEST


def _bound_or_unbound(
    api: ApiClient, names: Collection[str], alive: Callable[[], None] = lambda: None
) -> Iterator[dict[str, Any]]:
    """Yield the pods on these nodes, and all that wait for one, from a list of the whole cluster's."""
    for page in list_pages(api, _PODS, resource="pods"):
        for raw in page:
            node = raw["spec"].get("nodeName")
            if node in names if node else raw.get("status", {}).get("phase", "Pending") == "Pending":
                yield raw
        alive()


def _on_each(
    api: ApiClient, names: Iterable[str], at_once: int, alive: Callable[[], None] = lambda: None
) -> Iterator[dict[str, Any]]:
    for some in batches(sorted(names), _NODES_BETWEEN_SIGNS_OF_LIFE):
        for found in in_parallel(lambda name: _list(api, f"spec.nodeName={name}"), some, at_once=at_once):
            yield from found
        alive()


def list_run_pods(api: ApiClient, selector: Mapping[str, str], run: str) -> list[Pod]:
    """Return the pods of a run on this pool, those that are ending too; `run` is the hash of the run's DemandKey."""
    raw = list_items(api, _PODS, resource="pods", labelSelector=f"{RUN_LABEL}={run}")
    return [pod for pod in map(Pod.parse, raw) if pod.selects(selector)]


def delete_pod(api: ApiClient, pod: Pod) -> bool:
    """Delete the pod that was read, and before it the workload that would replace it; False where it is gone."""
    if pod.workload:
        _delete_workload(api, pod)
    return delete(api, f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", resource="pods", uid=pod.uid)


def _delete_workload(api: ApiClient, pod: Pod) -> None:
    """Delete the workload of the pod and of its run, with all its pods; another run's of the same name stays."""
    resource = pod.workload.split("/")[-2]
    found = find(api, f"/{pod.workload}", resource=resource)
    if found and (found["metadata"].get("labels") or {}).get(RUN_LABEL) == pod.run:
        delete(api, f"/{pod.workload}", resource=resource, uid=found["metadata"]["uid"], with_dependents=True)


def _list(api: ApiClient, field_selector: str) -> list[dict[str, Any]]:
    return list_items(api, _PODS, resource="pods", fieldSelector=field_selector)


def mark_collected(api: ApiClient, namespace: str, name: str) -> None:
    """Let the node of a kept pod go: its log and result are read."""
    path, body = f"/api/v1/namespaces/{namespace}/pods/{name}", {"metadata": {"annotations": {UNCOLLECTED: None}}}
    try:
        call(api, "patch", path, resource="pods", body=body)
    except GpuError as error:
        _log.warning("Pod %s holds its node until its collection is given up: %s", name, error)

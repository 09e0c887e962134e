"""Nodes that join without the pool's labels, as those of groups that others own do, and get them from this package."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.api_errors import ObjectChanged
from airflow_gpu_provider.cluster.nodes import Node
from airflow_gpu_provider.cluster.rest import MERGE_PATCH, call, list_items
from airflow_gpu_provider.pools.base import POOL_LABEL, Taint

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_NODES = "/api/v1/nodes"
_TRIES = 5  # a node's status is written every few seconds while it boots, and each write is a conflict


def list_joined(api: ApiClient, pool_name: str, machines: Collection[str]) -> tuple[Node, ...]:
    """Return the nodes of these machines that are not in the pool (yet), by name."""
    found = []
    for raw in list_items(api, _NODES, resource="nodes"):
        node = Node.parse(raw)
        pool = (raw["metadata"].get("labels") or {}).get(POOL_LABEL, "")
        if node.machine in machines and pool != pool_name:
            found.append(replace(node, labelled=False, other_pool=pool))
    return tuple(sorted(found, key=lambda node: node.name))


def label(api: ApiClient, node: Node, labels: Mapping[str, str], taints: Collection[Taint] = ()) -> None:
    """Give the node these labels, and these taints as far as it lacks them.

    Raises:
        ObjectNotFound: The node is gone.
    """
    path = f"{_NODES}/{node.name}"
    for _ in range(_TRIES):
        raw = call(api, "get", path, resource="nodes")
        metadata = {"uid": node.uid, "resourceVersion": raw["metadata"]["resourceVersion"], "labels": dict(labels)}
        there = raw.get("spec", {}).get("taints") or []
        missing = [_as_json(taint) for taint in taints if not _has(there, taint)]
        body = {"metadata": metadata, **({"spec": {"taints": [*there, *missing]}} if missing else {})}
        with suppress(ObjectChanged):
            call(api, "patch", path, resource="nodes", body=body, content_type=MERGE_PATCH)
            return
    raise ObjectChanged(f"Node {node.name} changed each time that it was to be labelled.")


def _has(there: Collection[Mapping[str, str]], taint: Taint) -> bool:
    """Return True if a taint of that key and effect is there: Kubernetes allows one."""
    return any((each["key"], each["effect"]) == (taint.key, taint.effect) for each in there)


def _as_json(taint: Taint) -> dict[str, str]:
    return {"key": taint.key, "effect": taint.effect, **({"value": taint.value} if taint.value else {})}

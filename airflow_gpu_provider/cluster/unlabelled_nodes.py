"""Nodes that join without the pool's labels, as those of external groups do, and get them from this package."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.cluster.nodes import Node, write_node
from airflow_gpu_provider.cluster.rest import call, list_items
from airflow_gpu_provider.pools.base import POOL_LABEL
from airflow_gpu_provider.pools.taints import Taint

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_NODES = "/api/v1/nodes"


def list_unlabelled_nodes(api: ApiClient, pool_name: str, machines: Collection[str]) -> tuple[Node, ...]:
    """Return the nodes of these machines that are not in the pool (yet), by name."""
    found = []
    for raw in list_items(api, _NODES, resource="nodes"):
        node = Node.parse(raw)
        pool = (raw["metadata"].get("labels") or {}).get(POOL_LABEL, "")
        if node.machine in machines and pool != pool_name:
            found.append(replace(node, labelled=False, other_pool=pool))
    return tuple(sorted(found, key=lambda node: node.name))


def label_node(api: ApiClient, node: Node, labels: Mapping[str, str], taints: Collection[Taint] = ()) -> None:
    """Give the node these labels, and these taints as far as it lacks them.

    Raises:
        ObjectNotFound: The node is gone.
    """

    def patch_for(raw: dict[str, Any]) -> dict[str, Any]:
        there = raw.get("spec", {}).get("taints") or []
        missing = [_as_json(taint) for taint in taints if not _has(there, taint)]
        spec = {"spec": {"taints": [*there, *missing]}} if missing else {}
        return {"metadata": {"uid": node.uid, "labels": dict(labels)}, **spec}

    write_node(api, lambda: call(api, "get", f"{_NODES}/{node.name}", resource="nodes"), patch_for)


def _has(there: Collection[Mapping[str, str]], taint: Taint) -> bool:
    """Return True if a taint of that key and effect is there: Kubernetes allows one."""
    return any((each["key"], each["effect"]) == (taint.key, taint.effect) for each in there)


def _as_json(taint: Taint) -> dict[str, str]:
    return {"key": taint.key, "effect": taint.effect, **({"value": taint.value} if taint.value else {})}

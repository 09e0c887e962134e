"""Nodes of groups that others own: they join without the pool's labels, and get them from this package."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.api_errors import ObjectChanged
from airflow_gpu_provider.cluster.nodes import Node, read_node
from airflow_gpu_provider.cluster.rest import MERGE_PATCH, call, list_items
from airflow_gpu_provider.pools.base import POOL_LABEL

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


def label(api: ApiClient, node: Node, labels: Mapping[str, str]) -> None:
    """Give the node these labels.

    Raises:
        ObjectNotFound: The node is gone.
    """
    now = node
    for _ in range(_TRIES):
        metadata = {"uid": node.uid, "resourceVersion": now.resource_version, "labels": dict(labels)}
        try:
            path = f"{_NODES}/{node.name}"
            call(api, "patch", path, resource="nodes", body={"metadata": metadata}, content_type=MERGE_PATCH)
        except ObjectChanged:
            now = read_node(api, node.name)
            continue
        return
    raise ObjectChanged(f"Node {node.name} changed each time that it was to be labelled.")

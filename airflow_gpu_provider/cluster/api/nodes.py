"""Requests about nodes: lists, cordons and labels.

Of the cordons those of this package carry an annotation, and only such a cordon is undone. Nodes of external groups
join without the pool's labels, and get them from this package.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from airflow_gpu_provider.cluster.api.leases import update
from airflow_gpu_provider.cluster.api.rest import ApiClient, call, label_selector, list_items
from airflow_gpu_provider.cluster.api.shared_lists import Wanted, has_labels, shared_items
from airflow_gpu_provider.cluster.model.node import CORDONED_BY, Node
from airflow_gpu_provider.cluster.model.refusals import ObjectNotFound
from airflow_gpu_provider.errors import PermissionDenied
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.pools.values import Taint

_NODES = "/api/v1/nodes"
_FEW = 8  # that are asked for one by one


def list_nodes(api: ApiClient, selector: Mapping[str, str], *, shared: str = "") -> tuple[Node, ...]:
    """Return the nodes with a pool's labels (`GpuPool.node_selector`), by name; `shared` as in `shared_items`."""
    own = label_selector(selector)
    wanted = Wanted(
        path=_NODES,
        resource="nodes",
        own={"labelSelector": own},
        wide={"labelSelector": POOL_LABEL if POOL_LABEL in selector else own},
        is_own=lambda raw: has_labels(raw, selector),
    )
    raw = shared_items(shared, api, wanted)
    return tuple(sorted((Node.parse(item) for item in raw), key=lambda node: node.name))


def cordon(api: ApiClient, node: Node, *, by: str) -> bool:
    """Take the node out of scheduling and sign it; False when somebody else cordoned it first.

    As `uncordon` and `label_node`, it raises ObjectNotFound when the node is gone.
    """

    def write(now: Node) -> bool:
        if not now.cordoned:
            _patch(api, now, unschedulable=True, mark=by)
        return not now.cordoned or now.cordoned_by_us

    return update(lambda: read_node(api, node.name), write, known=node)


def uncordon(api: ApiClient, node: Node) -> bool:
    """Undo our own cordon, and take our mark off; a cordon that is not ours stays, and False says so."""

    def write(now: Node) -> bool:
        if now.cordon_mark:
            _patch(api, now, unschedulable=None, mark=None)
        return bool(now.cordon_mark) or not now.cordoned

    return update(lambda: read_node(api, node.name), write)


def read_nodes(api: ApiClient, names: Collection[str]) -> list[Node]:
    """Return the nodes with these names as they are now, but those that are gone."""
    if len(names) > _FEW:
        raw = list_items(api, _NODES, resource="nodes")
        return [Node.parse(each) for each in raw if each["metadata"]["name"] in names]
    found = []
    for name in names:
        with suppress(ObjectNotFound):
            found.append(read_node(api, name))
    return found


def read_node(api: ApiClient, name: str) -> Node:
    """Return the node with this name as it is now; raises ObjectNotFound when it is gone."""
    return Node.parse(call(api, "get", f"{_NODES}/{name}", resource="nodes"))


def machine_of(api: ApiClient, name: str) -> str:
    """Return the cloud's name for the machine of the node with this name; empty when the node is gone."""
    try:
        return read_node(api, name).machine
    except ObjectNotFound:
        return ""


def instance_type_of(api: ApiClient, name: str) -> str:
    """Return the machine type of the node with this name; empty where it has none, is gone, or may not be read."""
    try:
        return read_node(api, name).instance_type
    except (ObjectNotFound, PermissionDenied):
        return ""


def is_node_there(api: ApiClient, name: str | None) -> bool:
    """Return False if the node with this name has left the cluster, or its kubelet no longer reports."""
    try:
        return name is not None and read_node(api, name).ready
    except ObjectNotFound:
        return False


def write_node(
    api: ApiClient, read: Callable[[], dict[str, Any]], patch_for: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Patch a node as it was read, again where somebody else has written it meanwhile.

    Args:
        patch_for: Returns the merge patch for the node as it was read; a uid in it has to be that node's.

    Raises:
        ObjectNotFound: The node is gone.
    """

    def write(raw: dict[str, Any]) -> None:
        name, patch = raw["metadata"]["name"], patch_for(raw)
        version = {key: raw["metadata"][key] for key in ("uid", "resourceVersion")}
        body = {**patch, "metadata": {**version, **patch["metadata"]}}
        call(api, "patch", f"{_NODES}/{name}", resource="nodes", body=body)

    update(read, write)


def _patch(api: ApiClient, node: Node, *, unschedulable: bool | None, mark: str | None) -> None:
    """Write both fields at once; raises ObjectChanged if the node has changed since it was read."""
    metadata = {"uid": node.uid, "resourceVersion": node.resource_version, "annotations": {CORDONED_BY: mark}}
    body = {"metadata": metadata, "spec": {"unschedulable": unschedulable}}
    call(api, "patch", f"{_NODES}/{node.name}", resource="nodes", body=body)


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
    """Give the node these labels, and these taints as far as it lacks them."""

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

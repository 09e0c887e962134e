"""What an informer watches: collections of objects by label and field, and the key by which feeds ask for theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_gpu_provider.cluster.pod_state import Json
from airflow_gpu_provider.cluster.rest import label_selector
from airflow_gpu_provider.pools.base import POOL_LABEL

NODES = "api/v1/nodes"


@dataclass(frozen=True, kw_only=True)
class Resource:
    """What a watch is of.

    Attributes:
        path: The collection, like "api/v1/nodes".
        label_selector: Only objects with these labels.
        field_selector: Only objects with these fields.
        key: Says which key an object has; a feed asks for one key.
    """

    path: str
    key: Callable[[Json], str]
    label_selector: str = ""
    field_selector: str = ""

    @property
    def params(self) -> dict[str, str]:
        pairs = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in pairs.items() if value}


def pods(namespace: str) -> Resource:
    """The pods that this package placed in a namespace; keyed by name."""
    return Resource(path=f"api/v1/namespaces/{namespace}/pods", key=_name, label_selector=POOL_LABEL)


def pod_events(namespace: str) -> Resource:
    """Events about pods of a namespace; keyed by the pod's name."""
    path = f"api/v1/namespaces/{namespace}/events"
    return Resource(path=path, key=_about, field_selector="involvedObject.kind=Pod")


def pool_nodes(selector: Mapping[str, str]) -> dict[Resource, str]:
    """What to watch for a pool's nodes, by the labels that its pods select: all labelled pools share one watch."""
    if POOL_LABEL in selector:
        return {Resource(path=NODES, key=_pool, label_selector=POOL_LABEL): selector[POOL_LABEL]}
    return {Resource(path=NODES, key=_any, label_selector=label_selector(selector)): ""}


def unlabelled_nodes() -> Resource:
    """The nodes that are in no pool, among them new nodes of external groups until they get their pool's labels."""
    return Resource(path=NODES, key=_any, label_selector=f"!{POOL_LABEL}")


def _name(raw: Json) -> str:
    return str(raw["metadata"]["name"])


def _about(raw: Json) -> str:
    return str((raw.get("involvedObject") or {}).get("name") or "")


def _any(raw: Json) -> str:
    return ""


def _pool(raw: Json) -> str:
    return str((raw["metadata"].get("labels") or {}).get(POOL_LABEL) or "")

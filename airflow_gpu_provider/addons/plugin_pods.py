"""The pods of this package's device plugin for one pool, read once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_gpu_provider.addons.device_plugin import CONTAINER, plugin_labels
from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.cluster.rest import label_selector, list_items

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

    from airflow_gpu_provider.pools import GpuPool


def list_plugin_pods(api: ApiClient, pool: GpuPool, namespace: str = "kube-system") -> dict[str, PodState]:
    """Return them by the node that they run on."""
    selector = label_selector(plugin_labels(pool))
    raw = list_items(api, f"/api/v1/namespaces/{namespace}/pods", resource="pods", labelSelector=selector)
    states = (PodState.parse(each, CONTAINER) for each in raw)
    return {state.node: state for state in states if state.node}

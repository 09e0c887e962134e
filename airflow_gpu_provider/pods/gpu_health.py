"""GpuHealth: which nodes of a pool a new pod has to avoid, and telling others of one more."""

from __future__ import annotations

import logging

from kubernetes.client import ApiClient

from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.clock import ServerClock
from airflow_gpu_provider.cluster.gpu_health import BAD_GPU, mark_bad, why_bad
from airflow_gpu_provider.cluster.rest import call, list_items
from airflow_gpu_provider.errors import PermissionDenied
from airflow_gpu_provider.pools import GpuPool

_NODES = "/api/v1/nodes"
_log = logging.getLogger(__name__)


class GpuHealth:
    """Looks at a pool's nodes. Where that is not permitted it says so, and the pods go on without."""

    def __init__(self, api: ApiClient, pool: GpuPool) -> None:
        self._api = api
        self._pool = pool

    def bad_hosts(self) -> tuple[str, ...]:
        """Return the values of kubernetes.io/hostname of the pool's nodes with a broken GPU, and log why."""
        selector = ",".join(f"{label}={value}" for label, value in self._pool.node_selector.items())
        try:
            nodes = list_items(self._api, _NODES, resource="nodes", labelSelector=selector)
        except PermissionDenied as error:
            _log.warning("Nodes with a broken GPU cannot be avoided: %s", error)
            return ()
        hosts = []
        for node in nodes:
            name = node["metadata"]["name"]
            if why := why_bad(node):
                _log.warning("Node %s is avoided for its GPU: %s", name, why)
                hosts.append((node["metadata"].get("labels") or {}).get("kubernetes.io/hostname", name))
        return tuple(sorted(hosts))

    def of_node(self, name: str | None) -> str:
        """Return why the node's GPUs are not to be trusted; empty where nothing speaks against them."""
        if not name:
            return ""
        try:
            return why_bad(call(self._api, "get", f"{_NODES}/{name}", resource="nodes"))
        except (ObjectNotFound, PermissionDenied) as error:
            _log.debug("Node %s cannot be asked for its GPUs: %s", name, error)
            return ""

    def mark(self, name: str, why: str) -> None:
        """Have the node avoided from now on, by every task."""
        try:
            mark_bad(self._api, name, why, ServerClock(self._api).now())
        except ObjectNotFound:
            _log.info("Node %s with the broken GPU is gone already.", name)
        except PermissionDenied as error:
            _log.warning("Node %s is not avoided by the next try: %s", name, error)
        else:
            _log.warning("Node %s is avoided until it boots again, or its annotation %s is taken off.", name, BAD_GPU)

"""Nodes with a broken GPU: what others say about them in node conditions, and the mark that this package leaves.

The mark is an annotation on the node, so that it is there for every task and goes with the node. It holds for one boot
of the machine: a reset GPU is used again.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.cluster.api_errors import ObjectChanged, ObjectNotFound
from airflow_gpu_provider.cluster.clock import ServerClock, format_time
from airflow_gpu_provider.cluster.rest import MERGE_PATCH, call, list_items
from airflow_gpu_provider.errors import PermissionDenied
from airflow_gpu_provider.pools import GpuPool

if TYPE_CHECKING:
    from kubernetes.client import ApiClient


BAD_GPU = "airflow-gpu-provider/bad-gpu"
"""The annotation on a node with a broken GPU: when that was seen, in which boot, and why. Taking it off forgives."""

_NODES = "/api/v1/nodes"
_log = logging.getLogger(__name__)

# The EKS node monitoring agent says AcceleratedHardwareReady=False. Checks of node-problem-detector's kind say a
# problem by a condition that is True; its name has to tell of trouble, for others say by True that all is well.
_READY = "AcceleratedHardwareReady"
_PROBLEM = re.compile(
    r"(gpu|nvlink|xid).*(unhealthy|missing|error|inactive|lost|bad|fail|fault|problem)", re.IGNORECASE
)


def why_bad(raw: Mapping[str, Any]) -> str:
    """Return why the node's GPUs are not to be trusted, in words; empty where nothing speaks against them."""
    return _by_conditions(raw) or _by_mark(raw)


def mark_bad(api: ApiClient, node_name: str, why: str, now: datetime) -> None:
    """Leave the mark on a node; raises ObjectNotFound where it is gone, ObjectChanged where another has its name."""
    path = f"{_NODES}/{node_name}"
    node = call(api, "get", path, resource="nodes")
    mark = json.dumps({"at": format_time(now), "boot": _boot(node), "why": why[:200]})
    body = {"metadata": {"uid": node["metadata"]["uid"], "annotations": {BAD_GPU: mark}}}
    call(api, "patch", path, resource="nodes", body=body, content_type=MERGE_PATCH)


def _by_conditions(raw: Mapping[str, Any]) -> str:
    for condition in (raw.get("status") or {}).get("conditions") or ():
        kind, is_true = condition["type"], condition.get("status") == "True"
        if (kind == _READY and condition.get("status") == "False") or (is_true and _PROBLEM.search(kind)):
            said = f"{condition.get('reason') or ''}: {condition.get('message') or ''}".strip(": ")
            return f"{kind}={condition['status']}" + (f" ({said})" if said else "")
    return ""


def _by_mark(raw: Mapping[str, Any]) -> str:
    text = (raw["metadata"].get("annotations") or {}).get(BAD_GPU)
    if text is None:
        return ""
    try:
        mark = json.loads(text)
        boot, why = mark["boot"], str(mark["why"])
    except (KeyError, TypeError, ValueError):
        return f"the annotation {BAD_GPU}"  # a person's own
    return why if boot == _boot(raw) else ""


def _boot(raw: Mapping[str, Any]) -> str:
    return str(((raw.get("status") or {}).get("nodeInfo") or {}).get("bootID", ""))


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
            _log.debug("The GPU state of node %s could not be read: %s", name, error)
            return ""

    def mark(self, name: str, why: str) -> None:
        """Have the node avoided from now on, by every task."""
        try:
            mark_bad(self._api, name, why, ServerClock(self._api).now())
        except (ObjectNotFound, ObjectChanged):
            _log.info("Node %s with the broken GPU is gone already.", name)
        except PermissionDenied as error:
            _log.warning("Node %s is not avoided by the next try: %s", name, error)
        else:
            _log.warning("Node %s is avoided until it reboots or its annotation %s is removed.", name, BAD_GPU)

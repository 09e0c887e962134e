"""Nodes with a broken GPU: what others say about them in node conditions, the mark that this package leaves, and what
keeps pods off them.

The mark is an annotation on the node, so that it is there for every task and goes with the node. It holds for one boot
of the machine: a reset GPU is used again.

Pods avoid such a node by a label on it, of the same name: Karpenter brings no node for a pod that excludes hostnames
(`validateAffinity` in its provisioner.go). Where cluster-autoscaler adds the nodes they do exclude hostnames, and the
node gets no label: cluster-autoscaler expects a group's next node to have the labels of one that is there
(`createSanitizedNode` in its node_info_utils.go), but for the hostname, and would add none. GKE Autopilot admits no
pod with either (`autogke-node-affinity-selector-limitation`), so there nothing is avoided.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_gpu_provider.cluster.api_errors import ObjectChanged, ObjectNotFound
from airflow_gpu_provider.cluster.clock import ServerClock, format_time
from airflow_gpu_provider.cluster.node_requirements import Requirement
from airflow_gpu_provider.cluster.rest import ApiClient, call, label_selector, list_items
from airflow_gpu_provider.errors import AdmissionDenied, PermissionDenied
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.untrusted import loads, read

BAD_GPU = "airflow-gpu-provider/bad-gpu"
"""The annotation on a node with a broken GPU: when that was seen, in which boot, and why. Taking it off forgives.

The label of that name, by which pods avoid the node, follows it, and the node's conditions."""

_OURS = "boot-"  # how the label's value begins, unless a person has set it

# The EKS node monitoring agent says AcceleratedHardwareReady=False. Checks of node-problem-detector's kind say a
# problem by a condition that is True; its name has to tell of trouble, for others say by True that all is well.
_READY = "AcceleratedHardwareReady"
_PROBLEM = re.compile(
    r"(gpu|nvlink|xid).*(unhealthy|missing|error|inactive|lost|bad|fail|fault|problem)", re.IGNORECASE
)


def why_bad(raw: Mapping[str, Any]) -> str:
    """Return why the node's GPUs are not to be trusted, in words; empty where nothing speaks against them."""
    return _by_conditions(raw) or _by_mark(raw) or _by_label(raw)


def _by_conditions(raw: Mapping[str, Any]) -> str:
    for condition in (raw.get("status") or {}).get("conditions") or ():
        kind, is_true = condition["type"], condition.get("status") == "True"
        if (kind == _READY and condition.get("status") == "False") or (is_true and _PROBLEM.search(kind)):
            reason = f"{condition.get('reason') or ''}: {condition.get('message') or ''}".strip(": ")
            return f"{kind}={condition['status']}" + (f" ({reason})" if reason else "")
    return ""


def _by_mark(raw: Mapping[str, Any]) -> str:
    text = (raw["metadata"].get("annotations") or {}).get(BAD_GPU)
    if text is None:
        return ""
    try:
        mark = read(text, loads)
        boot, why = mark["boot"], str(mark["why"])
    except (KeyError, TypeError, ValueError):
        return f"the annotation {BAD_GPU}"  # a person's own
    return why if boot == _boot_of(raw) else ""


def _by_label(raw: Mapping[str, Any]) -> str:
    label = _label_of(raw)
    return "" if label is None or label.startswith(_OURS) else f"the label {BAD_GPU}"  # a person's own


def _label_of(raw: Mapping[str, Any]) -> str | None:
    return (raw["metadata"].get("labels") or {}).get(BAD_GPU)


def _boot_of(raw: Mapping[str, Any]) -> str:
    return str(((raw.get("status") or {}).get("nodeInfo") or {}).get("bootID", ""))


_NODES = "/api/v1/nodes"
_HOSTNAME = "kubernetes.io/hostname"
_log = logging.getLogger(__name__)


def _patch(api: ApiClient, node: Mapping[str, Any], **metadata: Mapping[str, str | None]) -> None:
    """Write a node's labels or annotations; raises ObjectChanged where another one has its name."""
    body = {"metadata": {"uid": node["metadata"]["uid"], **metadata}}
    path = f"{_NODES}/{node['metadata']['name']}"
    call(api, "patch", path, resource="nodes", body=body)


class GpuHealth:
    """Looks at a pool's nodes. Where that is not permitted it says so, and the pods go on without."""

    def __init__(self, api: ApiClient, pool: GpuPool) -> None:
        self._api = api
        self._pool = pool

    def avoidance(self) -> Requirement | None:
        """Return what keeps a new pod off the pool's nodes with a broken GPU; None where there is none. Log why.

        Such a node is labelled, unless it has the label: its conditions may be all that speaks against it, or the mark
        may be a person's. A label that nothing speaks for any more is taken off.
        """
        try:
            nodes = list_items(
                self._api, _NODES, resource="nodes", labelSelector=label_selector(self._pool.node_selector)
            )
        except PermissionDenied as error:
            _log.warning("Nodes with a broken GPU cannot be avoided: %s", error)
            return None
        bad = [node for node in nodes if why_bad(node)]
        if bad and not self._can_be_avoided:
            _log.warning("GKE Autopilot lets no pod avoid a node, and this pod may run on %s.", _in_words(bad))
            return None
        for node in bad:
            _log.warning("Node %s is avoided for its GPU: %s", node["metadata"]["name"], why_bad(node))
        if not self._labels:
            return _not_on(bad) if bad else None
        for node in nodes:
            self._keep_label(node, is_bad=node in bad)
        return {"key": BAD_GPU, "operator": "DoesNotExist"} if bad else None

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
        if not self._can_be_avoided:
            _log.warning("GKE Autopilot lets no pod avoid a node, and the next try may run on %s again.", name)
            return
        try:
            self._mark(name, why)
        except (ObjectNotFound, ObjectChanged):
            _log.info("Node %s with the broken GPU is gone already.", name)
        except (PermissionDenied, AdmissionDenied) as error:
            _log.warning("Node %s is not avoided by the next try: %s", name, error)
        else:
            _log.warning("Node %s is avoided until it reboots or its annotation %s is removed.", name, BAD_GPU)

    @property
    def _can_be_avoided(self) -> bool:
        return getattr(self._pool, "provisioner", None) != "autopilot"

    @property
    def _labels(self) -> bool:
        """Whether nodes are avoided by a label on them."""
        return not self._pool.is_grown_by_cluster_autoscaler

    def _mark(self, name: str, why: str) -> None:
        node = call(self._api, "get", f"{_NODES}/{name}", resource="nodes")
        mark = {"at": format_time(ServerClock(self._api).now()), "boot": _boot_of(node), "why": why[:200]}
        metadata = {"annotations": {BAD_GPU: json.dumps(mark)}}
        if self._labels:
            metadata["labels"] = {BAD_GPU: _OURS + _boot_of(node)}
        _patch(self._api, node, **metadata)

    def _keep_label(self, node: Mapping[str, Any], *, is_bad: bool) -> None:
        """Label a node that is bad, and take our label off one that is not."""
        has_label = _label_of(node) is not None
        if has_label == is_bad:
            return
        name = node["metadata"]["name"]
        try:
            _patch(self._api, node, labels={BAD_GPU: _OURS + _boot_of(node) if is_bad else None})
        except (ObjectNotFound, ObjectChanged):
            _log.info("Node %s is gone already.", name)
        except (PermissionDenied, AdmissionDenied) as error:
            _log.warning("The label %s of node %s could not be written: %s", BAD_GPU, name, error)


def _not_on(nodes: Sequence[Mapping[str, Any]]) -> Requirement:
    hosts = [(node["metadata"].get("labels") or {}).get(_HOSTNAME, node["metadata"]["name"]) for node in nodes]
    return {"key": _HOSTNAME, "operator": "NotIn", "values": sorted(hosts)}


def _in_words(nodes: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(f"node {node['metadata']['name']}, whose GPU is broken ({why_bad(node)})" for node in nodes)

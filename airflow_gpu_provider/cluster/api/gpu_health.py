"""Keeps pods off nodes whose GPUs something speaks against (gpu_evidence), and writes down a training's failure there.

Pods avoid such a node by a label on it: Karpenter brings no node for a pod that excludes hostnames
(`validateAffinity` in its provisioner.go). Where cluster-autoscaler adds the nodes they do exclude hostnames, and the
node gets no label: cluster-autoscaler expects a group's next node to have the labels of one that is there
(`createSanitizedNode` in its node_info_utils.go), but for the hostname, and would add none. GKE Autopilot admits no
pod with either (`autogke-node-affinity-selector-limitation`), so there nothing is avoided.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_gpu_provider.cluster.api.clock import ServerClock
from airflow_gpu_provider.cluster.api.rest import ApiClient, call, label_selector, list_items
from airflow_gpu_provider.cluster.model.gpu_evidence import (
    ASKED,
    BAD_GPU,
    HOSTNAME,
    Evidence,
    Witness,
    accused,
    doubt,
    label_for,
    labels_of,
    why_bad,
)
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.cluster.model.node_requirements import Requirement
from airflow_gpu_provider.cluster.model.refusals import ObjectChanged, ObjectNotFound
from airflow_gpu_provider.errors import AdmissionDenied, BadGpu, GpuError, PermissionDenied
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey

_NODES = "/api/v1/nodes"
_WRITES = 5
"""How often a failure is written again where something else has changed the node meanwhile."""

_log = logging.getLogger(__name__)

_Raw = Mapping[str, Any]


def _patch(api: ApiClient, node: _Raw, **metadata: Any) -> None:
    """Write a node's labels or annotations; raises ObjectChanged where another one has its name."""
    body = {"metadata": {"uid": node["metadata"]["uid"], **metadata}}
    path = f"{_NODES}/{node['metadata']['name']}"
    call(api, "patch", path, resource="nodes", body=body)


class GpuHealth:
    """Looks at a pool's nodes. Where that is not permitted it says so, and the pods go on without."""

    def __init__(self, api: ApiClient, pool: GpuPool) -> None:
        self._api = api
        self._pool = pool

    def avoidance(self, key: DemandKey, *, gpus: int = 0, nodes: int = 1) -> tuple[Requirement, ...]:
        """Return what keeps a run's new pods off nodes with a broken GPU; nothing where there is none. Log why.

        Nodes on which only pods of its own DAG have failed are used again where no others are left: in a pool whose
        nodes are given, the pods would wait for none. Labels follow what speaks against a node; one that nothing speaks
        for any more is taken off.

        Args:
            gpus: For each pod; 0 if unknown.
            nodes: How many pods need a node each.
        """
        try:
            there = list_items(
                self._api, _NODES, resource="nodes", labelSelector=label_selector(self._pool.node_selector)
            )
        except PermissionDenied as error:
            _log.warning("Nodes with a broken GPU cannot be avoided: %s", error)
            return ()
        against = {node["metadata"]["name"]: why for node in there if (why := _why_avoided(node, key))}
        if against and not self._pool.lets_pods_avoid_nodes:
            _log.warning(
                "Pods of pool %s cannot avoid a node; this one may run on %s.", self._pool.name, _in_words(against)
            )
            return ()
        if self._labels:
            for node in there:
                self._keep_labels(node)
        bad = [node for node in there if why_bad(node)]
        doubted = [node for node in there if node["metadata"]["name"] in against and node not in bad]
        if doubted and self._needs(doubted, there, against, gpus=gpus, nodes=nodes):
            _log.warning("Pods of %s do not avoid nodes that no others replace: %s.", key.dag_id, _in_words(against))
            doubted = []
        for node in (*bad, *doubted):
            name = node["metadata"]["name"]
            _log.warning("Node %s is avoided: %s", name, against[name])
        if not self._labels:
            return (_not_on((*bad, *doubted)),) if bad or doubted else ()
        labels = [BAD_GPU] * bool(bad) + [label_for(key.writer)] * bool(doubted)
        return tuple({"key": label, "operator": "DoesNotExist"} for label in labels)

    def of_node(self, name: str | None) -> str:
        """Return why no pod is to use the node's GPUs; empty where nothing speaks against them for all pods."""
        if not name:
            return ""
        try:
            return why_bad(call(self._api, "get", f"{_NODES}/{name}", resource="nodes"))
        except (ObjectNotFound, PermissionDenied) as error:
            _log.debug("The GPU state of node %s could not be read: %s", name, error)
            return ""

    def take_end(self, error: GpuError | None, key: DemandKey) -> None:
        """Write the end of a run's pod down on its node if it is a BadGpu: the DAG's pods avoid the node from now on.

        With a second witness all pods do. One that asked for another node (ASKED) is written down as well.
        """
        is_request = error is not None and error.details.get(ASKED) is True
        if error is None or not (isinstance(error, BadGpu) or is_request):
            return
        name = str(error.details.get("node") or "")
        if not name:
            return
        if not self._pool.lets_pods_avoid_nodes:
            _log.warning("Pods of pool %s cannot avoid a node; the next try may run on %s.", self._pool.name, name)
            return
        try:
            evidence = self._accuse(name, key, error.what, is_request=is_request)
        except (ObjectNotFound, ObjectChanged):
            _log.info("Node %s is gone already, or changes too often.", name)
        except (PermissionDenied, AdmissionDenied) as error:
            _log.warning("Node %s is not avoided by the next try: %s", name, error)
        else:
            whose = f"pods of {key.dag_id}" if evidence and not evidence.counts_for_all else "all pods"
            until = "until it reboots or its annotation" if evidence else "until its annotation or label"
            _log.warning("Node %s is avoided by %s %s %s is removed.", name, whose, until, BAD_GPU)

    @property
    def _labels(self) -> bool:
        """Whether nodes are avoided by a label on them."""
        return not self._pool.is_grown_by_cluster_autoscaler

    def _needs(self, doubted: Iterable[_Raw], there: Iterable[_Raw], against: Mapping[str, str], **asked: int) -> bool:
        """Return True if the pods can only run on the doubted nodes: the pool gets no others."""
        if self._pool.given_nodes is None:
            return False
        others = [Node.parse(dict(node)) for node in there if node["metadata"]["name"] not in against]
        return sum(node.usable and node.gpus >= asked["gpus"] for node in others) < asked["nodes"]

    def _accuse(self, name: str, key: DemandKey, what: str, *, is_request: bool) -> Evidence | None:
        """Write it, whatever others write at the same time; return the evidence, None if a person has marked it."""
        now = ServerClock(self._api).now()
        witness = Witness.of_failure(key.writer, key.run_id, now, what, is_request=is_request)
        for write in range(1, _WRITES + 1):
            node = call(self._api, "get", f"{_NODES}/{name}", resource="nodes")
            evidence = accused(node, witness)
            if evidence is None:
                return None
            meta = node["metadata"]
            annotations = {**(meta.get("annotations") or {}), BAD_GPU: evidence.dump()}
            after = {**node, "metadata": {**meta, "annotations": annotations}}
            labels = labels_of(after) if self._labels else {}
            version = meta.get("resourceVersion")
            try:
                _patch(
                    self._api, node, resourceVersion=version, annotations={BAD_GPU: annotations[BAD_GPU]}, labels=labels
                )
            except ObjectChanged:
                if write == _WRITES:
                    raise
            else:
                break
        return evidence

    def _keep_labels(self, node: _Raw) -> None:
        """Have a node's labels follow what speaks against its GPUs."""
        changes = labels_of(node)
        if not changes:
            return
        name = node["metadata"]["name"]
        try:
            _patch(self._api, node, labels=changes)
        except (ObjectNotFound, ObjectChanged):
            _log.info("Node %s is gone already.", name)
        except (PermissionDenied, AdmissionDenied) as error:
            _log.warning("The label %s of node %s could not be written: %s", ", ".join(changes), name, error)


def _why_avoided(node: _Raw, key: DemandKey) -> str:
    if why := why_bad(node):
        return why
    one = doubt(node)
    return one.in_words if one is not None and one.by == key.writer else ""


def _not_on(nodes: Iterable[_Raw]) -> Requirement:
    hosts = [(node["metadata"].get("labels") or {}).get(HOSTNAME, node["metadata"]["name"]) for node in nodes]
    return {"key": HOSTNAME, "operator": "NotIn", "values": sorted(hosts)}


def _in_words(against: Mapping[str, str]) -> str:
    return "; ".join(f"node {name} ({why})" for name, why in against.items())

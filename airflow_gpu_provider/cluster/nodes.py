"""The pool's nodes as small records, and cordons: ours carry an annotation, and only such a cordon is undone.

Those of external groups join without the pool's labels, and get them from this package.
Which node has a broken GPU, its conditions, its mark and its label tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.clock import parse_time
from airflow_gpu_provider.cluster.leases import update
from airflow_gpu_provider.cluster.node_image import NodeImage, system_of
from airflow_gpu_provider.cluster.rest import MERGE_PATCH, call, label_selector, list_items
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.pools.values import Taint

if TYPE_CHECKING:
    from kubernetes.client import ApiClient


BAD_GPU = "airflow-gpu-provider/bad-gpu"
"""The annotation on a node with a broken GPU: when that was seen, in which boot, and why. Taking it off forgives.

The label of that name, by which pods avoid the node, follows it, and the node's conditions."""

OURS = "boot-"  # how the label's value begins, unless a person has set it

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
        mark = json.loads(text)
        boot, why = mark["boot"], str(mark["why"])
    except (KeyError, TypeError, ValueError):
        return f"the annotation {BAD_GPU}"  # a person's own
    return why if boot == boot_of(raw) else ""


def _by_label(raw: Mapping[str, Any]) -> str:
    label = label_of(raw)
    return "" if label is None or label.startswith(OURS) else f"the label {BAD_GPU}"  # a person's own


def label_of(raw: Mapping[str, Any]) -> str | None:
    return (raw["metadata"].get("labels") or {}).get(BAD_GPU)


def boot_of(raw: Mapping[str, Any]) -> str:
    return str(((raw.get("status") or {}).get("nodeInfo") or {}).get("bootID", ""))


CORDONED_BY = "airflow-gpu-provider/cordoned-by"
"""The annotation on a node that this package cordoned: who did it, and when."""

DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
"""Karpenter's annotation on a node or a pod."""

ZONE_LABEL = "topology.kubernetes.io/zone"
INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
AUTOSCALER_TAINT = "ToBeDeletedByClusterAutoscaler"

# Taints of those who take nodes away: aws-node-termination-handler, GKE, Karpenter, cloud-controller-managers.
_LEAVING = {
    "aws-node-termination-handler/spot-itn": "spot interruption notice",
    "aws-node-termination-handler/rebalance-recommendation": "spot rebalance recommendation",
    "aws-node-termination-handler/scheduled-maintenance": "scheduled maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination": "its Auto Scaling group ends it",
    "cloud.google.com/impending-node-termination": "Google Cloud preempts or ends it",
    "karpenter.sh/disrupted": "Karpenter disrupts it",
    "node.cloudprovider.kubernetes.io/shutdown": "its machine is shut down",
    AUTOSCALER_TAINT: "cluster-autoscaler removes it",
}

_NODES = "/api/v1/nodes"
_FEW = 8  # that are asked for one by one


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of a pool.

    Attributes:
        machine: The last part of its providerID: the cloud's name for the machine. Where it is empty, as on bare
            metal, the node's name.
        ready_changed_at: When its Ready condition last changed, or the node was created.
        gpus: Allocatable nvidia.com/gpu.
        gpu_capacity: Those that are unhealthy included.
        labels: All that it carries.
        allocatable: What pods can have of it, as the kubelet says it: resource names with quantities.
        cordoned: spec.unschedulable, set by this package or externally.
        cordon_mark: It carries our annotation, cordoned or not.
        cordoned_by: What that says: who cordoned it, and when.
        autoscaler_deleting: cluster-autoscaler is about to remove it.
        leaving: Why it is about to be removed, in words; empty where nothing says so.
        taints: Those that keep pods off it which do not tolerate them.
        do_not_disrupt: It carries the annotation by which Karpenter removes it for no reason of its own.
        not_ready_reason: The Ready condition's own words; empty when it is ready.
        bad_gpu: Why its GPUs are not to be trusted; empty when nothing speaks against them.
        system: What its operating system calls itself.
        labelled: It carries the labels that the pool's pods select. One that joins without gets them.
        other_pool: The pool that it belongs to, where that is another one.
    """

    name: str
    uid: str = ""
    machine: str
    ready: bool
    ready_changed_at: datetime | None = None
    gpus: int = 0
    gpu_capacity: int = 0
    labels: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)
    allocatable: Mapping[str, str] = field(default_factory=dict, hash=False)
    cordoned: bool = False
    cordon_mark: bool = False
    cordoned_by: str = ""
    autoscaler_deleting: bool = False
    leaving: str = ""
    taints: tuple[Taint, ...] = ()
    do_not_disrupt: bool = False
    zone: str = ""
    instance_type: str = ""
    created_at: datetime
    not_ready_reason: str = ""
    bad_gpu: str = ""
    resource_version: str = ""
    system: str = ""
    labelled: bool = True
    other_pool: str = ""

    @property
    def cordoned_by_us(self) -> bool:
        """Whether the cordon is this package's."""
        return self.cordoned and self.cordon_mark

    @property
    def image(self) -> NodeImage:
        """What its image brings for its GPUs."""
        return NodeImage.of(self.system, self.labels)

    @property
    def usable(self) -> bool:
        """Whether new pods can run there. Its machine has to be looked at as well.

        Not on a node that is about to be removed: who takes it away has tainted it, or drains it.
        """
        is_open = not self.cordoned and not self.autoscaler_deleting and not self.leaving
        return self.ready and self.labelled and is_open and not self.bad_gpu

    @property
    def offers_gpus(self) -> bool:
        """Whether new pods can have its GPUs."""
        return self.usable and self.gpus > 0

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Self:
        """Read a node as the API server sends it."""
        meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
        labels = meta.get("labels") or {}
        created_at = datetime.fromisoformat(meta["creationTimestamp"])
        conditions = {c["type"]: c for c in status.get("conditions") or ()}
        ready = conditions.get("Ready", {})
        is_ready = ready.get("status") == "True"
        words = ready.get("message") or ready.get("reason") or "the kubelet has not reported yet"
        return cls(
            name=meta["name"],
            uid=meta.get("uid", ""),
            machine=(spec.get("providerID") or "").rpartition("/")[2] or meta["name"],
            ready=is_ready,
            ready_changed_at=parse_time(ready.get("lastTransitionTime")) or created_at,
            gpus=int((status.get("allocatable") or {}).get(GPU_RESOURCE, 0)),
            gpu_capacity=int((status.get("capacity") or {}).get(GPU_RESOURCE, 0)),
            labels=labels,
            allocatable=status.get("allocatable") or {},
            cordoned=bool(spec.get("unschedulable")),
            cordon_mark=CORDONED_BY in (meta.get("annotations") or {}),
            cordoned_by=(meta.get("annotations") or {}).get(CORDONED_BY, ""),
            autoscaler_deleting=any(t["key"] == AUTOSCALER_TAINT for t in spec.get("taints") or ()),
            do_not_disrupt=(meta.get("annotations") or {}).get(DO_NOT_DISRUPT) == "true",
            leaving=next((_LEAVING[t["key"]] for t in spec.get("taints") or () if t["key"] in _LEAVING), ""),
            taints=tuple(
                Taint.of_json(each) for each in spec.get("taints") or () if each["effect"] != "PreferNoSchedule"
            ),
            zone=labels.get(ZONE_LABEL, ""),
            instance_type=labels.get(INSTANCE_TYPE_LABEL, ""),
            created_at=created_at,
            not_ready_reason="" if is_ready else words,
            bad_gpu=why_bad(raw),
            system=system_of(raw),
            resource_version=meta.get("resourceVersion", ""),
        )


def list_nodes(api: ApiClient, selector: Mapping[str, str]) -> tuple[Node, ...]:
    """Return the nodes with a pool's labels (`GpuPool.node_selector`), by name."""
    raw = list_items(api, _NODES, resource="nodes", labelSelector=label_selector(selector))
    return tuple(sorted((Node.parse(item) for item in raw), key=lambda node: node.name))


def cordon(api: ApiClient, node: Node, *, by: str) -> bool:
    """Take the node out of scheduling and sign it; False when somebody else cordoned it first.

    Raises:
        ObjectNotFound: The node is gone.
    """

    def write(now: Node) -> bool:
        if not now.cordoned:
            _patch(api, now, unschedulable=True, mark=by)
        return not now.cordoned or now.cordoned_by_us

    return update(lambda: read_node(api, node.name), write, known=node)


def uncordon(api: ApiClient, node: Node) -> bool:
    """Undo our own cordon, and take our mark off; a cordon that is not ours stays, and False says so.

    Raises:
        ObjectNotFound: The node is gone.
    """

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
        api: The cluster.
        read: Returns the node as it is now.
        patch_for: Returns the merge patch for the node as it was read; a uid in it has to be that node's.

    Raises:
        ObjectNotFound: The node is gone.
    """

    def write(raw: dict[str, Any]) -> None:
        name, patch = raw["metadata"]["name"], patch_for(raw)
        version = {key: raw["metadata"][key] for key in ("uid", "resourceVersion")}
        body = {**patch, "metadata": {**version, **patch["metadata"]}}
        call(api, "patch", f"{_NODES}/{name}", resource="nodes", body=body, content_type=MERGE_PATCH)

    update(read, write)


def _patch(api: ApiClient, node: Node, *, unschedulable: bool | None, mark: str | None) -> None:
    """Write both fields at once; raises ObjectChanged if the node has changed since it was read."""
    metadata = {"uid": node.uid, "resourceVersion": node.resource_version, "annotations": {CORDONED_BY: mark}}
    body = {"metadata": metadata, "spec": {"unschedulable": unschedulable}}
    call(api, "patch", f"{_NODES}/{node.name}", resource="nodes", body=body, content_type=MERGE_PATCH)


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

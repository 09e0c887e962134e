"""Node: a node of a pool as a small record, with its image and its taints. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from airflow_gpu_provider.cluster.model.devices import offered
from airflow_gpu_provider.cluster.model.gpu_evidence import Witness, doubt, why_bad
from airflow_gpu_provider.pools.values import Taint
from airflow_gpu_provider.times import parse_time
from airflow_gpu_provider.untrusted import plain

_DISCOVERED = "nvidia.com/cuda.driver-version.full"
_DISCOVERED_BEFORE = ("nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.minor", "nvidia.com/cuda.driver.rev")
_OPERATORS_DRIVER = "nvidia.com/gpu.deploy.driver"
_GKES_DRIVER = "cloud.google.com/gke-gpu-driver-version"
_ON_GKE = "cloud.google.com/gke-nodepool"


@dataclass(frozen=True, kw_only=True)
class NodeImage:
    """What a node's image brings for its GPUs, told from the Node object.

    A kubelet reports what its operating system calls itself (Node v1: status.nodeInfo.osImage), clouds and NVIDIA's
    add-ons set labels:

    - Bottlerocket says its variant, "Bottlerocket OS 1.50.0 (aws-k8s-1.36-nvidia)"; those for NVIDIA have driver and
      plugin (bottlerocket-os/bottlerocket, QUICKSTART-EKS.md). So do EKS Auto Mode's, "Bottlerocket (EKS Auto,
      Nvidia)".
    - Amazon Linux says its version alone: EKS's images with NVIDIA's driver and those without look the same.
    - GKE installs the driver where the label cloud.google.com/gke-gpu-driver-version says "default" or "latest" (GKE's
      page "Run GPUs in GKE Standard node pools"); else a DaemonSet has to, on Container-Optimized OS and on Ubuntu.
    - NVIDIA's GPU Operator labels the nodes to which it brings the driver (nvidia.com/gpu.deploy.driver), and GPU
      feature discovery says which one it found (nvidia.com/cuda.driver-version.full, nvidia.com/cuda.driver.* before
      0.15).

    Attributes:
        system: What the operating system calls itself; empty where the kubelet has not said.
        driver: Who brings NVIDIA's driver, in words; empty where nobody does, or nothing says.
        fix: What brings the driver to a node with this image; empty where somebody does already.
    """

    system: str = ""
    driver: str = ""
    has_plugin: bool = False
    fix: str = "Choose a node image that brings NVIDIA's driver, or install NVIDIA's GPU Operator."

    @classmethod
    def parse(cls, node: Mapping[str, Any]) -> Self:
        return cls.of(system_of(node), node["metadata"].get("labels") or {})

    @classmethod
    def of(cls, system: str, labels: Mapping[str, str]) -> Self:
        """Tell it from what the operating system calls itself, and from the node's labels."""
        is_bottlerocket = system.startswith("Bottlerocket")
        has_plugin = is_bottlerocket and "nvidia" in system.lower()
        driver = _discovered(labels) or _brought(labels) or ("its image" if has_plugin else "")
        return cls(system=system, driver=driver, has_plugin=has_plugin, fix="" if driver else _fix(system, labels))

    def __str__(self) -> str:
        return self.system or "an unknown image"


def system_of(node: Mapping[str, Any]) -> str:
    """Return what a node's operating system calls itself; empty where its kubelet has not reported yet."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(info.get("osImage") or "")


def _discovered(labels: Mapping[str, str]) -> str:
    parts = [labels[key] for key in _DISCOVERED_BEFORE if labels.get(key)]
    version = labels.get(_DISCOVERED) or ".".join(parts)
    return f"driver {version}, as feature discovery found" if version else ""


def _brought(labels: Mapping[str, str]) -> str:
    if labels.get(_GKES_DRIVER) in ("default", "latest"):
        return f"GKE, the {labels[_GKES_DRIVER]} version"
    return "NVIDIA's GPU Operator" if labels.get(_OPERATORS_DRIVER) == "true" else ""


def _fix(system: str, labels: Mapping[str, str]) -> str:
    if _ON_GKE in labels:
        return 'Let GKE install NVIDIA\'s driver (driver="default"), or a DaemonSet (driver="daemonset").'
    if system.startswith("Bottlerocket"):
        return "Choose Bottlerocket's variant for NVIDIA, like ami_type BOTTLEROCKET_x86_64_NVIDIA."
    if system.startswith("Amazon Linux"):
        return "Choose EKS's image with NVIDIA's driver, like ami_type AL2023_x86_64_NVIDIA."
    if system.startswith("Ubuntu"):
        return "Install NVIDIA's GPU Operator: Ubuntu's images for EKS have no driver."
    return NodeImage.fix


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


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of a pool.

    Attributes:
        machine: The last part of its providerID: the cloud's name for the machine. Where it is empty, as on bare
            metal, the node's name.
        ready_changed_at: When its Ready condition last changed, or the node was created.
        gpus: Allocatable nvidia.com/gpu.
        gpu_capacity: Those that are unhealthy included.
        allocatable: What pods can have of it, as the kubelet says it: resource names with quantities.
        cordoned: spec.unschedulable, set by this package or externally.
        cordon_mark: It carries our annotation, cordoned or not.
        cordoned_by: What that says: who cordoned it, and when.
        autoscaler_deleting: cluster-autoscaler is about to remove it.
        leaving: Why it is about to be removed, in words; empty where nothing says so.
        taints: Those that keep pods off it which do not tolerate them.
        do_not_disrupt: It carries the annotation by which Karpenter removes it for no reason of its own.
        not_ready_reason: The Ready condition's own words; empty when it is ready.
        bad_gpu: Why no pod is to use its GPUs; empty when nothing speaks against them for all pods.
        doubt: The one DAG whose pods alone are to avoid it for its GPUs, with its failure; None for none.
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
    doubt: Witness | None = None
    resource_version: str = ""
    system: str = ""
    labelled: bool = True
    other_pool: str = ""

    @property
    def cordoned_by_us(self) -> bool:
        return self.cordoned and self.cordon_mark

    @property
    def image(self) -> NodeImage:
        return NodeImage.of(self.system, self.labels)

    @property
    def usable(self) -> bool:
        """Whether new pods can run there. Its machine has to be looked at as well.

        Not on a node that is about to be removed: who takes it away has tainted it, or drains it.
        """
        is_open = not self.cordoned and not self.autoscaler_deleting and not self.leaving
        return self.ready and self.labelled and is_open and not self.bad_gpu

    def as_seen_by(self, dag: str) -> Self:
        """Return it with what keeps only the pods of this DAG, "<installation>/<dag>", off it as its `bad_gpu`."""
        if self.doubt is None or self.doubt.by != dag:
            return self
        return replace(self, bad_gpu=self.doubt.in_words)

    @property
    def offers_gpus(self) -> bool:
        return self.usable and self.gpus > 0

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Self:
        meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
        labels = meta.get("labels") or {}
        created_at = datetime.fromisoformat(meta["creationTimestamp"])
        conditions = {c["type"]: c for c in status.get("conditions") or ()}
        ready = conditions.get("Ready", {})
        is_ready = ready.get("status") == "True"
        gpus = offered(raw)
        words = plain(ready.get("message") or ready.get("reason") or "the kubelet has not reported yet")
        return cls(
            name=meta["name"],
            uid=meta.get("uid", ""),
            machine=(spec.get("providerID") or "").rpartition("/")[2] or meta["name"],
            ready=is_ready,
            ready_changed_at=parse_time(ready.get("lastTransitionTime")) or created_at,
            gpus=gpus.allocatable,
            gpu_capacity=gpus.capacity,
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
            doubt=doubt(raw),
            system=system_of(raw),
            resource_version=meta.get("resourceVersion", ""),
        )

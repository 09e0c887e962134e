"""KubernetesGpuPool: external GPU nodes in any Kubernetes cluster; this package never creates or removes a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from airflow_gpu_provider.accelerators import GpusOfMachine
from airflow_gpu_provider.pools.allowed import Allowed
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL, GpuPool
from airflow_gpu_provider.pools.on_nodes import NodesToCome
from airflow_gpu_provider.pools.values import are_labels, as_whole, is_dns_subdomain, is_template

COMPUTE_CLASS = "compute-class"
"""The provisioner of a pool whose nodes GKE adds by a ComputeClass."""

COMPUTE_CLASS_LABEL = "cloud.google.com/compute-class"
"""What pods select, and what GKE labels and taints the nodes of a class with; the value is the class's name."""

_NODE_POOLS = (("list", "karpenter.sh", "nodepools"), ("list", "karpenter.sh", "nodeclaims"))
_OF_NODE_POOLS = (
    "Allow its NodePool more: other types, zones or capacity types in its requirements, higher limits;"
    " or add a NodePool with the same labels"
)


@dataclass(frozen=True, kw_only=True)
class Provisioner:
    """What adds and removes nodes by its own configuration.

    Attributes:
        name: Its name, for people.
        how_to_widen: GpuPool's.
        brings_plugin: Whether its nodes come with driver and device plugin.
        reads: GpuPool's `reads_of_provisioner`.
    """

    name: str
    how_to_widen: str
    brings_plugin: bool = False
    reads: tuple[tuple[str, str, str], ...] = ()


PROVISIONERS: Mapping[str, Provisioner] = {
    "karpenter": Provisioner(
        name="Karpenter",
        how_to_widen=_OF_NODE_POOLS,
        reads=(*_NODE_POOLS, ("get", "karpenter.k8s.aws", "ec2nodeclasses")),
    ),
    "auto-mode": Provisioner(name="EKS Auto Mode", how_to_widen=_OF_NODE_POOLS, brings_plugin=True, reads=_NODE_POOLS),
    "autopilot": Provisioner(
        name="GKE Autopilot",
        how_to_widen="Select GPUs that more machines have, or another zone or capacity, by node_selector_labels",
        brings_plugin=True,
    ),
    COMPUTE_CLASS: Provisioner(
        name="GKE",
        how_to_widen="Give its ComputeClass more priorities: other machine types, zones, reservations or spot",
        brings_plugin=True,
        reads=(("get", "cloud.google.com", "computeclasses"),),
    ),
    "cluster-autoscaler": Provisioner(
        name="cluster-autoscaler",
        how_to_widen="Add groups to cluster-autoscaler whose nodes have these labels, or a higher maximum size",
    ),
}
_NO_EXTENDED_RUN_TIME = ("cloud.google.com/gke-spot", COMPUTE_CLASS_LABEL)
_MOST_NODES = 5000  # what Kubernetes supports in one cluster


@dataclass(frozen=True, kw_only=True, eq=True)
class KubernetesGpuPool(GpuPool):
    """GPU nodes that are in a cluster already, or that a provisioner adds when pods need them.

    Without `provisioner`: bare metal, or externally managed machines. EnsureGpuPoolOperator labels and taints the
    nodes and waits until they are Ready. ScaleDownSensor is done when the run's pods are gone; the nodes stay.

    With it: EnsureGpuPoolOperator checks that the provisioner is there and could add such nodes; they are added when
    pods select them, and this package writes nothing to them but the mark of a broken GPU. ScaleDownSensor waits until
    the provisioner has removed the unused ones, for at most `timeout`.

    Args: Needed: one of them
        nodes: Names of the nodes.
        node_selector_labels: Labels that choose the nodes, instead of their names: all nodes that carry every one.
            With `provisioner` pods select by them, and its nodes will carry them: {"karpenter.sh/nodepool":
            "gpu"}, {"eks.amazonaws.com/instance-gpu-name": "l4"}, {"cloud.google.com/gke-accelerator": "nvidia-l4"},
            {"cloud.google.com/compute-class": "gpu"}.

    Args: Nodes
        gpus_per_node: GPUs that each node has at least. None (default): not known before the device plugin runs; a
            run that wants several GPUs of named nodes then gets a node for each, as far as there are nodes.
        max_nodes: The most nodes that all runs together may have. Default: all of them.
        taints: Taints for the nodes; with `provisioner` those that its nodes have, which pods then tolerate. Default
            none: the nodes may serve other workloads too. Pods tolerate every nvidia.com/gpu taint, and their
            ComputeClass's, anyway.
        cordon_when_idle: Cordon nodes that no run wants and no pod uses; Ensure undoes it. Default False.

    Args: Cluster
        kubernetes_conn_id: Airflow connection of type kubernetes: a kubeconfig, or in-cluster. Default
            kubernetes_default.
        cluster_context: Context of the kubeconfig. Default: the connection's, else the kubeconfig's current one.

    Args: Who adds nodes
        provisioner: What adds the nodes: "karpenter", "auto-mode" (EKS Auto Mode), "autopilot" (GKE Autopilot),
            "compute-class" (a ComputeClass of a GKE Standard cluster) or "cluster-autoscaler" (with external groups).
            Default None: the nodes exist already.

    The other arguments are GpuPool's.
    """

    kind: ClassVar[str] = "kubernetes"
    placed_by: ClassVar[tuple[str, ...]] = (*GpuPool.placed_by, "gpus_per_node")
    allowed_by: ClassVar[tuple[str, ...]] = (*GpuPool.allowed_by, "node_selector_labels")
    cluster_fields: ClassVar[tuple[str, ...]] = ("kubernetes_conn_id", "cluster_context")
    __hash__ = GpuPool.__hash__  # a dataclass would generate one, which fails on fields that are dictionaries

    nodes: Sequence[str] = ()
    node_selector_labels: dict[str, str] = field(default_factory=dict)
    provisioner: str | None = None
    gpus_per_node: int | None = None
    cordon_when_idle: bool = False
    kubernetes_conn_id: str = "kubernetes_default"
    cluster_context: str | None = None
    max_nodes: int = 0
    taints: Sequence[str] = ()

    def gpus_of(self, machine_type: str) -> GpusOfMachine | None:
        from airflow_gpu_provider.clouds.kubernetes.machine_types import gpus_of_type

        return gpus_of_type(machine_type)

    @property
    def platform_path(self) -> str:
        if self.provisioner:
            return "airflow_gpu_provider.clouds.kubernetes.provisioned:ProvisionedPlatform"
        return "airflow_gpu_provider.clouds.kubernetes.platform:KubernetesPlatform"

    @property
    def gpu_products(self) -> tuple[str, ...]:
        return ()

    @property
    def console_url(self) -> str:
        return ""

    @property
    def kubernetes_connection(self) -> str:
        return self.kubernetes_conn_id

    @property
    def node_selector(self) -> dict[str, str]:
        """The labels that pods select. A provisioner's nodes carry no label of this package, so pods select none."""
        return dict(self.node_selector_labels) if self.provisioner else super().node_selector

    @property
    def allowed(self) -> Allowed:
        return Allowed.of(labels={**self.node_labels, **self.node_selector_labels})

    @property
    def how_to_widen(self) -> str:
        return self._by.how_to_widen if self._by else "Add nodes to the pool"

    @property
    def machines_of_others(self) -> frozenset[str]:
        """The nodes that it cordons, by their names or their labels."""
        if not self.cordon_when_idle:
            return frozenset()
        labels = ",".join(f"{key}={value}" for key, value in sorted(self.node_selector_labels.items()))
        named = {f"nodes={name}" for name in self.nodes}
        return frozenset(named | {f"node_selector_labels={labels}"} if labels else named)

    @property
    def given_nodes(self) -> int | None:
        return None if self.provisioner else max(1, len(self.nodes))

    @property
    def nodes_come_with_pods(self) -> bool:
        return self.provisioner is not None

    @property
    def _by(self) -> Provisioner | None:
        return PROVISIONERS[self.provisioner] if self.provisioner else None

    @property
    def reads_of_provisioner(self) -> Sequence[tuple[str, str, str]]:
        return self._by.reads if self._by else ()

    @property
    def has_karpenter(self) -> bool:
        return self.provisioner in ("karpenter", "auto-mode")

    @property
    def has_node_classes(self) -> bool:
        """Karpenter's alone: Auto Mode brings the device plugin itself."""
        return self.provisioner == "karpenter"

    @property
    def has_autoscaler_status(self) -> bool:
        return self.provisioner == "cluster-autoscaler"

    @property
    def nodes_to_come(self) -> NodesToCome:
        platform = self._by.name if self._by and self._by.brings_plugin else ""
        return replace(super().nodes_to_come, platform=platform)

    @property
    def lets_pods_avoid_nodes(self) -> bool:
        return self.provisioner != "autopilot"

    def refuses_not_to_evict(self, node_selector: Mapping[str, str]) -> bool:
        """On Autopilot it requests an extended run time, for which no node of these kinds is added.

        buildkite/agent-stack-k8s#849. Autopilot removes no node from a pod without a controller anyway.
        """
        return self.provisioner == "autopilot" and any(label in node_selector for label in _NO_EXTENDED_RUN_TIME)

    @property
    def is_grown_by_cluster_autoscaler(self) -> bool:
        return self.provisioner in ("autopilot", COMPUTE_CLASS, "cluster-autoscaler")

    @property
    def cluster_identity(self) -> str:
        return f"kubernetes/{self.kubernetes_conn_id}/{self.cluster_context or ''}"

    def nodes_for(self, *, gpus: int | None, nodes: int | None) -> int:
        if (
            self.gpus_per_node is None
            and nodes is None
            and gpus is not None
            and gpus >= 1
            and (self.nodes or gpus == 1)
        ):
            nodes, gpus = min(gpus, self.max_nodes), None
        return super().nodes_for(gpus=gpus, nodes=nodes)

    def _coerce(self) -> None:
        super()._coerce()
        if self.max_nodes == 0:
            self._set("max_nodes", _MOST_NODES if is_template(self.nodes) else len(self.nodes) or _MOST_NODES)
        labels = self.node_selector_labels if isinstance(self.node_selector_labels, dict) else {}
        if self.provisioner == COMPUTE_CLASS and (name := labels.get(COMPUTE_CLASS_LABEL)):
            own = f"{COMPUTE_CLASS_LABEL}={name}:NoSchedule"  # what GKE taints the nodes of a class with
            self._set("taints", tuple(dict.fromkeys((*self.taints, own))))
        self._convert(as_whole, "gpus_per_node")

    def _validate(self) -> None:
        super()._validate()
        if self.has_list_prices:
            raise self._error(
                "price_per_hour=\"list\" needs a cloud that is asked, and this pool's nodes may be anybody's",
                "Give the price as a number.",
            )
        self._check("provisioner", lambda value: value in (None, *PROVISIONERS), f"one of {tuple(PROVISIONERS)}")
        if self.provisioner:
            self._validate_provisioner()
        if bool(self.nodes) == bool(self.node_selector_labels):
            raise self._error("exactly one of nodes and node_selector_labels chooses the nodes", "Give one of the two.")
        self._check("nodes", _are_names, "the names of nodes, each once")
        self._check("node_selector_labels", are_labels, "valid Kubernetes labels")
        if POOL_LABEL in self.node_selector_labels:
            raise self._error(f"node_selector_labels may not have {POOL_LABEL}: the package sets it")
        self._check("gpus_per_node", lambda n: n is None or n >= 1, "at least 1")
        self._check("kubernetes_conn_id", bool, "an Airflow connection")
        self._check("manage", lambda value: value == "full", '"full"')
        self._check("scaling", lambda value: value == "direct", '"direct"')
        self._check("min_nodes", lambda n: n == 0, "0: the nodes stay anyway")
        if self.is_rendered and self.nodes and self.max_nodes > len(self.nodes):
            raise self._error(f"max_nodes={self.max_nodes}, but there are {len(self.nodes)} nodes")

    def _validate_provisioner(self) -> None:
        if self.nodes or not self.node_selector_labels:
            raise self._error(
                f"provisioner={self.provisioner!r} adds nodes by labels",
                "Give node_selector_labels that its nodes will carry, and no nodes.",
            )
        labels = self.node_selector_labels
        if self.provisioner == COMPUTE_CLASS and isinstance(labels, dict) and not labels.get(COMPUTE_CLASS_LABEL):
            raise self._error(
                "provisioner='compute-class' adds nodes for pods that select a ComputeClass",
                f'Name it in node_selector_labels: {{"{COMPUTE_CLASS_LABEL}": "gpu"}}.',
            )
        if self.node_labels:
            raise self._error(
                f"node_labels={self.node_labels!r} cannot be given to nodes that {self.provisioner} adds",
                "Set the labels of its nodes in the provisioner's own configuration.",
            )
        self._check("cordon_when_idle", lambda value: not value, "False: the provisioner removes idle nodes")


def _are_names(names: object) -> bool:
    return isinstance(names, tuple) and len(set(names)) == len(names) and all(map(is_dns_subdomain, names))

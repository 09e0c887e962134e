"""What hands out the GPUs and the fabric of a pool's nodes already: looked up in the cluster, decided from data.

A second device plugin on a node hands the same GPUs out twice, and so does a plugin next to a DRA driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.cluster.api.karpenter_objects import brings_bottlerocket, list_node_pools
from airflow_gpu_provider.cluster.api.rest import ApiClient, label_selector, list_items
from airflow_gpu_provider.cluster.model.devices import offered
from airflow_gpu_provider.cluster.model.lease import PART_OF
from airflow_gpu_provider.cluster.model.node import NodeImage
from airflow_gpu_provider.cluster.model.node_requirements import is_met, untolerated
from airflow_gpu_provider.errors import DevicePluginConflict
from airflow_gpu_provider.pools import GpuPool, Taint
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.pools.on_nodes import PLUGIN_FOLDER, FabricPlugin

Kind = Literal["device plugin", "GPU Operator", "DRA driver", "node image", "platform"]

# Labels that feature discovery puts on GPU nodes some time after they have joined.
_DISCOVERED = ("feature.node.kubernetes.io/", "nvidia.com/")
_DISCOVERY_IMAGES = ("node-feature-discovery", "gpu-feature-discovery")

# Labels of Karpenter's and Auto Mode's machines, not all known before they exist.
_OF_PROVISIONERS = ("karpenter.sh/", "karpenter.k8s.aws/", "eks.amazonaws.com/", "cloud.google.com/")

# The label of nodes whose platform brings driver and plugin, whatever the spec has made known of it.
_AUTO_MODE, _BY_AUTO_MODE = ("eks.amazonaws.com/compute-type", "auto"), "EKS Auto Mode"

# Labels that every node has, whose values a pool's spec does not fix.
_ANY_VALUE = frozenset(
    {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "topology.k8s.aws/zone-id",
        "node.kubernetes.io/instance-type",
        "eks.amazonaws.com/nodegroup",
        "eks.amazonaws.com/nodegroup-image",
        "eks.amazonaws.com/capacityType",
        "k8s.amazonaws.com/accelerator",
        "cloud.google.com/gke-accelerator",
        "cloud.google.com/gke-nodepool",
    }
)


@dataclass(frozen=True, kw_only=True)
class Server:
    """Something that hands out GPUs, and whether it does so on the pool's nodes.

    `serves` is None where it depends on labels that are unknown before the nodes exist.
    """

    kind: Kind
    name: str
    serves: Answer

    def __str__(self) -> str:
        return self.name if self.kind == "platform" else f"{self.kind} {self.name}"


def look(api: ApiClient, pool: GpuPool) -> tuple[list[Server], bool]:
    """Return what hands out GPUs in the cluster, our own plugin for the pool left out; and whether that is there."""
    sets, nodes = _read(api, pool)
    servers = [*find_servers(pool, sets, nodes), *_of_karpenters_images(api, pool)]
    return servers, any(_is_ours(one, pool) for one in sets)


def _read(api: ApiClient, pool: GpuPool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    sets = list_items(api, "/apis/apps/v1/daemonsets", resource="daemonsets")
    nodes = list_items(api, "/api/v1/nodes", resource="nodes", labelSelector=label_selector(pool.node_selector))
    return list(sets), list(nodes)


def _of_karpenters_images(api: ApiClient, pool: GpuPool) -> list[Server]:
    if not pool.has_node_classes:
        return []
    found = [each for each in list_node_pools(api) or () if not each.mismatch(pool.node_selector, pool.parsed_taints)]
    answers = {brings_bottlerocket(api, each) for each in found}
    if True not in answers:
        return []
    # Where only some of the NodePools do, it is unknown before the node exists.
    return [Server(kind="node image", name="Bottlerocket", serves=True if answers == {True} else None)]


def find_servers(pool: GpuPool, daemon_sets: list[dict[str, Any]], nodes: list[dict[str, Any]]) -> list[Server]:
    """Return what hands out GPUs in a cluster with these DaemonSets and pool nodes, but for our own for this pool."""
    discovery = any(name in _words(one) for one in daemon_sets for name in _DISCOVERY_IMAGES)
    pictures = _pictures(pool, nodes, discovery=discovery)
    servers = [
        Server(kind=kind, name=_name(one), serves=_on_all(one, pictures))
        for one in daemon_sets
        if not _is_ours(one, pool) and not _is_gkes(one) and (kind := _kind_of(one))
    ]
    if platform := _platform_of(pool, nodes):
        servers.append(Server(kind="platform", name=platform, serves=True))
    elif image := _image_with_plugin(pool, nodes):
        servers.append(Server(kind="node image", name=image, serves=True))
    found = [server for server in servers if server.serves is not False]
    if not found and not any(_is_ours(one, pool) for one in daemon_sets) and _have_gpus(nodes):
        servers.append(Server(kind="node image", name="of the nodes that are there", serves=True))
    return servers


def _image_with_plugin(pool: GpuPool, nodes: list[dict[str, Any]]) -> str:
    """Return the image that brings the device plugin, of the nodes that are there, or else of those to come."""
    if nodes:
        return "Bottlerocket" if all(NodeImage.parse(node).has_plugin for node in nodes) else ""
    return pool.nodes_to_come.image_with_plugin


def _platform_of(pool: GpuPool, nodes: list[dict[str, Any]]) -> str:
    key, value = _AUTO_MODE
    if nodes and all((node["metadata"].get("labels") or {}).get(key) == value for node in nodes):
        return _BY_AUTO_MODE
    return pool.nodes_to_come.platform


def served_by(pool: GpuPool, servers: Iterable[Server], *, ours: bool) -> Server | None:
    """Return what of `look` serves the pool's nodes, or None where this package's plugin is wanted.

    Raises:
        DevicePluginConflict: A DRA driver serves the nodes; it is not known whether a plugin serves them; or another
            plugin does next to this package's.
    """
    server = _on_its_nodes(
        pool,
        servers,
        hands_out=f"GPUs as resource claims, not as {GPU_RESOURCE}",
        or_else="disable its GPUs (resources.gpus.enabled=false)",
    )
    if server and ours:
        raise DevicePluginConflict(
            f"Pool {pool.name}: {server} serves its nodes, next to the plugin that this package installed.",
            "Delete one of the two DaemonSets; without this package's, the task finds that there is nothing to do.",
            pool=pool.name,
        )
    return server


def look_for_fabric(api: ApiClient, pool: GpuPool, fabric: FabricPlugin) -> Server | None:
    """Return what hands out the fabric's interfaces on a pool's nodes already; None where our plugin is wanted."""
    return fabric_served_by(pool, fabric, *_read(api, pool))


def fabric_served_by(
    pool: GpuPool, fabric: FabricPlugin, daemon_sets: list[dict[str, Any]], nodes: list[dict[str, Any]]
) -> Server | None:
    """Decide `look_for_fabric` from plain data."""
    named: dict[Kind, str] = {"device plugin": fabric.plugin, "DRA driver": fabric.dra_driver}
    pictures = _pictures(pool, nodes, discovery=False)
    found = [
        Server(kind=kind, name=_name(one), serves=_on_all(one, pictures))
        for one in daemon_sets
        for kind, word in named.items()
        if word in _words(one) and not _is_by_us(one, pool)
    ]
    return _on_its_nodes(
        pool,
        found,
        hands_out=f"{fabric.fabric} interfaces as resource claims, not as {fabric.resource}",
        or_else=fabric.without,
    )


def _on_its_nodes(pool: GpuPool, servers: Iterable[Server], *, hands_out: str, or_else: str) -> Server | None:
    """Return the first of these on the pool's nodes; DevicePluginConflict for one that must not, or may, be there."""
    near = [server for server in servers if server.serves is not False]
    for server in near:
        if server.kind == "DRA driver":
            raise DevicePluginConflict(
                f"Pool {pool.name}: {server} hands out {hands_out}.",
                f"Keep it off the pool's nodes by a node affinity, or {or_else}.",
                pool=pool.name,
            )
        if server.serves is None:
            raise DevicePluginConflict(
                f"Pool {pool.name}: whether {server} would run on its nodes depends on labels that no node has yet.",
                "Set node_labels that decide it, or keep it off the pool's nodes by a node affinity.",
                pool=pool.name,
            )
    return near[0] if near else None


# -- what a DaemonSet is -------------------------------------------------------------------------------------


def _kind_of(daemon_set: Mapping[str, Any]) -> Kind | None:
    """Say what a DaemonSet is; device plugins of other makers and other daemons of NVIDIA's are None."""
    words = _words(daemon_set)
    images = _images(daemon_set)
    if "nvidia" not in words:
        return None
    if "dra-driver" in words:
        own = [c["name"] for c in _containers(daemon_set)]
        return None if own == ["compute-domains"] else "DRA driver"
    if PLUGIN_FOLDER not in _host_paths(daemon_set):
        return None
    owners = daemon_set["metadata"].get("ownerReferences") or ()
    operated = any(owner["kind"] == "ClusterPolicy" for owner in owners) or any("gpu-operator" in i for i in images)
    return "GPU Operator" if operated else "device plugin"


def _is_ours(daemon_set: Mapping[str, Any], pool: GpuPool) -> bool:
    return _is_by_us(daemon_set, pool) and _kind_of(daemon_set) == "device plugin"


def _is_by_us(daemon_set: Mapping[str, Any], pool: GpuPool) -> bool:
    labels = daemon_set["metadata"].get("labels") or {}
    return bool(labels.items() >= {**PART_OF, POOL_LABEL: pool.name}.items())


def _is_gkes(daemon_set: Mapping[str, Any]) -> bool:
    """Return True if it is GKE's own plugin, which is on its GPU nodes by default."""
    labels = daemon_set["metadata"].get("labels") or {}
    return bool(labels.get("addonmanager.kubernetes.io/mode")) and "nvidia-gpu-device-plugin" in _words(daemon_set)


def _name(daemon_set: Mapping[str, Any]) -> str:
    return f"{daemon_set['metadata']['namespace']}/{daemon_set['metadata']['name']}"


def _template(daemon_set: Mapping[str, Any]) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = daemon_set["spec"]["template"]["spec"]
    return spec


def _containers(daemon_set: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(_template(daemon_set).get("containers") or ())


def _images(daemon_set: Mapping[str, Any]) -> list[str]:
    return [str(container.get("image") or "").lower() for container in _containers(daemon_set)]


def _words(daemon_set: Mapping[str, Any]) -> str:
    """Return names and images in one text: mirrored images have lost their registry, not their name."""
    names = [daemon_set["metadata"]["name"], *(c["name"] for c in _containers(daemon_set)), *_images(daemon_set)]
    return " ".join(names).lower()


def _host_paths(daemon_set: Mapping[str, Any]) -> list[str]:
    volumes = _template(daemon_set).get("volumes") or ()
    return [str(volume["hostPath"]["path"]).rstrip("/") for volume in volumes if volume.get("hostPath")]


# -- what the pool's nodes are ---------------------------------------------------------------------------------


def _on_all(daemon_set: Mapping[str, Any], pictures: list[NodePicture]) -> Answer:
    answers = {runs_on(_template(daemon_set), picture) for picture in pictures}
    return answers.pop() if len(answers) == 1 else None


def _pictures(pool: GpuPool, nodes: list[dict[str, Any]], *, discovery: bool) -> list[NodePicture]:
    """Return a picture of each node that is there, or else of those to come."""

    def is_open(key: str) -> bool:
        is_discovered = discovery and key.startswith(_DISCOVERED)
        is_provisioned = bool(pool.provisioner) and key.startswith(_OF_PROVISIONERS)
        return is_discovered if nodes else is_discovered or is_provisioned or key in _ANY_VALUE

    labels = [node["metadata"].get("labels") or {} for node in nodes] or [pool.nodes_to_come.labels]
    return [
        NodePicture(labels=_with_discovery(each, discovery), taints=pool.parsed_taints, is_open=is_open)
        for each in labels
    ]


def _with_discovery(labels: Mapping[str, str], discovery: bool) -> dict[str, str]:
    """Add what feature discovery, where it runs, puts on every node with an NVIDIA GPU."""
    found = {
        "feature.node.kubernetes.io/pci-10de.present": "true",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.deploy.device-plugin": "true",
    }
    return {**(found if discovery else {}), **labels}


def _have_gpus(nodes: list[dict[str, Any]]) -> bool:
    return bool(nodes) and all(offered(node).allocatable for node in nodes)


# -- whether a pod's node selector, affinity and tolerations let it onto a node that may not exist yet -------------

# The labels of a node that does not exist are known only in part, so the answer has three values: True, False, and None
# for "it depends on a label that is unknown yet".

Answer = bool | None
Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class NodePicture:
    """A node, there or to come.

    Attributes:
        labels: Its labels, as far as they are known.
        taints: All its taints.
        is_open: Says of a label that is not in `labels` whether the node may have it all the same.
    """

    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    is_open: Callable[[str], bool]


def runs_on(spec: Json, node: NodePicture) -> Answer:
    """Return True if taints, labels and affinity let a pod with this spec run on the node."""
    if untolerated(node.taints, spec.get("tolerations") or ()):
        return False
    wanted = [{"key": k, "operator": "In", "values": [v]} for k, v in (spec.get("nodeSelector") or {}).items()]
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    one_of = [_term(term, node) for term in (affinity or {}).get("nodeSelectorTerms") or ()]
    terms = [] if affinity is None else [_unless(True, one_of)]
    return _unless(False, [*(_expression(e, node) for e in wanted), *terms])


def _term(term: Json, node: NodePicture) -> Answer:
    if term.get("matchFields"):
        return None  # the node's name: unknown yet
    expressions = term.get("matchExpressions") or ()
    return _unless(False, [_expression(e, node) for e in expressions]) if expressions else False


def _expression(expression: Json, node: NodePicture) -> Answer:
    key = expression["key"]
    if key not in node.labels and node.is_open(key):
        return None
    return is_met(expression, node.labels.get(key))


def _unless(decisive: bool, answers: list[Answer]) -> Answer:
    """Return `decisive` where one answer is that, None where one depends on the unknown, else the opposite."""
    return decisive if decisive in answers else None if None in answers else not decisive

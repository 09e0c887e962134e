"""What hands out GPUs in a cluster, read from DaemonSets as their projects install them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.addons.detection import Server, find_servers, served_by
from airflow_gpu_provider.addons.device_plugin import DevicePlugin
from airflow_gpu_provider.errors import DevicePluginConflict
from tests.unit.training.test_pod_placement import a_pool

TOLERATES_GPUS = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
PLUGIN = "nvcr.io/nvidia/k8s-device-plugin:v0.17.1"


def daemon_set(
    name: str,
    image: str,
    *,
    namespace: str = "kube-system",
    host_path: str = "/var/lib/kubelet/device-plugins",
    container: str = "ctr",
    metadata: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    pod = {
        "containers": [{"name": container, "image": image}],
        "volumes": [{"name": "v", "hostPath": {"path": host_path}}],
        "tolerations": TOLERATES_GPUS,
        **spec,
    }
    return {
        "metadata": {"name": name, "namespace": namespace, **(metadata or {})},
        "spec": {"template": {"spec": pod}},
    }


def node(gpus: int = 0, system: str = "Amazon Linux 2023.9.20251117", **labels: str) -> dict[str, Any]:
    own = {"airflow-gpu-provider/pool": "train-gpu", "kubernetes.io/os": "linux"}
    return {
        "metadata": {"name": "n1", "labels": {**own, **labels}},
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}, "nodeInfo": {"osImage": system}},
    }


def affinity(*terms: tuple[str, str]) -> dict[str, Any]:
    expressions = [{"matchExpressions": [{"key": k, "operator": "In", "values": [v]}]} for k, v in terms]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": expressions}}}


# As eksctl and NVIDIA's own manifest install it.
STATIC = daemon_set("nvidia-device-plugin-daemonset", PLUGIN)
# As the plugin's Helm chart does: on nodes that feature discovery or a person has labelled.
HELM = daemon_set(
    "nvdp-nvidia-device-plugin",
    PLUGIN,
    namespace="nvidia",
    affinity=affinity(("feature.node.kubernetes.io/pci-10de.present", "true"), ("nvidia.com/gpu.present", "true")),
)
OPERATED = daemon_set(
    "nvidia-device-plugin-daemonset",
    PLUGIN,
    namespace="gpu-operator",
    nodeSelector={"nvidia.com/gpu.deploy.device-plugin": "true"},
    metadata={"ownerReferences": [{"kind": "ClusterPolicy", "name": "cluster-policy"}]},
)
DISCOVERY = daemon_set(
    "node-feature-discovery-worker", "registry.k8s.io/nfd/node-feature-discovery:v0.17", host_path="/"
)
DRA = daemon_set(
    "nvidia-dra-driver-gpu-kubelet-plugin",
    "nvcr.io/nvidia/k8s-dra-driver-gpu:v25.3",
    host_path="/var/lib/kubelet/plugins",
    container="gpus",
)


def serving(*sets: dict[str, Any], nodes: tuple[dict[str, Any], ...] = (), **pool: Any) -> list[Server]:
    return [s for s in find_servers(a_pool(**pool), list(sets), list(nodes)) if s.serves is not False]


def test_nothing_serves_an_empty_cluster() -> None:
    assert serving() == []
    assert served_by(a_pool(), [], ours=False) is None


def test_nvidias_manifest_serves_every_node_with_the_usual_taint() -> None:
    (server,) = serving(STATIC)
    assert str(server) == "device plugin kube-system/nvidia-device-plugin-daemonset"
    assert served_by(a_pool(), [server], ours=False) == server


def test_plugin_that_does_not_tolerate_the_pools_taints_does_not_serve_it() -> None:
    assert serving(STATIC, taints=["nvidia.com/gpu=true:NoSchedule", "team=vision:NoSchedule"]) == []


def test_helm_chart_serves_where_its_labels_are() -> None:
    assert serving(HELM) == []
    assert len(serving(HELM, node_labels={"nvidia.com/gpu.present": "true"})) == 1
    assert len(serving(HELM, DISCOVERY)) == 1
    assert len(serving(HELM, nodes=(node(**{"nvidia.com/gpu.present": "true"}),))) == 1


def test_gpu_operator_is_named_as_such() -> None:
    (server,) = serving(OPERATED, DISCOVERY)
    assert server.kind == "GPU Operator"


@pytest.mark.parametrize(
    "other",
    [
        daemon_set("amdgpu-device-plugin", "rocm/k8s-device-plugin:1.31"),
        daemon_set("aws-efa-k8s-device-plugin", "602401143452.dkr.ecr/eks/aws-efa-k8s-device-plugin:v0.5"),
        daemon_set("gpu-feature-discovery", PLUGIN, host_path="/etc/kubernetes/node-feature-discovery"),
        daemon_set("nvidia-mps-control-daemon", PLUGIN, host_path="/run/nvidia/mps"),
        daemon_set("dcgm-exporter", "nvcr.io/nvidia/k8s/dcgm-exporter:4", host_path="/var/lib/kubelet/pod-resources"),
    ],
)
def test_other_daemons_hand_out_no_nvidia_gpus(other: dict[str, Any]) -> None:
    assert serving(other) == []


def test_mirrored_plugin_is_known_by_its_daemon_set() -> None:
    mirrored = daemon_set("nvidia-device-plugin", "registry.internal/mirror/k8s-device-plugin:v0.17")
    assert len(serving(mirrored)) == 1


def test_bottlerocket_brings_the_plugin() -> None:
    (server,) = serving(ami_type="BOTTLEROCKET_x86_64_NVIDIA")
    assert str(server) == "node image Bottlerocket"


def test_nodes_that_are_there_show_their_own_image() -> None:
    """Those of a group that Terraform owns run what its author chose, whatever the spec's ami_type is."""
    with_plugin = node(system="Bottlerocket OS 1.50.0 (aws-k8s-1.36-nvidia)")
    (server,) = serving(nodes=(with_plugin,))
    assert str(server) == "node image Bottlerocket"
    assert serving(nodes=(with_plugin, node())) == []
    assert serving(nodes=(node(),), ami_type="BOTTLEROCKET_x86_64_NVIDIA") == []


def test_nodes_that_have_gpus_already_need_nothing() -> None:
    (server,) = serving(nodes=(node(gpus=1),))
    assert server.kind == "node image"
    assert serving(nodes=(node(gpus=1), node(gpus=0))) == []


def test_own_plugin_is_not_another_one() -> None:
    own = DevicePlugin(pool=a_pool()).manifest()
    assert serving(own, nodes=(node(gpus=1),)) == []
    assert serving({**own, "metadata": {**own["metadata"], "labels": {}}}) != []  # a copy that lost its labels


def test_own_plugin_of_another_pool_does_not_serve_this_one() -> None:
    assert serving(DevicePlugin(pool=a_pool(name="other")).manifest()) == []


# -- conflicts ---------------------------------------------------------------------------------------------------


def test_dra_driver_is_a_conflict() -> None:
    with pytest.raises(DevicePluginConflict, match="resource claims"):
        served_by(a_pool(), serving(DRA), ours=False)


def test_dra_driver_for_compute_domains_only_is_none() -> None:
    only_domains = daemon_set(
        "nvidia-dra-driver-gpu-kubelet-plugin", "nvcr.io/nvidia/k8s-dra-driver-gpu:v25.3", container="compute-domains"
    )
    assert serving(only_domains) == []


def test_plugin_that_may_or_may_not_run_there_is_a_conflict() -> None:
    by_zone = daemon_set("nvidia-plugin", PLUGIN, nodeSelector={"topology.kubernetes.io/zone": "us-west-2a"})
    with pytest.raises(DevicePluginConflict, match="labels that no node has yet"):
        served_by(a_pool(), serving(by_zone), ours=False)
    there = node(**{"topology.kubernetes.io/zone": "us-west-2b"})
    assert serving(by_zone, nodes=(there,)) == []


def test_second_plugin_next_to_our_own_is_a_conflict() -> None:
    with pytest.raises(DevicePluginConflict, match="next to the plugin that this package installed"):
        served_by(a_pool(), serving(STATIC), ours=True)


def provisioned(provisioner: str | None) -> KubernetesGpuPool:
    labels = {"team": "ml", "cloud.google.com/compute-class": "gpu"}
    return KubernetesGpuPool(name="train-gpu", provisioner=provisioner, node_selector_labels=labels)


@pytest.mark.parametrize(
    ("provisioner", "name"), [("auto-mode", "EKS Auto Mode"), ("autopilot", "GKE Autopilot"), ("compute-class", "GKE")]
)
def test_platforms_that_bring_driver_and_plugin_themselves(provisioner: str, name: str) -> None:
    servers = find_servers(provisioned(provisioner), [], [])
    assert served_by(provisioned(provisioner), servers, ours=False) == Server(kind="platform", name=name, serves=True)


@pytest.mark.parametrize("provisioner", ["karpenter", "cluster-autoscaler"])
def test_other_provisioners_bring_no_plugin(provisioner: str) -> None:
    assert served_by(provisioned(provisioner), find_servers(provisioned(provisioner), [], []), ours=False) is None


def test_nodes_of_auto_mode_are_known_by_their_label() -> None:
    there = [node(**{"eks.amazonaws.com/compute-type": "auto"})]
    server = served_by(provisioned(None), find_servers(provisioned(None), [], there), ours=False)
    assert str(server) == "EKS Auto Mode"


def test_a_plugin_on_labels_that_a_provisioner_may_set_is_asked_about() -> None:
    plugin = daemon_set("nvdp", PLUGIN, affinity=affinity(("karpenter.k8s.aws/instance-gpu-name", "l4")))
    with pytest.raises(DevicePluginConflict, match="labels that no node has yet"):
        served_by(provisioned("karpenter"), find_servers(provisioned("karpenter"), [plugin], []), ours=False)

"""EFA's device plugin: as AWS's chart has it, for one pool's nodes, and only where nothing else serves them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool, KubernetesGpuPool
from airflow_gpu_provider.addons.detection import Server, fabric_served_by, find_servers
from airflow_gpu_provider.addons.device_plugin import PLUGIN_NAMESPACE, fabric_manifest
from airflow_gpu_provider.errors import DevicePluginConflict
from tests.unit.addons.test_detection import affinity, daemon_set, node
from tests.unit.training.test_pod_placement import a_pool

EFA = {"instance_types": ["p4d.24xlarge"], "network": "efa"}
CHART = daemon_set(
    "aws-efa-k8s-device-plugin",
    "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin:v0.5.5",
    affinity=affinity(("node.kubernetes.io/instance-type", "p4d.24xlarge")),
)
DRANET = daemon_set("aws-dranet", "public.ecr.aws/eks/aws-dranet:v1.2.0")


def the_daemon_set(pool: EksGpuPool, **values: Any) -> dict[str, Any]:
    made = fabric_manifest(pool, **values)
    assert made
    return made


def served_by(pool: EksGpuPool, there: list[dict[str, Any]], nodes: list[dict[str, Any]]) -> Server | None:
    fabric = pool.fabric_plugin()
    assert fabric
    return fabric_served_by(pool, fabric, there, nodes)


def test_it_runs_on_the_pool_s_nodes_alone_and_sees_the_devices() -> None:
    made = the_daemon_set(a_pool(**EFA, taints=["team=vision:NoExecute"]), namespace=PLUGIN_NAMESPACE)
    spec = made["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"airflow-gpu-provider/pool": "train-gpu"}
    assert [each["effect"] for each in spec["tolerations"] if each["key"] == "team"] == ["NoExecute"]
    (container,) = spec["containers"]
    assert {each["mountPath"] for each in container["volumeMounts"]} == {
        "/var/lib/kubelet/device-plugins",
        "/dev/infiniband",
    }
    assert spec["hostNetwork"]
    other = the_daemon_set(a_pool(**EFA), namespace="x", image="mirror/efa:1")
    assert other["spec"]["template"]["spec"]["containers"][0]["image"] == "mirror/efa:1"


def test_only_pools_with_efa_want_it() -> None:
    assert a_pool(**EFA).fabric_plugin()
    assert not a_pool().fabric_plugin()
    assert not KubernetesGpuPool(name="x", kubernetes_conn_id="k8s", max_nodes=1, nodes=["n1"]).fabric_plugin()


def test_ours_is_not_taken_for_nvidia_s() -> None:
    pool = a_pool(**EFA)
    assert not find_servers(pool, [the_daemon_set(pool, namespace=PLUGIN_NAMESPACE)], [])


@pytest.mark.parametrize(
    ("sets", "by"),
    [
        ([], None),
        ([CHART], "device plugin kube-system/aws-efa-k8s-device-plugin"),
        ([daemon_set("other", "busybox")], None),
    ],
)
def test_what_is_there_already_is_left_alone(sets: list[dict[str, Any]], by: str | None) -> None:
    pool = a_pool(**EFA)
    ours = the_daemon_set(pool, namespace=PLUGIN_NAMESPACE)
    for there in (sets, [*sets, ours]):
        found = served_by(pool, there, [])
        assert (str(found) if found else None) == by


def test_a_chart_that_does_not_tolerate_the_pool_s_taints_does_not_serve_it() -> None:
    chart = {**CHART, "spec": {"template": {"spec": {**CHART["spec"]["template"]["spec"], "tolerations": []}}}}
    assert served_by(a_pool(**EFA), [chart], []) is None


def test_claims_are_another_way() -> None:
    with pytest.raises(DevicePluginConflict, match=r"as resource claims, not as vpc\.amazonaws\.com/efa"):
        served_by(a_pool(**EFA), [DRANET], [])


def test_what_depends_on_labels_to_come_is_not_guessed() -> None:
    types = {"instance_types": ["p4d.24xlarge", "p5.48xlarge"], "network": "efa"}
    with pytest.raises(DevicePluginConflict, match="depends on labels that no node has yet"):
        served_by(a_pool(**types), [CHART], [])
    with_label = node(**{"node.kubernetes.io/instance-type": "p4d.24xlarge"})
    assert served_by(a_pool(**types), [CHART], [with_label]) is not None

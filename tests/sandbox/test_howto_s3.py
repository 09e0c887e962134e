"""S3, bare metal: nodes that are there are labelled, get the plugin, run pods with several GPUs, and stay."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from airflow_gpu_provider import (
    EnsureGpuPoolOperator,
    GpuPodOperator,
    InstallDevicePluginOperator,
    KubernetesGpuPool,
    ScaleDownSensor,
    placement,
)
from airflow_gpu_provider.addons.device_plugin import PLUGIN_NAMESPACE
from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.errors import ConnectionNotFound, PodUnschedulable, PoolDrift, PoolSpecError
from gpu_sandbox.nodes import NodeSpec
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import eventually, run, until_allowed

NODE = "metal-1"
COUNT_GPUS = """nvidia-smi -L; echo '{"gpus": "'$CUDA_VISIBLE_DEVICES'"}' > /airflow/xcom/return.json"""


@pytest.fixture(scope="module")
def core(gpu_sandbox: Sandbox) -> Iterator[client.CoreV1Api]:
    """The cluster with one more machine, of four GPUs; Airflow reaches it by a connection with a kubeconfig."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in gpu_sandbox.env().items():
            patch.setenv(name, value)
        extra = {"kube_config_path": os.environ["KUBECONFIG"]}
        patch.setenv("AIRFLOW_CONN_BARE_METAL", json.dumps({"conn_type": "kubernetes", "extra": extra}))
        patch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
        patch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
        core = client.CoreV1Api(config.new_client_from_config(os.environ["KUBECONFIG"]))
        gpu_sandbox.agent.add_node(NodeSpec(name=NODE, labels={"gpus": "true"}, gpus=4))
        eventually(lambda: [node for node in core.list_node().items if node.metadata.name == NODE and is_ready(node)])
        yield core
        core.delete_collection_namespaced_pod("default", grace_period_seconds=1)
        apps = client.AppsV1Api(core.api_client)
        for namespace in ("kube-system", PLUGIN_NAMESPACE):
            apps.delete_collection_namespaced_daemon_set(namespace)
        eventually(lambda: not core.list_pod_for_all_namespaces(field_selector=f"spec.nodeName={NODE}").items)
        gpu_sandbox.agent.remove_node(NODE)


def is_ready(node: client.V1Node) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in node.status.conditions or ())


def is_tainted_not_ready(node: client.V1Node) -> bool:
    return any(taint.key == "node.kubernetes.io/not-ready" for taint in node.spec.taints or ())


def lab(**changes: Any) -> KubernetesGpuPool:
    usual = {"name": "lab", "nodes": [NODE], "gpus_per_node": 4, "kubernetes_conn_id": "bare_metal"}
    return KubernetesGpuPool(**{**usual, "node_labels": {"role": "train"}, **changes})


def gpu_pod(pool: KubernetesGpuPool, name: str) -> dict[str, Any]:
    """A pod of somebody else's making, placed by `placement`."""
    put = placement(pool, gpus=2)
    train = {"name": "train", "image": "busybox:1.36", "command": ["sh", "-c", "nvidia-smi -L; sleep 600"]}
    spec = {"restartPolicy": "Never", "containers": [{**train, "resources": {"limits": put.limits}}], **put.pod_spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.mark.nightly
def test_from_nothing_to_done(core: client.CoreV1Api) -> None:
    pool = lab(taints=["team=ml:NoSchedule"], cordon_when_idle=True)
    machines = {each.metadata.name for each in core.list_node().items}
    ensured = run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, gpus=4))
    assert [each["name"] for each in ensured["nodes"]] == [NODE]
    # A node's Ready and the end of its not-ready taint are two writes, by two writers.
    node = eventually(lambda: next((one for one in [core.read_node(NODE)] if not is_tainted_not_ready(one)), None))
    assert node.metadata.labels["airflow-gpu-provider/pool"] == "lab"
    assert (node.metadata.labels["role"], node.metadata.labels["gpus"]) == ("train", "true")
    assert [(taint.key, taint.value, taint.effect) for taint in node.spec.taints] == [("team", "ml", "NoSchedule")]
    assert platform_for(pool).plan(1).is_empty
    assert "no changes" in "".join(run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, gpus=4))["plan"])

    options = {"DP_DISABLE_HEALTHCHECKS": "xids"}
    plugin = run(InstallDevicePluginOperator(task_id="plugin", gpu_pool=pool, options=options))
    assert plugin["nodes"] == {NODE: 4}
    assert core.read_node(NODE).status.allocatable["nvidia.com/gpu"] == "4"
    namespace, _, daemon_set = plugin["served_by"].rpartition(" ")[2].rpartition("/")
    applied = client.AppsV1Api(core.api_client).read_namespaced_daemon_set(daemon_set, namespace or PLUGIN_NAMESPACE)
    (container,) = applied.spec.template.spec.containers
    assert {each.name: each.value for each in container.env}["DP_DISABLE_HEALTHCHECKS"] == "xids"

    for name in ("one", "two"):
        core.create_namespaced_pod("default", gpu_pod(pool, name))
    eventually(lambda: [pod for pod in pods(core) if pod.status.phase == "Running"][1:])
    # Side by side, each sees two of the four, and none sees another's.
    seen = [eventually(lambda name=name: gpus_seen(core, name)) for name in ("one", "two")]
    assert [len(gpus) for gpus in seen] == [2, 2]
    assert len({*seen[0], *seen[1]}) == 4
    core.create_namespaced_pod("default", gpu_pod(pool, "three"))
    eventually(lambda: "Insufficient nvidia.com/gpu" in why_pending(core.read_namespaced_pod("three", "default")))
    core.delete_namespaced_pod("one", "default", grace_period_seconds=1)
    eventually(lambda: core.read_namespaced_pod("three", "default").status.phase == "Running")
    for name in ("two", "three"):
        core.delete_namespaced_pod(name, "default", grace_period_seconds=1)

    # A pod with no limit sees all GPUs, where its image asks for them, as NVIDIA's do.
    watcher = gpu_pod(pool, "watcher")
    changes = {
        "command": ["sh", "-c", "nvidia-smi -L"],
        "resources": {},
        "image": "nvidia/cuda:12.4.1-base-ubuntu22.04",
    }
    watcher["spec"]["containers"][0].update(changes)
    core.create_namespaced_pod("default", watcher)
    eventually(lambda: core.read_namespaced_pod("watcher", "default").status.phase in ("Succeeded", "Failed"))
    assert core.read_namespaced_pod_log("watcher", "default").count("GPU ") == 4
    core.delete_namespaced_pod("watcher", "default", grace_period_seconds=1)

    train = GpuPodOperator(
        task_id="train", gpu_pool=pool, gpus=2, image="busybox:1.36", cmds=["sh", "-c", COUNT_GPUS], do_xcom_push=True
    )
    assert len(run(train)["gpus"].split(",")) == 2

    for larger in ({"gpus": 5}, {"container_resources": client.V1ResourceRequirements(requests={"memory": "9Ti"})}):
        task = GpuPodOperator(task_id="larger", gpu_pool=pool, image="busybox:1.36", cmds=["true"], **larger)
        with pytest.raises(PodUnschedulable, match=f"more than any machine of pool lab has for pods: {NODE} has"):
            run(task)

    eventually(lambda: not pods(core))
    down = run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))
    assert (down["nodes"], down["kept"]) == (1, [])
    node = core.read_node(NODE)
    assert is_ready(node)
    assert node.spec.unschedulable  # cordon_when_idle
    assert not core.list_node(label_selector="airflow-gpu-provider/pool=lab").items[1:]
    # A machine of another test may have joined meanwhile.
    assert machines <= {each.metadata.name for each in core.list_node().items}

    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, gpus=1))
    assert not core.read_node(NODE).spec.unschedulable
    run(ScaleDownSensor(task_id="scale_down", gpu_pool=lab(taints=pool.taints)))


def gpus_seen(core: client.CoreV1Api, pod: str) -> list[str]:
    """The UUIDs of what nvidia-smi lists in a pod; none before it has said anything."""
    return re.findall(r"UUID: (\S+)\)", core.read_namespaced_pod_log(pod, "default"))


def pods(core: client.CoreV1Api) -> list[client.V1Pod]:
    return list(core.list_namespaced_pod("default").items)


def why_pending(pod: client.V1Pod) -> str:
    return " ".join(each.message or "" for each in pod.status.conditions or () if each.reason == "Unschedulable")


def test_a_node_that_does_not_exist_is_named(core: client.CoreV1Api) -> None:
    pool = lab(name="typo", nodes=[NODE, "metal-9"])
    with pytest.raises(PoolSpecError, match="no node metal-9"):
        run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=1))
    assert not core.list_node(label_selector="airflow-gpu-provider/pool=typo").items


def test_nodes_by_labels_and_one_pool_for_each_node(core: client.CoreV1Api) -> None:
    by_labels = lab(name="chosen", nodes=[], node_selector_labels={"gpus": "true"})
    platform = platform_for(lab())
    platform.apply(platform.plan(1), print)
    with pytest.raises(PoolDrift, match="belongs to pool lab"):
        platform_for(by_labels).plan(1)
    platform.delete(print)
    chosen = platform_for(by_labels)
    assert [change.group for change in chosen.plan(1).changes] == [NODE]
    chosen.apply(chosen.plan(1), print)
    assert [machine.id for machine in chosen.observe()[0].machines] == [NODE]
    nobody = platform_for(lab(name="chosen", nodes=[], node_selector_labels={"gpus": "none"}))
    assert "is not chosen any more" in nobody.plan(1).changes[0].detail
    nobody.apply(nobody.plan(1), print)
    assert nobody.observe()[0].machines == ()


@pytest.mark.parametrize("form", [str, dict], ids=["text", "dict"])
def test_a_kubeconfig_in_the_connection(core: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch, form: type) -> None:
    import yaml

    with open(os.environ["KUBECONFIG"]) as file:
        text = file.read()
    kubeconfig = text if form is str else yaml.safe_load(text)
    connection = {"conn_type": "kubernetes", "extra": {"kube_config": kubeconfig}}
    monkeypatch.setenv("AIRFLOW_CONN_INLINE", json.dumps(connection))
    assert platform_for(lab(kubernetes_conn_id="inline")).plan(1).changes


def test_in_cluster_with_a_service_accounts_token(
    core: client.CoreV1Api, gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    request = {"spec": {"audiences": [], "expirationSeconds": 3600}}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", **request}
    token = core.create_namespaced_service_account_token("default", "default", body).status.token
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    subjects = [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]
    rbac = client.RbacAuthorizationV1Api(core.api_client)
    rbac.create_cluster_role_binding({"metadata": {"name": "in-cluster"}, "roleRef": role, "subjects": subjects})
    until_allowed(core.api_client, user="system:serviceaccount:default:default")
    (tmp_path / "token").write_text(token)
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(gpu_sandbox.control_plane.ca_data))
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    host, _, port = gpu_sandbox.control_plane.server.removeprefix("https://").partition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setenv("AIRFLOW_CONN_INSIDE", json.dumps({"conn_type": "kubernetes", "extra": {"in_cluster": True}}))
    try:
        assert platform_for(lab(kubernetes_conn_id="inside")).plan(1).changes
    finally:
        rbac.delete_cluster_role_binding("in-cluster")


def test_a_connection_that_leads_nowhere(core: client.CoreV1Api) -> None:
    with pytest.raises(ConnectionNotFound, match="missing_one"):
        platform_for(lab(kubernetes_conn_id="missing_one")).plan(1)

"""A whole sandbox with GKE: instances become Nodes, drivers come before GPUs, tokens open the API server."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from google.cloud.container_v1 import (
    AcceleratorConfig,
    ClusterManagerClient,
    GPUDriverInstallationConfig,
    GPUSharingConfig,
    NodeConfig,
    NodePool,
)
from google.oauth2 import service_account
from kubernetes.client import CoreV1Api
from kubernetes.client.exceptions import ApiException
from kubernetes.config import new_client_from_config

from gpu_sandbox.control_api import ControlApiClient
from gpu_sandbox.errors import ControlApiError
from gpu_sandbox.sandbox import SYSTEM_NODE, Sandbox
from sandbox.tests.google.conftest import EMAIL_SCOPE, GROW, REAL, SCOPES, access_token
from tests.sandbox.running import watched

BOOT = 45.0
GPU = "nvidia.com/gpu"
NVIDIA = "/usr/local/nvidia"
SMI = f"{NVIDIA}/bin/nvidia-smi"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    # Drivers are installed, and pods run, in real time.
    timings = replace(REAL, driver=0.5)
    with Sandbox(
        platform="gke", clock="manual", pace="quick", boot_seconds=BOOT, timings=timings, autoscaler="none"
    ) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def core(sandbox: Sandbox) -> CoreV1Api:
    return CoreV1Api(new_client_from_config(str(sandbox.kubeconfig)))


@pytest.fixture(scope="module")
def gke(sandbox: Sandbox) -> ClusterManagerClient:
    """As a program that has nothing but the Airflow connection would make it."""
    extra = json.loads(sandbox.env()["AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"])["extra"]
    credentials = service_account.Credentials.from_service_account_info(
        json.loads(extra["keyfile_dict"]), scopes=SCOPES
    )
    return ClusterManagerClient(
        credentials=credentials, transport="rest", client_options={"api_endpoint": extra["gke_endpoint"]}
    )


@pytest.fixture(scope="module")
def make_pool(sandbox: Sandbox, gke: ClusterManagerClient) -> Iterator[Callable[..., None]]:
    parent = sandbox.google.cluster.path
    made: list[str] = []

    def make(name: str, **config: Any) -> None:
        """A pool of one node, which has just joined."""
        pool = NodePool(name=name, initial_node_count=1, locations=["us-central1-a"], config=NodeConfig(**config))
        gke.create_node_pool(parent=parent, node_pool=pool)
        made.append(name)
        sandbox.advance(REAL.node_pool_create)
        assert gke.get_node_pool(name=f"{parent}/nodePools/{name}").status == NodePool.Status.RUNNING
        sandbox.advance(GROW + BOOT - REAL.node_pool_create - 1)
        assert nodes_of(sandbox, name) == []
        sandbox.advance(1)
        assert len(nodes_of(sandbox, name)) == 1

    yield make
    for name in made:
        gke.delete_node_pool(name=f"{parent}/nodePools/{name}")
    sandbox.advance(minutes=5)
    assert not set(made) & {pool.name for pool in gke.list_node_pools(parent=parent).node_pools}


def get(sandbox: Sandbox, path: str) -> Any:
    return sandbox.control_plane.request("GET", path)[1]


def nodes_of(sandbox: Sandbox, pool: str) -> list[dict[str, Any]]:
    selector = f"cloud.google.com%2Fgke-nodepool%3D{pool}"
    items: list[dict[str, Any]] = get(sandbox, f"/api/v1/nodes?labelSelector={selector}")["items"]
    return items


def allocatable(node: dict[str, Any]) -> str | None:
    gpus: str | None = node["status"]["allocatable"].get(GPU)
    return gpus


def until_it_has(core: CoreV1Api, pool: str, gpus: str) -> None:
    """Wait for the GPUs of a pool's node."""
    selector = f"cloud.google.com/gke-nodepool={pool}"
    watched(core.list_node, "0", lambda _, node: node.status.allocatable.get(GPU) == gpus, label_selector=selector)


def until_pod(core: CoreV1Api, name: str, phase: str) -> None:
    named = {"namespace": "default", "field_selector": f"metadata.name={name}"}
    watched(core.list_namespaced_pod, "0", lambda _, pod: pod.status.phase == phase, **named)


def test_a_pool_becomes_nodes_whose_gpus_come_with_the_driver(
    sandbox: Sandbox, core: CoreV1Api, make_pool: Callable[..., None]
) -> None:
    sandbox.faults.driver_never_ready = True
    make_pool("l4", machine_type="g2-standard-24", spot=True, labels={"role": "train-gpu"})
    [node] = nodes_of(sandbox, "l4")
    assert allocatable(node) is None  # the driver is not there yet
    name, labels = node["metadata"]["name"], node["metadata"]["labels"]
    assert node["spec"]["providerID"] == f"gce://sandbox-project/us-central1-a/{name}"
    assert labels["cloud.google.com/gke-accelerator"] == "nvidia-l4"
    assert labels["cloud.google.com/gke-spot"] == "true"
    assert labels["role"] == "train-gpu"
    assert labels["node.kubernetes.io/instance-type"] == "g2-standard-24"
    taint = {"key": GPU, "value": "present", "effect": "NoSchedule"}
    assert taint in node["spec"]["taints"]
    sandbox.faults.driver_never_ready = False
    sandbox.advance()
    until_it_has(core, "l4", "2")


def test_system_node_and_its_pool_are_there(sandbox: Sandbox, gke: ClusterManagerClient) -> None:
    labels = get(sandbox, f"/api/v1/nodes/{SYSTEM_NODE}")["metadata"]["labels"]
    pool = gke.get_node_pool(name=f"{sandbox.google.cluster.path}/nodePools/{labels['cloud.google.com/gke-nodepool']}")
    assert pool.status == NodePool.Status.RUNNING


def test_without_gkes_driver_gpus_come_with_a_driver_daemonset(
    sandbox: Sandbox, core: CoreV1Api, make_pool: Callable[..., None]
) -> None:
    installation = GPUDriverInstallationConfig(
        gpu_driver_version=GPUDriverInstallationConfig.GPUDriverVersion.INSTALLATION_DISABLED
    )
    k80 = AcceleratorConfig(
        accelerator_type="nvidia-tesla-k80", accelerator_count=1, gpu_driver_installation_config=installation
    )
    make_pool("k80", machine_type="n1-standard-4", accelerators=[k80])
    make_pool("later", machine_type="g2-standard-4")
    until_it_has(core, "later", "1")  # where GKE does install it
    assert [allocatable(node) for node in nodes_of(sandbox, "k80")] == [None]
    apply_driver_daemonset(sandbox)
    until_it_has(core, "k80", "1")


def apply_driver_daemonset(sandbox: Sandbox) -> None:
    """As the COS how-to's: the installer as an init container, then a pause."""
    labels = {"k8s-app": "nvidia-driver-installer"}
    spec = {
        "nodeSelector": {"cloud.google.com/gke-gpu-driver-version": "disabled"},
        "tolerations": [{"operator": "Exists"}],
        "initContainers": [{"name": "nvidia-driver-installer", "image": "cos-nvidia-installer:fixed"}],
        "containers": [{"name": "pause", "image": "gke.gcr.io/pause:3.8"}],
    }
    manifest = {
        "metadata": {"name": "nvidia-driver-installer", "namespace": "kube-system"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }
    post(sandbox, "/apis/apps/v1/namespaces/kube-system/daemonsets", manifest)


def test_a_critical_pod_needs_a_quota_that_allows_it(core: CoreV1Api) -> None:
    container = {"name": "all", "image": "busybox:1.36"}
    pod = {
        "metadata": {"generateName": "critical-"},
        "spec": {"priorityClassName": "system-node-critical", "containers": [container]},
    }
    with pytest.raises(ApiException, match="insufficient quota to match these scopes"):
        core.create_namespaced_pod("default", pod)
    core.create_namespaced_pod("kube-system", pod, dry_run="All")


def test_a_pod_that_asks_for_gpus_tolerates_the_taint_and_sees_them(
    sandbox: Sandbox, core: CoreV1Api, make_pool: Callable[..., None]
) -> None:
    make_pool("shared", machine_type="g2-standard-4", accelerators=[TIME_SHARED])
    post(sandbox, PODS, gpu_pod("smi", "shared", ["nvidia-smi", "-L"]))
    until_pod(core, "smi", "Succeeded")
    pod = get(sandbox, f"{PODS}/smi")
    assert {"key": GPU, "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]
    assert "NVIDIA L4" in get(sandbox, f"{PODS}/smi/log")
    [node] = nodes_of(sandbox, "shared")
    assert allocatable(node) == "4"
    plain = gpu_pod(
        "plain", "shared", ["sh", "-c", f"exec 2>&1; nvidia-smi; {SMI}; LD_LIBRARY_PATH={NVIDIA}/lib64 {SMI} -L"]
    )
    plain["spec"]["containers"][0]["image"] = "busybox:1.36"
    post(sandbox, PODS, plain)
    until_pod(core, "plain", "Succeeded")
    not_found, no_library, line = get(sandbox, f"{PODS}/plain/log").splitlines()
    assert "nvidia-smi: not found" in not_found
    assert "couldn't find libnvidia-ml.so library" in no_library
    assert "NVIDIA L4" in line
    several = gpu_pod("several", "shared", ["nvidia-smi"])
    several["spec"]["containers"][0]["resources"]["limits"][GPU] = "2"
    post(sandbox, PODS, several)
    until_pod(core, "several", "Failed")
    status = get(sandbox, f"{PODS}/several")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "invalid request for sharing GPU (time-sharing), at most 1 nvidia.com/gpu" in status["message"]


def test_a_token_of_googles_opens_the_api_server(sandbox: Sandbox, gke: ClusterManagerClient) -> None:
    cluster = gke.get_cluster(name=sandbox.google.cluster.path)
    ca = base64.b64decode(cluster.master_auth.cluster_ca_certificate).decode()
    administrator = sandbox.google.administrator

    def who(token: str) -> tuple[int, str]:
        context = ssl.create_default_context(cadata=ca)
        request = urllib.request.Request(
            f"https://{cluster.endpoint}/apis/authentication.k8s.io/v1/selfsubjectreviews",
            data=json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, context=context, timeout=120) as reply:
                return reply.status, json.load(reply)["status"]["userInfo"]["username"]
        except urllib.error.HTTPError as error:
            return error.code, ""

    assert who(access_token(sandbox.google)) == (201, administrator.unique_id)
    assert who(access_token(sandbox.google, scopes=[*SCOPES, EMAIL_SCOPE])) == (201, administrator.email)
    assert who("ya29.made-up") == (401, "")


def test_a_resize_to_zero_evicts_and_a_preempted_node_ends_its_pods(
    sandbox: Sandbox, core: CoreV1Api, gke: ClusterManagerClient, make_pool: Callable[..., None]
) -> None:
    make_pool("spot", machine_type="g2-standard-4", spot=True)
    post(sandbox, PODS, gpu_pod("train", "spot", ["sleep", "600"]))
    until_pod(core, "train", "Running")
    [node] = nodes_of(sandbox, "spot")
    sandbox.google.preempt(node["metadata"]["name"])
    sandbox.advance(REAL.preemption_notice - 1)
    until_pod(core, "train", "Failed")
    pod = get(sandbox, f"{PODS}/train")
    assert pod["status"]["reason"] == "Terminated"
    disruption = next(one for one in pod["status"]["conditions"] if one["type"] == "DisruptionTarget")
    assert disruption["reason"] == "TerminationByKubelet"
    assert len(nodes_of(sandbox, "spot")) == 1
    sandbox.advance(1)
    assert nodes_of(sandbox, "spot") == []

    # The group makes it anew, under the same name.
    sandbox.advance(REAL.instance_delete + REAL.instance_create + BOOT)
    [again] = nodes_of(sandbox, "spot")
    assert again["metadata"]["name"] == node["metadata"]["name"]
    assert again["metadata"]["uid"] != node["metadata"]["uid"]

    post(sandbox, PODS, gpu_pod("again", "spot", ["sleep", "600"]))
    until_pod(core, "again", "Running")
    name = f"{sandbox.google.cluster.path}/nodePools/spot"
    gke.set_node_pool_size(request={"name": name, "node_count": 0})
    sandbox.advance(REAL.operation_pending)
    assert get(sandbox, f"{PODS}/again")["kind"] == "Status"  # evicted
    assert len(nodes_of(sandbox, "spot")) == 1
    sandbox.advance(minutes=1)
    assert nodes_of(sandbox, "spot") == []
    assert gke.get_node_pool(name=name).status == NodePool.Status.RUNNING
    assert sandbox.describe()["groups"]


def test_an_upgrade_in_mid_run_brings_another_node_and_evicts_what_runs(
    sandbox: Sandbox, core: CoreV1Api, gke: ClusterManagerClient, make_pool: Callable[..., None]
) -> None:
    make_pool("upgraded", machine_type="g2-standard-4")
    post(sandbox, PODS, gpu_pod("night", "upgraded", ["sleep", "600"]))
    until_pod(core, "night", "Running")
    [old] = nodes_of(sandbox, "upgraded")
    api = ControlApiClient(url=sandbox.control_api.url, token=sandbox.control_api.token)
    with pytest.raises(ControlApiError, match="no node pool is named 'other'"):
        api.call("POST", "/upgrade-nodes", {"group": "other"})
    assert api.call("POST", "/upgrade-nodes", {"group": "upgraded"}) == {"began": True}
    sandbox.advance(GROW - 1)
    assert "deletionTimestamp" not in get(sandbox, f"{PODS}/night")["metadata"]
    sandbox.advance(1)
    assert get(sandbox, f"{PODS}/night")["kind"] == "Status"
    sandbox.advance(minutes=1)
    [new] = [node["metadata"]["name"] for node in nodes_of(sandbox, "upgraded")]
    assert new != old["metadata"]["name"]
    assert new in str(sandbox.describe()["groups"])
    pool = f"{sandbox.google.cluster.path}/nodePools/upgraded"
    assert gke.get_node_pool(name=pool).status == NodePool.Status.RUNNING


TIME_SHARED = AcceleratorConfig(
    accelerator_type="nvidia-l4",
    accelerator_count=1,
    gpu_sharing_config=GPUSharingConfig(
        gpu_sharing_strategy=GPUSharingConfig.GPUSharingStrategy.TIME_SHARING, max_shared_clients_per_gpu=4
    ),
)


def gpu_pod(name: str, pool: str, command: list[str]) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "nvidia/cuda:12.8.0-base-ubuntu24.04",
        "command": command,
        "resources": {"limits": {GPU: "1"}},
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 2,
        "nodeSelector": {"cloud.google.com/gke-nodepool": pool},
        "containers": [container],
    }
    return {"metadata": {"name": name}, "spec": spec}


def post(sandbox: Sandbox, path: str, body: dict[str, Any]) -> None:
    status, reply = sandbox.control_plane.request("POST", path, body)
    assert status == 201, reply

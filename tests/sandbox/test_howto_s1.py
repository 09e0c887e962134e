"""S1, GKE: a whole cluster for one night, spot GPUs, a driver DaemonSet, nvidia-smi, and nothing left.

With sizes set by this package, and with GKE's own autoscaler, as the how-to has it.

Airflow's GKE operators have no setting for an endpoint: their hook's client is pointed at the sandbox here, and waits
for operations in less than its 15 seconds. Nothing else is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from airflow.providers.google.cloud.hooks import kubernetes_engine
from google.cloud.container_v1 import ClusterManagerClient
from kubernetes import client, config

from airflow_gpu_provider.addons.device_plugin import PLUGIN_NAMESPACE
from gpu_sandbox.google import GoogleTimings
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.example_dags import load, run_tasks
from tests.sandbox.release_delay import LONGEST, release_delay
from tests.sandbox.running import eventually

pytestmark = pytest.mark.nightly

POOL = "airflow-gpu-provider/pool=night-gpu"


@pytest.fixture(scope="module")
def project() -> Iterator[Sandbox]:
    """A project without a cluster."""
    timings = GoogleTimings(cluster_create=0.5, cluster_delete=0.3, node_pool_create=0.3, driver=0.5)
    with Sandbox(platform="gke", cluster_name="yesterday", boot_seconds=0.5, timings=timings) as sandbox:
        gke = manager(sandbox)
        gke.delete_cluster(name=sandbox.google.cluster.path)
        eventually(lambda: not gke.list_clusters(parent=place(sandbox)).clusters)
        yield sandbox


@pytest.fixture
def core(project: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[client.CoreV1Api]:
    for name, value in project.env().items():
        monkeypatch.setenv(name, value)
    variables = {"PROJECT": project.google.project_id, "LOCATION": project.google.location}
    for name, value in variables.items():
        monkeypatch.setenv(f"AIRFLOW_VAR_GPU_{name}", value)
    monkeypatch.setenv("AIRFLOW_VAR_SMOKE_IMAGE", "nvidia/cuda:12.8.1-base-ubuntu24.04")
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    monkeypatch.setattr(kubernetes_engine.GKEHook, "get_cluster_manager_client", lambda hook: manager(project))
    monkeypatch.setattr(kubernetes_engine, "OPERATIONAL_POLL_INTERVAL", 0.2)
    with config.new_client_from_config(str(project.kubeconfig)) as api:
        yield client.CoreV1Api(api)


def manager(sandbox: Sandbox) -> ClusterManagerClient:
    from google.oauth2.service_account import Credentials

    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    credentials = Credentials.from_service_account_info(sandbox.google.keyfile(), scopes=scopes)
    endpoint = {"api_endpoint": sandbox.google.endpoint_url}
    return ClusterManagerClient(credentials=credentials, transport="rest", client_options=endpoint)


def place(sandbox: Sandbox) -> str:
    return f"projects/{sandbox.google.project_id}/locations/{sandbox.google.location}"


@pytest.mark.parametrize("scaling", ["direct", "autoscaler"])
def test_a_cluster_for_one_night(
    project: Sandbox, core: client.CoreV1Api, capsys: pytest.CaptureFixture[str], scaling: str
) -> None:
    gke = manager(project)
    example = load("whole_cluster_gke")
    for task in example.tasks:
        if hasattr(task, "gpu_pool"):
            task.gpu_pool = replace(task.gpu_pool, scaling=scaling)
    seen: dict[str, Any] = {}

    def look(task_id: str) -> None:
        if task_id == "create_cluster":
            eventually(lambda: len(machines(core, "system")) == len(project.zones))
        seen[task_id] = {
            "clusters": [each.name for each in gke.list_clusters(parent=place(project)).clusters],
            "gpu nodes": core.list_node(label_selector=POOL).items,
            "cpu nodes": machines(core, "system"),
        }
        if task_id == "nvidia_smi":
            daemon_sets = client.AppsV1Api(core.api_client).list_namespaced_daemon_set(PLUGIN_NAMESPACE).items
            pools = project.google.node_pools
            scaled = [pools.get(each).settings.autoscaling for each in pools.pools if each.startswith("night-gpu-")]
            seen[task_id]["driver"] = [each.metadata.name for each in daemon_sets]
            seen[task_id]["limits"] = {(each.min_node_count, each.max_node_count) for each in scaled}

    with release_delay(project) as delay:
        results = run_tasks(example, watch=look)
    log = capsys.readouterr().out

    # A CPU node in each zone, which stay as long as the cluster does; and no GPU node before the block.
    without_gpus = {"clusters": ["gpu-night"], "gpu nodes": [], "cpu nodes": ["e2-standard-2"] * len(project.zones)}
    assert seen["create_cluster"] == without_gpus
    (node,) = seen["nvidia_smi"]["gpu nodes"]
    assert node.status.allocatable["nvidia.com/gpu"] == "4"
    assert node.metadata.labels["cloud.google.com/gke-spot"] == "true"
    assert results["night-gpu.device_plugin"]["served_by"] == "GKE"

    # The wait is explained, the pod's own words come back, and the waste has its price.
    assert "+ night-gpu-a-n1-standard-16-spot: n1-standard-16 spot in us-central1-a, 4 x nvidia-tesla-t4" in log
    if scaling == "direct":
        assert "night-gpu-a-n1-standard-16-spot 0->1, wanted by" in log
        assert f"node {node.metadata.name} is Ready" in log
    else:
        # FailedScheduling and TriggeredScaleUp, in words; a busy trigger may hear of both at once, and of the node.
        assert re.search(r"waits for a node: 0/\d nodes are available", log)
        assert re.search(r"cluster-autoscaler grew gke-gpu-night-night-gpu-\w-n1-stand-\w+-grp 0->1", log)
    assert "NVIDIA-SMI" in log
    assert seen["nvidia_smi"]["driver"] == ["nvidia-driver-installer-night-gpu"]
    assert seen["nvidia_smi"]["limits"] == {(0, 0) if scaling == "direct" else (0, 2)}
    assert "leaves 3 idle, 0.55 of the node's 0.74 USD an hour" in log

    # Seconds after the pod the GPU node is gone, the CPU node is not; and then the cluster.
    assert delay.seconds <= LONGEST
    assert seen["night-gpu.scale_down"] == without_gpus
    assert seen["delete_cluster"]["clusters"] == []
    assert not project.google.describe_groups()
    eventually(lambda: not machines(core, "system"))


def machines(core: client.CoreV1Api, node_pool: str) -> list[str]:
    """The machine types of a node pool's nodes."""
    nodes = core.list_node(label_selector=f"cloud.google.com/gke-nodepool={node_pool}").items
    return [node.metadata.labels["node.kubernetes.io/instance-type"] for node in nodes]

"""S2, GKE: quota first, one of several GPU types, a driver DaemonSet with an image of one's own, and a Deployment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from airflow.sdk import DAG
from kubernetes import client, config

from airflow_gpu_provider import DeleteGpuPoolOperator
from airflow_gpu_provider.addons.device_plugin import PLUGIN_NAMESPACE
from airflow_gpu_provider.errors import QuotaExceeded
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.example_dags import load, rendered, run_tasks
from tests.sandbox.release_delay import LONGEST, release_delay
from tests.sandbox.running import eventually, run

pytestmark = pytest.mark.nightly

POOL = "airflow-gpu-provider/pool=serving-gpu"
DRIVER = "registry.example.com/nvidia-driver-installer:580"


@pytest.fixture
def on_gke(gke_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[client.ApiClient]:
    """The cluster, and Airflow as the example wants it: two connections, five Variables."""
    variables = {
        "GPU_PROJECT": gke_sandbox.google.project_id,
        "GPU_LOCATION": gke_sandbox.google.location,
        "GPU_CLUSTER": gke_sandbox.cluster_name,
        "DRIVER_IMAGE": DRIVER,
        "SERVING_IMAGE": "nvidia/cuda:12.8.1-base-ubuntu24.04",
    }
    for name, value in gke_sandbox.env().items():
        monkeypatch.setenv(name, value)
    for name, value in variables.items():
        monkeypatch.setenv(f"AIRFLOW_VAR_{name}", value)
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    try:
        with config.new_client_from_config(str(gke_sandbox.kubeconfig)) as api:
            yield api
    finally:
        gke_sandbox.faults.clear()


def node_pools(gke_sandbox: Sandbox) -> set[str]:
    return {name for name in gke_sandbox.google.node_pools.pools if name.startswith("serving-gpu-")}


def test_a_quota_that_is_too_small_is_named_and_nothing_is_created(
    gke_sandbox: Sandbox, on_gke: client.ApiClient
) -> None:
    for gpu in ("L4", "T4"):
        gke_sandbox.faults.set_quota(f"NVIDIA_{gpu}_GPUS", 0)
        gke_sandbox.faults.set_quota(f"PREEMPTIBLE_NVIDIA_{gpu}_GPUS", 0)
    calls = gke_sandbox.google.calls
    with pytest.raises(QuotaExceeded, match=r"NVIDIA_L4_GPUS in us-central1 is 0, 0 are used, 1 more are needed") as no:
        run_tasks(load("deployment_on_gpus_gke"))
    assert "NVIDIA_T4_GPUS in us-central1 is 0" in str(no.value)
    assert "Request a higher NVIDIA_L4_GPUS" in str(no.value)
    assert gke_sandbox.google.calls["container:CreateNodePool"] == calls["container:CreateNodePool"]


def test_the_deployment_runs_on_the_type_that_has_quota_and_leaves_zero(
    gke_sandbox: Sandbox, on_gke: client.ApiClient
) -> None:
    gke_sandbox.faults.set_quota("NVIDIA_L4_GPUS", 0)
    gke_sandbox.faults.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 0)
    example = load("deployment_on_gpus_gke")
    core, apps = client.CoreV1Api(on_gke), client.AppsV1Api(on_gke)
    said: list[str] = []
    served: list[tuple[client.V1Node, client.V1Pod]] = []

    def watch(task_id: str) -> None:
        if task_id == "until_ready":
            said.append(eventually(lambda: log_of_the_pod(core)))
            served.append((*core.list_node(label_selector=POOL).items, the_pod(core)))

    with release_delay(gke_sandbox) as delay:
        results = run_tasks(example, watch=watch)

    (node,) = results["serving-gpu.ensure"]["nodes"]
    assert node["instance_type"] == "n1-standard-4"
    assert results["serving-gpu.device_plugin"]["nodes"] == {node["name"]: 1}
    (installer,) = apps.list_namespaced_daemon_set(PLUGIN_NAMESPACE, label_selector=POOL).items
    assert installer.spec.template.spec.init_containers[0].image == DRIVER
    assert results["until_ready"] == node["name"]
    # One replica with a limit of one GPU sees one: a T4, on the only node, of the second type of the list.
    assert said[0].count("GPU ") == 1
    assert "GPU 0: Tesla T4" in said[0]
    ((machine, pod),) = served
    assert machine.metadata.labels["cloud.google.com/gke-accelerator"] == "nvidia-tesla-t4"
    assert machine.status.allocatable["nvidia.com/gpu"] == "1"
    assert pod.spec.containers[0].resources.limits["nvidia.com/gpu"] == "1"
    settings = gke_sandbox.google.node_pools.get(machine.metadata.labels["cloud.google.com/gke-nodepool"]).settings
    assert (settings.config.machine_type, settings.config.accelerators[0].accelerator_count) == ("n1-standard-4", 1)
    # The platform's own taint, which keeps other pods away, and the toleration that asking for a GPU adds.
    assert ("nvidia.com/gpu", "NoSchedule") in {(taint.key, taint.effect) for taint in machine.spec.taints}
    assert "nvidia.com/gpu" in {toleration.key for toleration in pod.spec.tolerations}

    assert delay.seconds <= LONGEST
    assert (results["serving-gpu.scale_down"]["nodes"], results["serving-gpu.scale_down"]["desired"]) == (0, 0)
    assert not core.list_node(label_selector=POOL).items
    assert not core.list_namespaced_pod("default", label_selector="app=gpu-serving").items
    delete(example)
    assert not node_pools(gke_sandbox)


def the_pod(core: client.CoreV1Api) -> client.V1Pod:
    (pod,) = core.list_namespaced_pod("default", label_selector="app=gpu-serving").items
    return pod


def log_of_the_pod(core: client.CoreV1Api) -> str:
    reply = core.read_namespaced_pod_log(the_pod(core).metadata.name, "default", _preload_content=False)
    return str(reply.data.decode())


def delete(example: DAG) -> None:
    ensure, _ = rendered(example.get_task("serving-gpu.ensure"))
    run(DeleteGpuPoolOperator(task_id="delete", gpu_pool=ensure.gpu_pool))

"""S0, EKS and GKE: one pool, train-gpu, of 0..1 nodes; the label that jobs select; the plugin or driver; zero.

Each with sizes set by this package, and with an autoscaler that grows the pool from zero by what the pool tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG, task
from kubernetes import client, config, watch

from airflow_gpu_provider import (
    DeleteGpuPoolOperator,
    EksGpuPool,
    GkeGpuPool,
    GpuPodOperator,
    gpu_nodes,
)
from airflow_gpu_provider.addons.cluster_autoscaler import manifest_for
from airflow_gpu_provider.addons.device_plugin import PLUGIN_NAMESPACE
from airflow_gpu_provider.pools import GpuPool
from gpu_sandbox.aws.observer import aws_client
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.example_dags import run_tasks
from tests.sandbox.release_delay import LONGEST, release_delay
from tests.sandbox.running import run, until_it_reports

COMMON: dict[str, Any] = {"name": "train-gpu", "max_nodes": 1, "node_labels": {"role": "train-gpu"}}
TRAIN = "nvidia-smi -L"
# As the how-to's jobs are: it knows the label, and nothing of this package.
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train-job}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      nodeSelector: {role: train-gpu}
      containers:
        - name: train
          image: nvidia/cuda:12.8.1-base-ubuntu24.04
          command: [sh, -c, nvidia-smi -L]
          resources: {limits: {nvidia.com/gpu: 1}}
"""


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Sandbox], client.ApiClient]]:
    """Points this test's clients at a sandbox."""
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    apis: list[client.ApiClient] = []

    def enter(sandbox: Sandbox) -> client.ApiClient:
        for name, value in sandbox.env().items():
            monkeypatch.setenv(name, value)
        apis.append(config.new_client_from_config(str(sandbox.kubeconfig)))
        return apis[-1]

    yield enter
    for api in apis:
        api.close()


def how_to(pool: GpuPool, api: client.ApiClient) -> DAG:
    """The how-to's own job, and then a training."""
    with DAG("s0", schedule=None, start_date=datetime(2026, 1, 1)) as dag, gpu_nodes(pool, gpus=1):

        @task
        def job() -> str:
            """Run the Job to its end; return the name of the node that it ran on."""
            batch, core = client.BatchV1Api(api), client.CoreV1Api(api)
            batch.create_namespaced_job("default", yaml.safe_load(JOB))
            this = {"field_selector": "metadata.name=train-job", "timeout_seconds": 240}
            for event in watch.Watch().stream(batch.list_namespaced_job, "default", **this):
                if event["object"].status.succeeded:
                    break
            else:
                raise TimeoutError("train-job has not succeeded")
            (pod,) = core.list_namespaced_pod("default", label_selector="job-name=train-job").items
            batch.delete_namespaced_job("train-job", "default", propagation_policy="Background")
            return str(pod.spec.node_name)

        image = "nvidia/cuda:12.8.1-base-ubuntu24.04"
        train = GpuPodOperator(task_id="train", gpus=1, image=image, cmds=["sh", "-c", TRAIN])
        job() >> train
    return dag


def from_nothing_to_zero(pool: GpuPool, api: client.ApiClient, sandbox: Sandbox) -> dict[str, Any]:
    """Run it, and hold what is so on each platform; return what the tasks returned, and the node while it was there."""
    core = client.CoreV1Api(api)
    if pool.scaling == "autoscaler":
        until_it_reports(core)
    nodes: dict[str, list[client.V1Node]] = {}

    def look(task_id: str) -> None:
        nodes[task_id] = core.list_node(label_selector="airflow-gpu-provider/pool=train-gpu").items

    with release_delay(sandbox) as delay:
        results = run_tasks(how_to(pool, api), watch=look)
    # An autoscaler has brought no node until the job asks for one.
    brought = [len(nodes[task_id]) for task_id in ("train-gpu.ensure", "job")]
    assert brought == ([1, 1] if pool.scaling == "direct" else [0, 1])
    (node,) = nodes["train"]
    assert node.metadata.labels["role"] == "train-gpu"
    assert node.status.allocatable["nvidia.com/gpu"] == "1"
    assert results["job"] == node.metadata.name
    scaled_down = results["train-gpu.scale_down"]
    assert (scaled_down["nodes"], scaled_down["desired"], scaled_down["kept"]) == (0, 0, [])
    assert nodes["train-gpu.scale_down"] == []
    assert delay.seconds <= LONGEST
    return {**results, "node": node}


def delete(pool: GpuPool) -> None:
    run(DeleteGpuPoolOperator(task_id="delete", gpu_pool=pool))


def is_tuned(pool: GpuPool) -> None:
    """The how-to ends with the flags to tune: here they are arguments of a task."""
    flags = ["--scale-down-unneeded-time=3m", "--scan-interval=20s", "--skip-nodes-with-system-pods=false"]
    text = manifest_for(pool, flags=flags, role_arn=None)
    (deployment,) = (each for each in yaml.safe_load_all(text) if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    command = [*container["command"], *container["args"]]
    assert command[-3:] == flags
    discovery = "asg:tag=k8s.io/cluster-autoscaler/enabled,k8s.io/cluster-autoscaler/k8s-ml"
    assert f"--node-group-auto-discovery={discovery}" in command


def tags_of(gpu_sandbox: Sandbox, asg_name: str) -> dict[str, str]:
    """What cluster-autoscaler reads of an Auto Scaling group."""
    asg = aws_client(gpu_sandbox.aws, "autoscaling")
    (group,) = asg.describe_auto_scaling_groups(AutoScalingGroupNames=[asg_name])["AutoScalingGroups"]
    return {tag["Key"]: tag["Value"] for tag in group["Tags"]}


def by_day(way: str) -> Any:
    """`make test` takes one way to scale a pool; test_same_dag.py and test_autoscaler_mode.py have more of both."""
    ways = ("direct", "autoscaler")
    marked = [pytest.param(each, marks=() if each == way else pytest.mark.nightly) for each in ways]
    return pytest.mark.parametrize("scaling", marked)


@by_day("autoscaler")
def test_on_eks(gpu_sandbox: Sandbox, enter: Callable[[Sandbox], client.ApiClient], scaling: str) -> None:
    pool = EksGpuPool(
        cluster_name=gpu_sandbox.cluster_name,
        region=gpu_sandbox.region,
        instance_types=["p3.2xlarge"],
        zones=["us-west-2a"],
        taints=(),
        scaling=scaling,
        **COMMON,
    )
    api = enter(gpu_sandbox)
    results = from_nothing_to_zero(pool, api, gpu_sandbox)

    assert results["node"].metadata.labels["node.kubernetes.io/instance-type"] == "p3.2xlarge"
    eks = aws_client(gpu_sandbox.aws, "eks")
    name = "train-gpu-a-p3-2xlarge"
    group = eks.describe_nodegroup(clusterName=gpu_sandbox.cluster_name, nodegroupName=name)["nodegroup"]
    assert group["scalingConfig"] == {"minSize": 0, "maxSize": 1, "desiredSize": 0}
    assert group["labels"]["role"] == "train-gpu"
    if scaling == "autoscaler":
        tags = tags_of(gpu_sandbox, group["resources"]["autoScalingGroups"][0]["name"])
        assert tags["k8s.io/cluster-autoscaler/node-template/label/role"] == "train-gpu"
        assert tags["k8s.io/cluster-autoscaler/node-template/resources/nvidia.com/gpu"] == "1"
        assert tags["k8s.io/cluster-autoscaler/enabled"]
        is_tuned(pool)
    # NVIDIA's plugin, applied by the package, for this pool's nodes only.
    served_by = results["train-gpu.device_plugin"]["served_by"]
    plugin = client.AppsV1Api(api).read_namespaced_daemon_set(served_by.rpartition("/")[2], PLUGIN_NAMESPACE)
    assert "k8s-device-plugin" in plugin.spec.template.spec.containers[0].image
    assert "train-gpu" in str(plugin.spec.template.spec.affinity)
    client.AppsV1Api(api).delete_namespaced_daemon_set(plugin.metadata.name, PLUGIN_NAMESPACE)
    delete(pool)


@by_day("direct")
def test_on_gke(gke_sandbox: Sandbox, enter: Callable[[Sandbox], client.ApiClient], scaling: str) -> None:
    pool = GkeGpuPool(
        project_id=gke_sandbox.google.project_id,
        location=gke_sandbox.google.location,
        cluster_name=gke_sandbox.cluster_name,
        machine_types=["n1-standard-4"],
        accelerator={"type": "nvidia-tesla-k80", "count": 1},
        node_locations=["us-central1-a"],
        driver="daemonset",
        scaling=scaling,
        **COMMON,
    )
    api = enter(gke_sandbox)
    results = from_nothing_to_zero(pool, api, gke_sandbox)

    labels = results["node"].metadata.labels
    assert labels["node.kubernetes.io/instance-type"] == "n1-standard-4"
    assert labels["cloud.google.com/gke-accelerator"] == "nvidia-tesla-k80"
    assert labels["topology.kubernetes.io/zone"] == "us-central1-a"
    (name,) = (each for each in gke_sandbox.google.node_pools.pools if each.startswith("train-gpu-a-"))
    settings = gke_sandbox.google.node_pools.get(name).settings
    assert dict(settings.config.labels)["role"] == "train-gpu"
    autoscaling = settings.autoscaling
    limits = (autoscaling.enabled, autoscaling.min_node_count, autoscaling.max_node_count)
    assert limits == ((True, 0, 1) if scaling == "autoscaler" else (False, 0, 0))
    # The COS driver installer, for this pool's nodes; the plugin is GKE's own.
    assert results["train-gpu.device_plugin"]["served_by"] == "GKE"
    installer = client.AppsV1Api(api).read_namespaced_daemon_set("nvidia-driver-installer-train-gpu", PLUGIN_NAMESPACE)
    assert installer.spec.template.spec.init_containers[0].image == "cos-nvidia-installer:fixed"
    client.AppsV1Api(api).delete_namespaced_daemon_set(installer.metadata.name, PLUGIN_NAMESPACE)
    delete(pool)

"""S4, EKS: one pool over three zones, on spot; ten one-GPU pods of a Deployment at once, spread; then back to zero.

With sizes set by this package, and with cluster-autoscaler, which knows the three groups by their tags alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk import DAG
from kubernetes import client, config

from airflow_gpu_provider import DeleteGpuPoolOperator
from airflow_gpu_provider.addons.device_plugin import PLUGIN_NAMESPACE
from gpu_sandbox.aws.observer import aws_client
from gpu_sandbox.faults import Stockout
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.example_dags import load, rendered, run_tasks
from tests.sandbox.release_delay import LONGEST, release_delay
from tests.sandbox.running import eventually, run, until_it_reports

pytestmark = pytest.mark.nightly

ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")
POOL = "airflow-gpu-provider/pool=gpu-fleet"


@pytest.fixture
def core(gpu_sandbox: Sandbox, gpu_sandbox_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> client.CoreV1Api:
    """The cluster, and Airflow as the example wants it: two connections, three Variables."""
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setenv("AIRFLOW_VAR_GPU_CLUSTER", gpu_sandbox.cluster_name)
    monkeypatch.setenv("AIRFLOW_VAR_GPU_REGION", gpu_sandbox.region)
    monkeypatch.setenv("AIRFLOW_VAR_FLEET_IMAGE", "nvidia/cuda:12.8.1-base-ubuntu24.04")
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    return client.CoreV1Api(config.new_client_from_config(str(gpu_sandbox.kubeconfig)))


def fleet_groups(gpu_sandbox: Sandbox) -> dict[str, dict[str, Any]]:
    """The pool's node groups, as EKS describes them."""
    eks = aws_client(gpu_sandbox.aws, "eks")
    names = eks.get_paginator("list_nodegroups").paginate(clusterName=gpu_sandbox.cluster_name).search("nodegroups")
    described = (eks.describe_nodegroup(clusterName=gpu_sandbox.cluster_name, nodegroupName=name) for name in names)
    return {g["nodegroup"]["nodegroupName"]: g["nodegroup"] for g in described if "gpu-fleet" in str(g)}


def general_group(gpu_sandbox: Sandbox) -> dict[str, Any]:
    """The group of the cluster's own pods, as EKS describes it."""
    eks = aws_client(gpu_sandbox.aws, "eks")
    return dict(eks.describe_nodegroup(clusterName=gpu_sandbox.cluster_name, nodegroupName="system")["nodegroup"])


def test_ten_pods_over_three_zones_and_back_to_zero(gpu_sandbox: Sandbox, core: client.CoreV1Api) -> None:
    example = load("deployment_on_gpus_eks")
    general = general_group(gpu_sandbox)
    on_nodes: dict[str, list[client.V1Node]] = {}

    def watch(task_id: str) -> None:
        on_nodes[task_id] = fleet_nodes(core)

    with release_delay(gpu_sandbox) as delay:
        results = run_tasks(example, watch=watch)

    nodes = results["gpu-fleet.ensure"]["nodes"]
    assert (len(nodes), {node["capacity_type"] for node in nodes}) == (10, {"SPOT"})
    assert {node["instance_type"] for node in nodes} == {"g6.xlarge"}
    assert sorted(spread(node["zone"] for node in nodes).values()) == [3, 3, 4]
    assert results["gpu-fleet.device_plugin"]["nodes"] == {node["name"]: 1 for node in nodes}
    for node in on_nodes["deploy"]:
        assert ("nvidia.com/gpu", "true", "NoSchedule") in {(t.key, t.value, t.effect) for t in node.spec.taints}

    # The plugin tolerates the taint, and has an affinity to the pool's nodes.
    served_by = results["gpu-fleet.device_plugin"]["served_by"].rpartition("/")[2]
    plugin = (
        client.AppsV1Api(core.api_client).read_namespaced_daemon_set(served_by, PLUGIN_NAMESPACE).spec.template.spec
    )
    assert "nvidia.com/gpu" in {toleration.key for toleration in plugin.tolerations}
    assert "gpu-fleet" in str(plugin.affinity.node_affinity)

    # One GPU on each node and ten pods at once: each pod has a node of its own, and the zones theirs.
    assert results["until_ready"] == spread(node["zone"] for node in nodes)
    assert len(on_nodes["until_ready"]) == 10

    # One group for each zone and market, none over several zones, all scalable to 0, and at 0.
    # The cluster's general group is none of them, and as it was.
    assert general_group(gpu_sandbox) == general
    groups = fleet_groups(gpu_sandbox)
    assert {name.removeprefix("gpu-fleet-") for name in groups} == {
        f"{zone[-1]}-g6-xlarge{market}" for zone in ZONES for market in ("", "-spot")
    }
    assert {len(group["subnets"]) for group in groups.values()} == {1}
    assert {(g["scalingConfig"]["minSize"], g["scalingConfig"]["desiredSize"]) for g in groups.values()} == {(0, 0)}
    assert (results["gpu-fleet.scale_down"]["nodes"], results["gpu-fleet.scale_down"]["kept"]) == (0, [])
    assert fleet_nodes(core) == []
    assert not core.list_namespaced_pod("default", label_selector="app=gpu-fleet").items

    # The last pod's end and the last of the ten calls that take the machines away are seconds apart.
    assert delay.seconds <= LONGEST

    delete(example)
    assert fleet_groups(gpu_sandbox) == {}


def test_where_spot_runs_out_the_rest_comes_on_demand(gpu_sandbox: Sandbox, core: client.CoreV1Api) -> None:
    example = load("deployment_on_gpus_eks")
    for zone in ZONES[:2]:
        gpu_sandbox.faults.add(Stockout(zone=zone))
    gpu_sandbox.faults.add(Stockout(market="spot"))
    try:
        with release_delay(gpu_sandbox) as delay:
            results = run_tasks(example)
    finally:
        gpu_sandbox.faults.clear()
    assert delay.seconds <= LONGEST
    nodes = results["gpu-fleet.ensure"]["nodes"]
    assert {(node["zone"], node["capacity_type"]) for node in nodes} == {(ZONES[2], "ON_DEMAND")}
    assert results["until_ready"] == {ZONES[2]: 10}
    assert (results["gpu-fleet.scale_down"]["nodes"], results["gpu-fleet.scale_down"]["desired"]) == (0, 0)
    delete(example)


def test_cluster_autoscaler_brings_the_nodes_when_the_pods_ask(gpu_sandbox: Sandbox, core: client.CoreV1Api) -> None:
    until_it_reports(core)
    example = load("deployment_on_gpus_eks")
    for task in example.tasks:
        if hasattr(task, "gpu_pool"):
            task.gpu_pool = replace(task.gpu_pool, scaling="autoscaler", capacity_types=["SPOT"])
    nodes: dict[str, int] = {}

    def waiting() -> int:
        pods = core.list_namespaced_pod("default", label_selector="app=gpu-fleet").items
        reasons = [{each.reason for each in pod.status.conditions or ()} for pod in pods]
        return sum("Unschedulable" in found for found in reasons)

    def watch(task_id: str) -> None:
        """The autoscaler sees all pods in one scan: a group that has a node is no longer like those without."""
        nodes[task_id] = len(fleet_nodes(core))
        if task_id == "gpu-fleet.device_plugin":
            gpu_sandbox.faults.autoscaler_dead = True
        if task_id == "deploy":
            eventually(lambda: waiting() == 10)
            gpu_sandbox.faults.clear()

    try:
        with release_delay(gpu_sandbox) as delay:
            results = run_tasks(example, watch=watch)
    finally:
        gpu_sandbox.faults.clear()

    assert (nodes["gpu-fleet.ensure"], nodes["until_ready"]) == (0, 10)
    assert sorted(results["until_ready"]) == list(ZONES)
    assert sorted(results["until_ready"].values()) == [3, 3, 4]
    groups = fleet_groups(gpu_sandbox)
    assert len(groups) == 3
    asg = aws_client(gpu_sandbox.aws, "autoscaling")
    for group in groups.values():
        name = group["resources"]["autoScalingGroups"][0]["name"]
        (described,) = asg.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        tags = {tag["Key"]: tag["Value"] for tag in described["Tags"]}
        assert tags["k8s.io/cluster-autoscaler/node-template/taint/nvidia.com/gpu"] == "true:NoSchedule"
        assert tags["k8s.io/cluster-autoscaler/node-template/label/k8s.amazonaws.com/accelerator"]
        assert tags["k8s.io/cluster-autoscaler/k8s-ml"]

    # Nobody waits for the autoscaler's ten minutes.
    assert delay.seconds <= LONGEST
    assert (results["gpu-fleet.scale_down"]["nodes"], results["gpu-fleet.scale_down"]["desired"]) == (0, 0)
    assert nodes["gpu-fleet.scale_down"] == 0
    delete(example)


def fleet_nodes(core: client.CoreV1Api) -> list[client.V1Node]:
    return list(core.list_node(label_selector=POOL).items)


def spread(zones: Any) -> dict[str, int]:
    """How many there are of each."""
    found = list(zones)
    return {zone: found.count(zone) for zone in sorted(set(found))}


def delete(example: DAG) -> None:
    """Leave no group to the next test."""
    ensure, _ = rendered(example.get_task("gpu-fleet.ensure"))
    run(DeleteGpuPoolOperator(task_id="delete", gpu_pool=ensure.gpu_pool))

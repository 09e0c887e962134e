"""Nodes whose image brings the device plugin, or no driver, or that join without the pool's labels and taints."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import boto3
import pytest

from airflow_gpu_provider import EksGpuPool, EnsureGpuPoolOperator, InstallDevicePluginOperator, ScaleDownSensor
from airflow_gpu_provider.errors import GpusNotAllocatable
from gpu_sandbox import machines
from gpu_sandbox.eks_cluster import SYSTEM_GROUP
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import run


@pytest.fixture(autouse=True)
def environment(gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in gpu_sandbox.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")


@pytest.fixture
def pools(gpu_sandbox: Sandbox) -> Iterator[list[EksGpuPool]]:
    """The pools that a test has nodes of: their nodes go when it ends."""
    pools: list[EksGpuPool] = []
    yield pools
    for pool in pools:
        run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))


def with_a_node(pools: list[EksGpuPool], sandbox: Sandbox, name: str, **fields: Any) -> EksGpuPool:
    pool = EksGpuPool(name=name, cluster_name=sandbox.cluster_name, region=sandbox.region, **{"max_nodes": 1, **fields})
    pools.append(pool)
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=1, deferrable=False))
    return pool


def node_of(sandbox: Sandbox, pool: EksGpuPool) -> dict[str, Any]:
    selector = f"airflow-gpu-provider%2Fpool%3D{pool.name}"
    _, reply = sandbox.control_plane.request("GET", f"/api/v1/nodes?labelSelector={selector}")
    (node,) = reply["items"]
    return dict(node)


def test_bottlerocket_brings_the_plugin(gpu_sandbox: Sandbox, pools: list[EksGpuPool]) -> None:
    pool = with_a_node(
        *(pools, gpu_sandbox, "rocket"),
        instance_types=["g6.xlarge"],
        zones=gpu_sandbox.zones[:1],
        ami_type="BOTTLEROCKET_x86_64_NVIDIA",
    )
    installed = run(InstallDevicePluginOperator(task_id="plugin", gpu_pool=pool, deferrable=False))
    assert (installed["served_by"], installed["change"]) == ("node image Bottlerocket", "unchanged")
    assert list(installed["nodes"].values()) == [1]
    assert node_of(gpu_sandbox, pool)["status"]["allocatable"]["ephemeral-storage"] == "20Gi"


def test_an_image_without_a_driver_is_named_with_one_that_has_it(gpu_sandbox: Sandbox, pools: list[EksGpuPool]) -> None:
    """A group that somebody made without saying which image: EKS's default has no driver."""
    eks = boto3.client("eks", region_name=gpu_sandbox.region)
    described = eks.describe_nodegroup(clusterName=gpu_sandbox.cluster_name, nodegroupName=SYSTEM_GROUP)
    group = {
        "clusterName": gpu_sandbox.cluster_name,
        "nodegroupName": "made-by-hand",
        "subnets": described["nodegroup"]["subnets"][:1],
        "nodeRole": described["nodegroup"]["nodeRole"],
        "instanceTypes": ["g6.xlarge"],
        "scalingConfig": {"minSize": 0, "maxSize": 1, "desiredSize": 0},
    }
    eks.create_nodegroup(**group)
    eks.get_waiter("nodegroup_active").wait(
        clusterName=group["clusterName"], nodegroupName="made-by-hand", WaiterConfig={"Delay": 1, "MaxAttempts": 60}
    )
    pool = with_a_node(pools, gpu_sandbox, "by-hand", manage="scale", node_groups=["made-by-hand"], taints=[])
    plugin = InstallDevicePluginOperator(
        task_id="plugin", gpu_pool=pool, deferrable=False, timeout=timedelta(seconds=5)
    )
    with pytest.raises(
        GpusNotAllocatable, match=r"The node runs Amazon Linux 2023.*like ami_type AL2023_x86_64_NVIDIA"
    ):
        run(plugin)


def test_a_node_that_joins_without_labels_and_taints_gets_them_at_once(
    gpu_sandbox: Sandbox, pools: list[EksGpuPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """EKS adds them to nodes of an AMI of one's own, and takes its time."""
    monkeypatch.setattr(machines, "_LATE_SECONDS", 3600)
    data = {"ImageId": "ami-12c6146b", "UserData": ""}
    boto3.client("ec2", region_name=gpu_sandbox.region).create_launch_template(
        LaunchTemplateName="own-image", LaunchTemplateData=data
    )
    pool = with_a_node(
        *(pools, gpu_sandbox, "own-image"),
        instance_types=["g6.xlarge"],
        zones=gpu_sandbox.zones[:1],
        ami_type="CUSTOM",
        launch_template="own-image",
    )
    (taint,) = (each for each in node_of(gpu_sandbox, pool)["spec"]["taints"] if each["key"] == "nvidia.com/gpu")
    assert (taint["value"], taint["effect"]) == ("true", "NoSchedule")

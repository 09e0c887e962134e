"""A gang on nodes with EFA: its ranks hold the interfaces that EFA's device plugin hands out."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from kubernetes import client

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.operators.delete import DeleteGpuPoolOperator
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.gpu_pools import eks_pool
from tests.sandbox.gpu_tasks import gang
from tests.sandbox.running import eventually, lines_of, run

pytestmark = pytest.mark.usefixtures("api", "now")


@pytest.fixture
def pool(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    return eks_pool(gpu_sandbox, "fast", instance_types=["p4d.24xlarge"], network="efa", max_nodes=2)


def test_a_gang_trains_over_efa(pool: EksGpuPool, gpu_sandbox: Sandbox, api: client.CoreV1Api) -> None:
    def nodes() -> list[dict[str, Any]]:
        found = api.list_node(label_selector=f"airflow-gpu-provider/pool={pool.name}").items
        return [node.status.allocatable for node in found]

    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=2, deferrable=False))
    assert [each.get("vpc.amazonaws.com/efa") for each in nodes()] == [None, None], "no image brings the plugin"
    install = InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=pool, deferrable=False)
    run(install)
    eventually(lambda: [each.get("vpc.amazonaws.com/efa") for each in nodes()] == ["4", "4"])
    _, said = lines_of(lambda: run(install))
    assert f"EFA's device plugin aws-efa-k8s-device-plugin-{pool.name}: unchanged" in said

    _, lines = lines_of(lambda: run(gang(pool, 'echo "by $FI_PROVIDER"', gpus=8, deferrable=False)))
    assert [lines.count(f"[rank {rank}] by efa") for rank in (0, 1)] == [1, 1]

    run(DeleteGpuPoolOperator(task_id="delete", gpu_pool=pool, force=True))
    ec2 = boto3.client("ec2", region_name=gpu_sandbox.region)
    names = [each["LaunchTemplateName"] for each in ec2.describe_launch_templates()["LaunchTemplates"]]
    assert not [name for name in names if pool.name in name]
    assert not ec2.describe_placement_groups()["PlacementGroups"]

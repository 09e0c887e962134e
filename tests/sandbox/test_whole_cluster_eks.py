"""An EKS cluster for one night, by the Amazon provider's operators, as they are: only their waits are shorter."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from kubernetes import client, config

from gpu_sandbox.sandbox_process import SandboxProcess
from tests.sandbox.example_dags import load, run_tasks
from tests.sandbox.release_delay import LONGEST
from tests.sandbox.running import eventually

POOL = "airflow-gpu-provider/pool=night-gpu"


@pytest.fixture(scope="module")
def account(gpu_sandbox_factory: Callable[..., SandboxProcess]) -> Iterator[dict[str, str]]:
    """An account without a cluster, with subnets and roles; the environment in which it is reached."""
    sandbox = gpu_sandbox_factory(cluster_name="yesterday", boot_seconds=0.5, stale=0.0)
    env = sandbox.env()
    eks = client_of(env, "eks")
    role = eks.describe_cluster(name="yesterday")["cluster"]["roleArn"]
    for name in eks.list_nodegroups(clusterName="yesterday")["nodegroups"]:
        eks.delete_nodegroup(clusterName="yesterday", nodegroupName=name)
    eventually(lambda: not eks.list_nodegroups(clusterName="yesterday")["nodegroups"])
    eks.delete_cluster(name="yesterday")
    eventually(lambda: not eks.list_clusters()["clusters"])
    with pytest.MonkeyPatch.context() as patch:
        variables = {
            "GPU_REGION": env["AWS_DEFAULT_REGION"],
            "GPU_SUBNETS": json.dumps(list(json.loads(env["GPU_SANDBOX_SUBNETS"]).values())),
            "GPU_CLUSTER_ROLE": role,
            "GPU_NODE_ROLE": env["GPU_SANDBOX_NODE_ROLE"],
            "SMOKE_IMAGE": "nvidia/cuda:12.8.1-base-ubuntu24.04",
        }
        for name, value in {**env, **{f"AIRFLOW_VAR_{name}": value for name, value in variables.items()}}.items():
            patch.setenv(name, value)
        patch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
        patch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
        yield env


def client_of(env: dict[str, str], service: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=env["AWS_ENDPOINT_URL"],
        region_name=env["AWS_DEFAULT_REGION"],
        aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
    )


def test_a_cluster_for_one_night(account: dict[str, str]) -> None:
    eks, core = client_of(account, "eks"), client.CoreV1Api(config.new_client_from_config(account["KUBECONFIG"]))
    example = load("whole_cluster_eks")
    for name in ("create_cluster", "delete_cluster"):
        example.get_task(name).waiter_delay = 1
    seen: dict[str, Any] = {}
    ended: dict[str, float] = {}

    def look(task_id: str) -> None:
        ended[task_id] = time.time()
        seen[task_id] = {
            "clusters": eks.list_clusters()["clusters"],
            "gpu nodes": [node.metadata.labels for node in core.list_node(label_selector=POOL).items],
            "cpu nodes": len(core.list_node(label_selector="eks.amazonaws.com/nodegroup=general").items),
        }

    results = run_tasks(example, watch=look)

    assert (seen["create_cluster"]["clusters"], seen["create_cluster"]["gpu nodes"]) == (["gpu-night"], [])
    (labels,) = seen["nvidia_smi"]["gpu nodes"]
    assert (labels["node.kubernetes.io/instance-type"], labels["eks.amazonaws.com/capacityType"]) == (
        "g6.xlarge",
        "SPOT",
    )
    assert list(results["night-gpu.device_plugin"]["nodes"].values()) == [1]

    # Seconds after the pod the GPU node is gone, the CPU node is not; and then the cluster.
    assert ended["night-gpu.scale_down"] - ended["nvidia_smi"] <= LONGEST
    assert seen["night-gpu.scale_down"] == {"clusters": ["gpu-night"], "gpu nodes": [], "cpu nodes": 1}
    assert seen["delete_cluster"]["clusters"] == []
    groups = client_of(account, "autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    assert groups == []
    eventually(lambda: not core.list_node(label_selector="eks.amazonaws.com/nodegroup=general").items)


def test_there_is_one_control_plane_and_so_one_cluster(account: dict[str, str]) -> None:
    eks = client_of(account, "eks")
    wanted = {
        "roleArn": "arn:aws:iam::123456789012:role/eks",
        "resourcesVpcConfig": {"subnetIds": list(json.loads(account["GPU_SANDBOX_SUBNETS"]).values())},
    }
    made = eks.create_cluster(name="first", **wanted)["cluster"]
    assert made["status"] == "CREATING"
    assert "endpoint" not in made
    # At once, before it is ACTIVE.
    with pytest.raises(ClientError, match="CREATING"):
        eks.delete_cluster(name="first")
    with pytest.raises(ClientError, match="cluster first has it"):
        eks.create_cluster(name="second", **wanted)
    eventually(lambda: eks.describe_cluster(name="first")["cluster"]["status"] == "ACTIVE")
    found = eks.describe_cluster(name="first")["cluster"]
    assert found["endpoint"].startswith("https://127.0.0.1:")
    assert found["resourcesVpcConfig"]["vpcId"].startswith("vpc-")
    assert eks.delete_cluster(name="first")["cluster"]["status"] == "DELETING"
    eventually(lambda: not eks.list_clusters()["clusters"])

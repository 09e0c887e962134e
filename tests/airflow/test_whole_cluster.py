"""A cluster that comes and goes with the run, under a real scheduler: a failed training is red, its cluster is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from gpu_sandbox import SandboxProcess
from gpu_sandbox.airflow_home import AirflowHome, python_path
from gpu_sandbox.demo_trainings import example_dags
from tests.airflow.conftest import REPOSITORY
from tests.inherited import INHERITED
from tests.sandbox.running import eventually

pytestmark = pytest.mark.nightly

DAG_ID = "whole_cluster_eks"


@pytest.fixture
def account() -> Iterator[dict[str, str]]:
    """An account without a cluster, in a process of its own: the variables by which it is reached."""
    with SandboxProcess(cluster_name="yesterday", boot_seconds=0.5, stale=0.0) as sandbox:
        env = sandbox.env()
        eks = client_of(env, "eks")
        role = eks.describe_cluster(name="yesterday")["cluster"]["roleArn"]
        for name in eks.list_nodegroups(clusterName="yesterday")["nodegroups"]:
            eks.delete_nodegroup(clusterName="yesterday", nodegroupName=name)
        eventually(lambda: not eks.list_nodegroups(clusterName="yesterday")["nodegroups"])
        eks.delete_cluster(name="yesterday")
        eventually(lambda: not eks.list_clusters()["clusters"])
        yield env | {
            "AIRFLOW_VAR_GPU_SUBNETS": json.dumps(list(json.loads(env["GPU_SANDBOX_SUBNETS"]).values())),
            "AIRFLOW_VAR_GPU_CLUSTER_ROLE": role,
            "AIRFLOW_VAR_GPU_NODE_ROLE": env["GPU_SANDBOX_NODE_ROLE"],
            "AIRFLOW_VAR_SMOKE_IMAGE": "nowhere.example/smoke:1",
        }


def client_of(env: dict[str, str], service: str) -> Any:
    key = {"aws_access_key_id": env["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": env["AWS_SECRET_ACCESS_KEY"]}
    return boto3.client(service, endpoint_url=env["AWS_ENDPOINT_URL"], region_name=env["AWS_DEFAULT_REGION"], **key)


def test_a_training_that_fails_is_red_and_its_cluster_goes(
    account: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    dags = tmp_path_factory.mktemp("dags")
    (dags / f"{DAG_ID}.py").symlink_to(example_dags() / f"{DAG_ID}.py")
    env = account | {"PYTHONPATH": python_path(REPOSITORY)}
    with AirflowHome(tmp_path_factory.mktemp("airflow"), dags, env, inherited=INHERITED) as home:
        home.api.wait_for_dag(DAG_ID)
        started = home.api.trigger(DAG_ID, conf={})
        ended = home.api.wait_for_run(DAG_ID, started.run_id)
        states = {task.task_id: task.state for task in home.api.tasks(DAG_ID, started.run_id)}
    assert ended.state == "failed"
    assert states["nvidia_smi"] == states["night-gpu.done"] == "failed"
    assert states["night-gpu.scale_down"] == states["delete_cluster"] == "success"
    assert client_of(account, "eks").list_clusters()["clusters"] == []
    assert client_of(account, "autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"] == []

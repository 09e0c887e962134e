"""DeleteGpuPoolOperator: a pool in use stays, an idle one goes, and nothing that others created."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client, config

from airflow_gpu_provider import DeleteGpuPoolOperator, EksGpuPool, EnsureGpuPoolOperator, ScaleDownSensor
from airflow_gpu_provider.cluster.model.lease import DEMAND_NAMESPACE
from airflow_gpu_provider.errors import PoolInUse
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import eventually, run


@pytest.fixture
def api(
    gpu_sandbox: Sandbox, gpu_sandbox_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[client.ApiClient]:
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    with config.new_client_from_config(str(gpu_sandbox.kubeconfig)) as api:
        yield api


@pytest.fixture
def pool(gpu_sandbox: Sandbox, api: client.ApiClient) -> EksGpuPool:
    return EksGpuPool(
        name="doomed",
        cluster_name=gpu_sandbox.cluster_name,
        region=gpu_sandbox.region,
        instance_types=("g6.xlarge",),
        zones=(gpu_sandbox.zones[0],),
        max_nodes=1,
    )


def delete(pool: EksGpuPool, **arguments: Any) -> Any:
    return run(DeleteGpuPoolOperator(task_id="delete", gpu_pool=pool, **arguments))


def groups(gpu_sandbox: Sandbox) -> set[str]:
    from gpu_sandbox.aws.observer import aws_client

    pages = aws_client(gpu_sandbox.aws, "eks").get_paginator("list_nodegroups")
    return set(pages.paginate(clusterName=gpu_sandbox.cluster_name).search("nodegroups"))


def leases(api: client.ApiClient) -> list[str]:
    found = client.CoordinationV1Api(api).list_namespaced_lease(DEMAND_NAMESPACE).items
    labels = [lease.metadata.labels for lease in found]
    return [each["airflow-gpu-provider/kind"] for each in labels if each["airflow-gpu-provider/pool"] == "doomed"]


def a_pod(api: client.ApiClient, node: str) -> None:
    container = {"name": "main", "image": "busybox:1.36", "command": ["sleep", "600"]}
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
    spec["tolerations"] = [{"operator": "Exists"}]
    body = {"metadata": {"name": "in-the-way"}, "spec": spec}
    core = client.CoreV1Api(api)
    core.create_namespaced_pod("default", body)
    eventually(lambda: core.read_namespaced_pod("in-the-way", "default").status.phase == "Running")


def test_a_pool_in_use_stays_until_it_is_forced(gpu_sandbox: Sandbox, api: client.ApiClient, pool: EksGpuPool) -> None:
    group = "doomed-a-g6-xlarge"
    others = groups(gpu_sandbox)
    (node,) = run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool))["nodes"]
    a_pod(api, node["name"])

    with pytest.raises(PoolInUse, match=r"the run nightly/manual.*pod default/in-the-way") as refused:
        delete(pool)
    assert len(refused.value.details["users"]) == 2
    assert groups(gpu_sandbox) == others | {group}

    assert delete(pool, force=True) == {"pool": "doomed", "deleted": [group]}
    assert groups(gpu_sandbox) == others
    assert leases(api) == []
    assert delete(pool) == {"pool": "doomed", "deleted": []}


def test_an_idle_pool_goes(gpu_sandbox: Sandbox, api: client.ApiClient, pool: EksGpuPool) -> None:
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool))
    run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))
    assert delete(pool)["deleted"] == ["doomed-a-g6-xlarge"]
    assert "doomed-a-g6-xlarge" not in groups(gpu_sandbox)
    assert leases(api) == []

"""gpu_nodes(prefetch=...) with the real DaemonSet controller and garbage collector: pulled early, gone with demand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.addons.prefetch import manifests, pulls
from airflow_gpu_provider.cluster.api.rest import server_side_apply
from airflow_gpu_provider.errors import PermissionDenied
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.gpu_pools import eks_pool
from tests.sandbox.running import context_of, eventually, lines_of, run

KEY = {"installation": "tests", "dag_id": "nightly", "pool": "prefetched"}
NAMESPACE, IMAGE = "airflow-gpu-provider", "busybox:1.36"


@pytest.fixture(scope="module")
def pool(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    return eks_pool(gpu_sandbox, "prefetched")


pytestmark = pytest.mark.usefixtures("api", "now")


@pytest.fixture
def down(pool: EksGpuPool) -> Iterator[None]:
    yield
    run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))


def ensure(pool: EksGpuPool, **arguments: Any) -> EnsureGpuPoolOperator:
    return EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, **{"prefetch": [IMAGE], **arguments})


def left(api: client.CoreV1Api) -> list[str]:
    """Return what is there of a prefetch."""
    sets = client.AppsV1Api(api.api_client).list_namespaced_daemon_set(NAMESPACE).items
    maps = api.list_namespaced_config_map(NAMESPACE).items
    names = [each.metadata.name for each in (*sets, *maps, *api.list_namespaced_pod(NAMESPACE).items)]
    return [name for name in names if name.startswith("prefetch-")]


def test_images_are_pulled_beside_what_else_a_node_needs_and_it_goes_with_the_demand(
    pool: EksGpuPool, api: client.CoreV1Api
) -> None:
    context = context_of(ensure(pool))
    result = run(context["task"], context)
    (pod,) = eventually(lambda: api.list_namespaced_pod(NAMESPACE, field_selector="status.phase=Running").items)
    assert pod.spec.node_name == result["nodes"][0]["name"]
    assert [each.image for each in pod.spec.containers] == [IMAGE]
    node = api.read_node(pod.spec.node_name)
    assert "nvidia.com/gpu" not in (node.status.allocatable or {}) or node.status.allocatable["nvidia.com/gpu"] == "0"
    key = DemandKey(**{**KEY, "run_id": context["ti"].run_id})
    ((pull,), left_to_pull) = pulls(api.api_client, key, [pod.spec.node_name])
    assert (pull["phase"], pull["image"], left_to_pull) == ("image pull", IMAGE, {})
    again = run(ensure(pool), context)  # it waits for nothing, and beside nothing
    assert [each["phase"] for each in again["timeline"]] == ["nodes were there"]
    assert run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))["nodes"] == 0
    eventually(lambda: not left(api))


def test_what_is_created_after_its_demand_has_gone_goes_too(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    key = DemandKey(**{**KEY, "run_id": "gone"})
    for each in manifests(pool, key, "0a1b2c3d-0000-4000-8000-000000000000", [IMAGE]):
        server_side_apply(api.api_client, each)
    eventually(lambda: not left(api))


@pytest.mark.usefixtures("down")
def test_a_role_that_may_not_costs_a_warning(pool: EksGpuPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionDenied("Kubernetes refuses patch daemonsets.", "Grant it.")

    monkeypatch.setattr("airflow_gpu_provider.addons.prefetch.server_side_apply", refused)
    result, lines = lines_of(lambda: run(ensure(pool)))
    assert len(result["nodes"]) == 1
    assert any("No image is pulled before the trainings do so: Kubernetes refuses" in line for line in lines)

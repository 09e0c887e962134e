"""A whole sandbox with GKE: instances become Nodes, drivers come before GPUs, tokens open the API server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud.container_v1 import ClusterManagerClient, NodeConfig, NodePool, Operation
from google.oauth2 import service_account

from airflow_gpu_provider.sandbox.google import GoogleTimings
from airflow_gpu_provider.sandbox.sandbox import SYSTEM_NODE, Sandbox
from tests.sandbox.google.conftest import SCOPES, eventually

TIMINGS = GoogleTimings(node_pool_create=0.3, node_pool_delete=0.3, drain_timeout=20.0, driver=1.0, patience=1.0)
GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(platform="gke", boot_seconds=0.5, timings=TIMINGS, progress=print) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def gke(sandbox: Sandbox) -> ClusterManagerClient:
    """As a program that has nothing but the Airflow connection would make it."""
    extra = json.loads(sandbox.env()["AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"])["extra"]
    credentials = service_account.Credentials.from_service_account_info(
        json.loads(extra["keyfile_dict"]), scopes=SCOPES
    )
    return ClusterManagerClient(
        credentials=credentials, transport="rest", client_options={"api_endpoint": extra["gke_endpoint"]}
    )


@pytest.fixture(scope="module")
def make_pool(sandbox: Sandbox, gke: ClusterManagerClient) -> Iterator[Callable[..., None]]:
    parent = sandbox.google.cluster.path
    made: list[str] = []

    def make(name: str, *, nodes: int = 1, **config: Any) -> None:
        pool = NodePool(name=name, initial_node_count=nodes, locations=["us-central1-a"], config=NodeConfig(**config))
        made.append(name)
        done(sandbox, gke, gke.create_node_pool(parent=parent, node_pool=pool))

    yield make
    for name in made:
        done(sandbox, gke, gke.delete_node_pool(name=f"{parent}/nodePools/{name}"))


def done(sandbox: Sandbox, gke: ClusterManagerClient, operation: Operation) -> None:
    location = f"projects/{sandbox.google.project_id}/locations/{sandbox.google.location}"
    name = f"{location}/operations/{operation.name}"
    seen = eventually(lambda: gke.get_operation(name=name), lambda seen: seen.status == Operation.Status.DONE)
    assert not seen.error.code, seen.error.message


def get(sandbox: Sandbox, path: str) -> Any:
    return sandbox.control_plane.request("GET", path)[1]


def nodes_of(sandbox: Sandbox, pool: str) -> list[dict[str, Any]]:
    selector = f"cloud.google.com%2Fgke-nodepool%3D{pool}"
    items: list[dict[str, Any]] = get(sandbox, f"/api/v1/nodes?labelSelector={selector}")["items"]
    return items


def allocatable(node: dict[str, Any]) -> str | None:
    gpus: str | None = node["status"]["allocatable"].get(GPU)
    return gpus


def test_a_pool_becomes_nodes_whose_gpus_come_with_the_driver(sandbox: Sandbox, make_pool: Callable[..., None]) -> None:
    make_pool("l4", machine_type="g2-standard-24", spot=True, labels={"role": "train-gpu"})
    [node] = eventually(lambda: nodes_of(sandbox, "l4"))
    assert allocatable(node) is None  # the driver is not there yet
    name, labels = node["metadata"]["name"], node["metadata"]["labels"]
    assert node["spec"]["providerID"] == f"gce://sandbox-project/us-central1-a/{name}"
    assert labels["cloud.google.com/gke-accelerator"] == "nvidia-l4"
    assert labels["cloud.google.com/gke-spot"] == "true"
    assert labels["role"] == "train-gpu"
    assert labels["node.kubernetes.io/instance-type"] == "g2-standard-24"
    taint = {"key": GPU, "value": "present", "effect": "NoSchedule"}
    assert taint in node["spec"]["taints"]
    eventually(lambda: [allocatable(node) for node in nodes_of(sandbox, "l4")], lambda seen: seen == ["2"])


def test_system_node_is_there(sandbox: Sandbox) -> None:
    assert get(sandbox, f"/api/v1/nodes/{SYSTEM_NODE}")["metadata"]["labels"]["cloud.google.com/gke-nodepool"]

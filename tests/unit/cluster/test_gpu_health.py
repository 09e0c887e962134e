"""Which node conditions and marks speak against a node's GPUs, and by what pods avoid such a node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_gpu_provider.cluster.gpu_health import BAD_GPU, GpuHealth, why_bad
from airflow_gpu_provider.cluster.nodes import Node
from airflow_gpu_provider.pools import EksGpuPool, GkeGpuPool, GpuPool, KubernetesGpuPool
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient


def a_node(*conditions: tuple[str, str], mark: str | None = None, boot: str = "b1") -> dict[str, Any]:
    said = [{"type": kind, "status": status, "reason": "R"} for kind, status in conditions]
    return {
        "metadata": {
            "name": "n1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {BAD_GPU: mark} if mark else {},
        },
        "status": {"conditions": said, "nodeInfo": {"bootID": boot}},
    }


MARK = json.dumps({"at": "2026-01-01T02:00:00Z", "boot": "b1", "why": "Xid 79"})


@pytest.mark.parametrize(
    ("condition", "is_bad"),
    [
        (("AcceleratedHardwareReady", "False"), True),
        (("AcceleratedHardwareReady", "True"), False),
        (("AcceleratedHardwareReady", "Unknown"), False),
        (("GpuUnhealthy", "True"), True),
        (("GpuUnhealthy", "False"), False),
        (("GPUMissing", "True"), True),
        (("NVLinkStatusInactive", "True"), True),
        (("GpuDriverInstalled", "True"), False),
        (("Ready", "False"), False),
        (("MemoryPressure", "True"), False),
    ],
)
def test_conditions(condition: tuple[str, str], is_bad: bool) -> None:
    assert bool(why_bad(a_node(condition))) is is_bad


def test_a_mark_holds_for_one_boot() -> None:
    assert why_bad(a_node(mark=MARK)) == "Xid 79"
    assert why_bad(a_node(mark=MARK, boot="b2")) == ""


def test_a_persons_own_mark_counts() -> None:
    assert BAD_GPU in why_bad(a_node(mark="since Tuesday"))


def test_node_with_a_broken_gpu_is_not_usable() -> None:
    nodes = [Node.parse(a_node(("Ready", "True"), mark=mark)) for mark in (None, MARK)]
    assert [node.usable for node in nodes] == [True, False]


GPUS = {"node_selector_labels": {"role": "gpu"}, "gpus_per_node": 1}
EKS = {"cluster_name": "ml", "region": "us-west-2", "instance_types": ["g6.xlarge"], "max_nodes": 2}
GKE = {
    "project_id": "my-project",
    "cluster_name": "ml",
    "location": "us-central1",
    "machine_types": ["g2-standard-4"],
    "max_nodes": 2,
}
BY_LABEL = {
    "karpenter": KubernetesGpuPool(name="train", provisioner="karpenter", **GPUS),
    "auto-mode": KubernetesGpuPool(name="train", provisioner="auto-mode", **GPUS),
    "bare metal": KubernetesGpuPool(name="train", **GPUS),
    "EKS": EksGpuPool(name="train", **EKS),
    "GKE": GkeGpuPool(name="train", **GKE),
}
BY_HOSTNAME = {
    "cluster-autoscaler": KubernetesGpuPool(name="train", provisioner="cluster-autoscaler", **GPUS),
    "EKS": EksGpuPool(name="train", scaling="autoscaler", **EKS),
    "GKE": GkeGpuPool(name="train", scaling="autoscaler", **GKE),
}
AUTOPILOT = KubernetesGpuPool(name="train", provisioner="autopilot", **GPUS)
BY = {"key": BAD_GPU, "operator": "DoesNotExist"}


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


def put(server: ApiServer, pool: GpuPool, name: str, node: dict[str, Any]) -> None:
    meta = node["metadata"]
    meta |= {"name": name, "labels": {**pool.node_selector, **meta.get("labels", {})}}
    server.put(f"api/v1/nodes/{name}", node)


def label_of(server: ApiServer, name: str = "n1") -> str | None:
    return server.read(f"api/v1/nodes/{name}")["metadata"]["labels"].get(BAD_GPU)


def health(server: ApiServer, pool: GpuPool) -> GpuHealth:
    api: Any = FakeApiClient(server)
    return GpuHealth(api, pool)


@pytest.mark.parametrize("pool", BY_LABEL.values(), ids=BY_LABEL)
def test_a_bad_node_is_avoided_by_a_label_that_karpenter_accepts(server: ApiServer, pool: GpuPool) -> None:
    put(server, pool, "n1", a_node(("Ready", "True")))
    assert health(server, pool).avoidance() is None
    health(server, pool).mark("n1", "Xid 79")
    assert label_of(server) == "boot-b1"
    assert health(server, pool).avoidance() == BY


@pytest.mark.parametrize("pool", BY_HOSTNAME.values(), ids=BY_HOSTNAME)
def test_cluster_autoscaler_sees_no_label_that_it_would_expect_of_new_nodes(server: ApiServer, pool: GpuPool) -> None:
    put(server, pool, "n1", a_node(("Ready", "True")))
    put(server, pool, "n2", a_node(("GpuUnhealthy", "True")))
    health(server, pool).mark("n1", "Xid 79")
    avoided = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
    assert health(server, pool).avoidance() == avoided
    assert [label_of(server, name) for name in ("n1", "n2")] == [None, None]


def test_autopilot_admits_no_pod_that_avoids_a_node(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    put(server, AUTOPILOT, "n1", a_node(("GpuUnhealthy", "True")))
    assert health(server, AUTOPILOT).avoidance() is None
    assert "this pod may run on node n1, whose GPU is broken (GpuUnhealthy=True (R))" in caplog.text
    health(server, AUTOPILOT).mark("n1", "Xid 79")
    assert "the next try may run on n1 again" in caplog.text
    assert not [each for each in server.requests if each.verb == "patch"]


@pytest.mark.parametrize(
    "node", [a_node(mark=MARK), a_node(("GpuUnhealthy", "True"))], ids=["an earlier release's", "a condition"]
)
def test_what_was_bad_before_is_labelled_for_the_next_pod(server: ApiServer, node: dict[str, Any]) -> None:
    pool = BY_LABEL["karpenter"]
    put(server, pool, "n1", node)
    put(server, pool, "n2", a_node())
    assert health(server, pool).avoidance() == BY
    assert [label_of(server, name) for name in ("n1", "n2")] == ["boot-b1", None]


@pytest.mark.parametrize("node", [a_node(mark=MARK, boot="b2"), a_node()], ids=["rebooted", "forgiven"])
def test_a_node_that_is_good_again_loses_the_label(server: ApiServer, node: dict[str, Any]) -> None:
    pool = BY_LABEL["karpenter"]
    node["metadata"]["labels"] = {BAD_GPU: "boot-b1"}
    put(server, pool, "n1", node)
    assert health(server, pool).avoidance() is None
    assert label_of(server) is None


def test_a_persons_own_label_stays_and_counts(server: ApiServer) -> None:
    pool = BY_LABEL["karpenter"]
    node = a_node()
    node["metadata"]["labels"] = {BAD_GPU: "true"}
    put(server, pool, "n1", node)
    assert health(server, pool).avoidance() == BY
    assert label_of(server) == "true"


def test_a_label_that_may_not_be_written_is_told(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    pool = BY_LABEL["karpenter"]
    put(server, pool, "n1", a_node(mark=MARK))
    server.refuse("patch", path="api/v1/nodes/n1")
    assert health(server, pool).avoidance() == BY
    assert f"The label {BAD_GPU} of node n1 could not be written" in caplog.text

"""What speaks against a node's GPUs (conditions, marks, failures of one DAG or of two), and which pods avoid it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, KubernetesGpuPool
from airflow_gpu_provider.cluster.api import gpu_health
from airflow_gpu_provider.cluster.api.gpu_health import GpuHealth
from airflow_gpu_provider.cluster.api.informer import Change
from airflow_gpu_provider.cluster.api.watched import pool_nodes
from airflow_gpu_provider.cluster.model.gpu_evidence import (
    BAD_GPU,
    MOST_WITNESSES,
    Evidence,
    Witness,
    accused,
    avoided_by,
    doubt,
    label_for,
    why_bad,
)
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.errors import BadGpu, PodFailed
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.training.watch.surroundings import NodesSeen
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


A, B = (DemandKey(installation="i", dag_id=dag, run_id="r1", pool="train") for dag in ("a", "b"))
AT = datetime(2026, 1, 1, 2, tzinfo=UTC)
XID = "NVRM: Xid (PCI:0000:00:1e): 79, GPU has fallen off the bus."


def mark_of(*keys: DemandKey, what: str = "Xid 79", boot: str = "b1") -> str:
    """Return the annotation after a failure of each of these runs."""
    evidence = Evidence(boot=boot)
    for key in keys:
        evidence = evidence.with_witness(Witness.of_failure(key.writer, key.run_id, AT, what))
    return evidence.dump()


MARK = mark_of(A, B)


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
    at = "at 2026-01-01T02:00:00.000000Z"
    assert why_bad(a_node(mark=MARK)) == f"Xid 79 in a r1 {at}; Xid 79 in b r1 {at}"
    assert why_bad(a_node(mark=MARK, boot="b2")) == ""
    assert doubt(a_node(mark=mark_of(A), boot="b2")) is None


@pytest.mark.parametrize(
    "mark", ["since Tuesday", "{}", "[]", '{"boot": "b1", "witnesses": [1]}', "[" * 9000, '{"boot": NaN}']
)
def test_a_persons_own_mark_counts(mark: str) -> None:
    assert BAD_GPU in why_bad(a_node(mark=mark))


def test_one_dags_failures_speak_for_that_dag_only() -> None:
    node = a_node(mark=mark_of(*(replace(A, run_id=f"r{run}") for run in range(20))))
    assert why_bad(node) == ""
    assert (one := doubt(node)) is not None
    assert (one.by, one.run) == ("i/a", "r19")
    seen = Node.parse(a_node(("Ready", "True"), mark=mark_of(A)))
    assert [seen.usable, seen.as_seen_by("i/b").usable, seen.as_seen_by("i/a").usable] == [True, True, False]


def test_what_is_kept_is_bounded_and_plain() -> None:
    keys = [replace(A, dag_id=f"dag-{number}") for number in range(50)]
    mark = mark_of(*keys, what="\x1b[2J\x00" + "a\nb\u202e" * 10_000)
    assert len(mark) < 4000
    assert mark.count('"by"') == MOST_WITNESSES
    why = why_bad(a_node(mark=mark))
    assert "dag-49" in why
    assert not {"\x1b", "\x00", "\n", "\u202e"} & {*why}


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
BY = ({"key": BAD_GPU, "operator": "DoesNotExist"},)
BY_A = ({"key": label_for(A.writer), "operator": "DoesNotExist"},)


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


def fail(server: ApiServer, pool: GpuPool, *keys: DemandKey, node: str = "n1") -> None:
    """Let a pod of each of these runs fail on the node with an Xid in its log."""
    for key in keys:
        health(server, pool).take_end(BadGpu(f"Pod p failed ({XID}).", "", node=node), key)


@pytest.mark.parametrize("pool", BY_LABEL.values(), ids=BY_LABEL)
def test_a_bad_node_is_avoided_by_a_label_that_karpenter_accepts(server: ApiServer, pool: GpuPool) -> None:
    put(server, pool, "n1", a_node(("Ready", "True")))
    assert health(server, pool).avoidance(A) == ()
    fail(server, pool, A, B)
    assert label_of(server) == "boot-b1"
    assert health(server, pool).avoidance(A) == BY


@pytest.mark.parametrize("pool", BY_HOSTNAME.values(), ids=BY_HOSTNAME)
def test_cluster_autoscaler_sees_no_label_that_it_would_expect_of_new_nodes(server: ApiServer, pool: GpuPool) -> None:
    put(server, pool, "n1", a_node(("Ready", "True")))
    put(server, pool, "n2", a_node(("GpuUnhealthy", "True")))
    fail(server, pool, A)
    for key, names in ((A, ["n1", "n2"]), (B, ["n2"])):
        avoided = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": names}
        assert health(server, pool).avoidance(key) == (avoided,)
    for name in ("n1", "n2"):
        labels = server.read(f"api/v1/nodes/{name}")["metadata"]["labels"]
        assert not [label for label in labels if label.startswith(BAD_GPU)]


def test_autopilot_admits_no_pod_that_avoids_a_node(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    put(server, AUTOPILOT, "n1", a_node(("GpuUnhealthy", "True")))
    assert health(server, AUTOPILOT).avoidance(A) == ()
    assert "this one may run on node n1 (GpuUnhealthy=True (R))" in caplog.text
    fail(server, AUTOPILOT, A)
    assert "the next try may run on n1." in caplog.text
    assert not [each for each in server.requests if each.verb == "patch"]


@pytest.mark.parametrize(
    "node", [a_node(mark=MARK), a_node(("GpuUnhealthy", "True"))], ids=["of two DAGs", "a condition"]
)
def test_what_was_bad_before_is_labelled_for_the_next_pod(server: ApiServer, node: dict[str, Any]) -> None:
    pool = BY_LABEL["karpenter"]
    put(server, pool, "n1", node)
    put(server, pool, "n2", a_node())
    assert health(server, pool).avoidance(A) == BY
    assert [label_of(server, name) for name in ("n1", "n2")] == ["boot-b1", None]


@pytest.mark.parametrize("node", [a_node(mark=MARK, boot="b2"), a_node()], ids=["rebooted", "forgiven"])
def test_a_node_that_is_good_again_loses_the_label(server: ApiServer, node: dict[str, Any]) -> None:
    pool = BY_LABEL["karpenter"]
    node["metadata"]["labels"] = {BAD_GPU: "boot-b1"}
    put(server, pool, "n1", node)
    assert health(server, pool).avoidance(A) == ()
    assert label_of(server) is None


def test_a_persons_own_label_stays_and_counts(server: ApiServer) -> None:
    pool = BY_LABEL["karpenter"]
    node = a_node()
    node["metadata"]["labels"] = {BAD_GPU: "true"}
    put(server, pool, "n1", node)
    assert health(server, pool).avoidance(A) == BY
    assert label_of(server) == "true"


def test_a_label_that_may_not_be_written_is_told(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    pool = BY_LABEL["karpenter"]
    put(server, pool, "n1", a_node(mark=MARK))
    server.refuse("patch", path="api/v1/nodes/n1")
    assert health(server, pool).avoidance(A) == BY
    assert f"The label {BAD_GPU} of node n1 could not be written" in caplog.text


GIVEN = BY_LABEL["bare metal"]


def a_gpu_node(server: ApiServer, pool: GpuPool, name: str, *, gpus: int = 1, **node: Any) -> None:
    raw = a_node(("Ready", "True"), **node)
    raw["status"] |= {"allocatable": {"nvidia.com/gpu": str(gpus)}}
    put(server, pool, name, raw)


def bad_for(server: ApiServer, pool: GpuPool, key: DemandKey) -> set[str]:
    """Return the nodes that the run's pods avoid, by the labels that they have."""
    keys = {each["key"] for each in health(server, pool).avoidance(key, gpus=1)}
    nodes = [server.read(f"api/v1/nodes/{name}")["metadata"] for name in ("n1", "n2", "n3")]
    return {meta["name"] for meta in nodes if keys & meta["labels"].keys()}


def test_tries_of_one_dag_walk_through_a_given_pool_and_mark_no_node_for_others(server: ApiServer) -> None:
    names = ["n1", "n2", "n3"]
    for name in names:
        a_gpu_node(server, GIVEN, name)
    for number in range(20):
        left = [name for name in names if name not in bad_for(server, GIVEN, A)]
        assert left, "the next try has a node, whatever the others have printed"
        fail(server, GIVEN, replace(A, run_id=f"r{number}"), node=left[0])
        assert bad_for(server, GIVEN, A) == ({*names[: number + 1]} if number < 2 else set())
        assert bad_for(server, GIVEN, B) == set()
    assert all(not why_bad(server.read(f"api/v1/nodes/{name}")) for name in names)


def test_a_second_dags_failure_keeps_all_pods_off(server: ApiServer) -> None:
    pool = BY_LABEL["karpenter"]
    put(server, pool, "n1", a_node())
    fail(server, pool, A)
    assert health(server, pool).avoidance(A) == BY_A
    assert health(server, pool).avoidance(B) == ()
    fail(server, pool, B)
    other = replace(A, dag_id="c")
    assert health(server, pool).avoidance(other) == BY
    labels = server.read("api/v1/nodes/n1")["metadata"]["labels"]
    assert BY_A[0]["key"] not in labels, "one label is enough"


def test_a_failure_while_a_condition_says_so_lasts_longer_than_the_condition(server: ApiServer) -> None:
    pool = BY_LABEL["karpenter"]
    put(server, pool, "n1", a_node(("GpuUnhealthy", "True")))
    fail(server, pool, A)
    server.patch("api/v1/nodes/n1", {"status": {"conditions": []}})
    assert health(server, pool).avoidance(B) == BY
    assert health(server, pool).of_node("n1").startswith("GpuUnhealthy=True (R); Pod p failed (NVRM: Xid")
    server.patch("api/v1/nodes/n1", {"status": {"nodeInfo": {"bootID": "b2"}}})
    assert health(server, pool).avoidance(B) == ()
    assert label_of(server) is None


def test_a_persons_mark_is_not_written_over(server: ApiServer) -> None:
    put(server, GIVEN, "n1", a_node(mark="since Tuesday"))
    fail(server, GIVEN, A)
    assert server.read("api/v1/nodes/n1")["metadata"]["annotations"][BAD_GPU] == "since Tuesday"


def test_only_a_broken_gpu_is_written_down(server: ApiServer) -> None:
    put(server, GIVEN, "n1", a_node())
    health(server, GIVEN).take_end(PodFailed("Pod p failed.", "", node="n1"), A)
    health(server, GIVEN).take_end(BadGpu("Pod p failed.", ""), A)
    health(server, GIVEN).take_end(None, A)
    fail(server, GIVEN, A, node="gone")
    assert not server.read("api/v1/nodes/n1")["metadata"].get("annotations")


def test_two_that_write_at_once_are_both_kept(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    put(server, GIVEN, "n1", a_node())
    last: list[DemandKey] = [B]

    def of_another(*given: Any) -> Any:
        if last:
            fail(server, GIVEN, last.pop())
        return accused(*given)

    monkeypatch.setattr(gpu_health, "accused", of_another)
    fail(server, GIVEN, A)
    found = Evidence.of_node(server.read("api/v1/nodes/n1"))
    assert found is not None
    assert {witness.by for witness in found.witnesses} == {A.writer, B.writer}


@pytest.mark.parametrize(
    ("other", "asked"),
    [({"gpus": 1}, {"gpus": 8}), ({"gpus": 8}, {"gpus": 8, "nodes": 2}), ({"mark": MARK}, {"gpus": 1})],
    ids=["too small", "too few", "bad"],
)
def test_given_nodes_are_used_again_where_no_others_would_do(
    server: ApiServer, other: dict[str, Any], asked: dict[str, int]
) -> None:
    a_gpu_node(server, GIVEN, "n1", gpus=8)
    a_gpu_node(server, GIVEN, "n2", **other)
    fail(server, GIVEN, A)
    assert health(server, GIVEN).avoidance(A, **asked) == (BY if "mark" in other else ())
    a_gpu_node(server, GIVEN, "n3", gpus=8)
    a_gpu_node(server, GIVEN, "n4", gpus=8)
    assert BY_A[0] in health(server, GIVEN).avoidance(A, **asked)


@pytest.mark.parametrize("pool", [*BY_LABEL.values(), *BY_HOSTNAME.values()])
def test_by_what_a_pod_avoids_nodes_can_be_read_from_it(server: ApiServer, pool: GpuPool) -> None:
    put(server, pool, "n1", a_node())
    put(server, pool, "n2", a_node(("GpuUnhealthy", "True")))
    fail(server, pool, A)
    avoid = health(server, pool).avoidance(A)
    terms = [{"matchExpressions": [{"key": "disk", "operator": "Exists"}, *avoid]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    assert avoided_by({"spec": {"affinity": affinity}}) == avoid
    assert avoided_by({"spec": {}}) == ()


def test_a_wait_sees_the_node_that_its_pods_avoid_as_they_do(server: ApiServer) -> None:
    for name in ("n1", "n2"):
        a_gpu_node(server, GIVEN, name)
    fail(server, GIVEN, A)
    expressions = {"matchExpressions": [*health(server, GIVEN).avoidance(A)]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [expressions]}}
    pods: list[dict[str, Any]] = []
    seen = NodesSeen(GIVEN, pods)
    (resource,) = pool_nodes(GIVEN.node_selector)
    for name in ("n1", "n2"):
        seen.take(Change(resource=resource, kind="present", raw=server.read(f"api/v1/nodes/{name}")), AT, ())
    assert [node.name for node in seen.ready()] == ["n1", "n2"]
    pods.append({"spec": {"affinity": {"nodeAffinity": required}}})
    assert [node.name for node in seen.ready()] == ["n2"]
    assert "NVRM: Xid" in seen.named("n1")[0].bad_gpu


def request_of(key: DemandKey) -> Witness:
    return Witness.of_failure(key.writer, key.run_id, AT, "asked for another node", is_request=True)


def test_requests_for_another_node_count_for_their_own_dag_only() -> None:
    evidence = Evidence(boot="b1").with_witness(request_of(A)).with_witness(request_of(B))
    assert not evidence.counts_for_all
    node = a_node(mark=evidence.dump())
    assert not why_bad(node)
    last = doubt(node)
    assert last is not None
    assert last.by == B.writer
    assert Evidence.of_node(node) == evidence


def test_a_request_neither_replaces_a_failure_nor_joins_another_dags() -> None:
    failed = Evidence.of_node(a_node(mark=mark_of(A)))
    assert failed is not None
    assert failed.with_witness(request_of(A)) == failed
    both = failed.with_witness(request_of(B))
    assert not both.counts_for_all
    first = doubt(a_node(mark=both.dump()))
    assert first is not None
    assert first.by == A.writer

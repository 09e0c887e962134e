"""Which pods on an API server are a pool's, and which a run's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_gpu_provider.cluster.api.pods import list_pods_on, list_pool_pods, list_run_pods
from airflow_gpu_provider.cluster.api.rest import call, count_items, list_items
from airflow_gpu_provider.cluster.model.node import INSTANCE_TYPE_LABEL, Node
from airflow_gpu_provider.cluster.model.pool_pod import RUN_LABEL
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient

NODE = Node(name="node-1", machine="i-1", ready=True, created_at=datetime(2026, 3, 1, 2, tzinfo=UTC))
OF_POOL = {POOL_LABEL: "train"}


@pytest.fixture
def api() -> Any:
    return FakeApiClient(ApiServer())


def a_pod(api: Any, name: str, **fields: Any) -> None:
    spec = {"containers": [{"name": "main", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    body = {"metadata": {"name": name, "labels": fields.pop("labels", {})}, "spec": {**spec, **fields}}
    call(api, "create", "/api/v1/namespaces/default/pods", resource="pods", body=body)


@pytest.mark.parametrize("few_nodes", [8, 0], ids=["node by node", "by one list of all"])
def test_the_pool_s_pods_are_those_on_its_nodes_and_those_that_wait_for_it(
    api: Any, few_nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_gpu_provider.cluster.api.pods._FEW_NODES", few_nodes)
    monkeypatch.setattr("airflow_gpu_provider.cluster.api.rest._PAGE", 2)
    a_pod(api, "bound", nodeName=NODE.name)
    a_pod(api, "waiting", nodeSelector=OF_POOL)
    a_pod(api, "elsewhere", nodeSelector={POOL_LABEL: "another"})

    found = {pod.name: pod for pod in list_pool_pods(api, OF_POOL, [NODE])}

    assert set(found) == {"bound", "waiting"}
    assert (found["bound"].node, found["bound"].gpus) == (NODE.name, 1)
    assert found["waiting"].node is None
    assert [pod.name for pod in list_pods_on(api, [NODE])] == ["bound"]
    assert count_items(api, "/api/v1/pods", resource="pods") == len(list_items(api, "/api/v1/pods", resource="pods"))


def test_only_the_run_s_pods_on_this_pool_are_its_own(api: Any) -> None:
    ids = {"installation": "airflow-1", "dag_id": "nightly_training", "pool": "train"}
    run, other = (DemandKey(run_id=f"manual__{number}", **ids).hash for number in (1, 2))
    a_pod(api, "mine", labels={RUN_LABEL: run}, nodeSelector=OF_POOL)
    a_pod(api, "theirs", labels={RUN_LABEL: other}, nodeSelector=OF_POOL)
    a_pod(api, "no-pool", labels={RUN_LABEL: run})

    assert [pod.name for pod in list_run_pods(api, OF_POOL, run)] == ["mine"]


def of_types(*terms: list[tuple[str, list[str]]]) -> dict[str, Any]:
    """The affinity for nodes that meet all requirements of one term."""
    each = [
        [{"key": INSTANCE_TYPE_LABEL, "operator": operator, "values": names} for operator, names in term]
        for term in terms
    ]
    other = {"key": "zone", "operator": "In", "values": ["a"]}
    named = {"nodeSelectorTerms": [{"matchExpressions": [other, *term]} for term in each]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": named}}


@pytest.mark.parametrize(
    ("spec", "types"),
    [
        ({}, set()),
        ({"affinity": {"podAffinity": {}}}, set()),
        ({"nodeSelector": {INSTANCE_TYPE_LABEL: "g5"}, "affinity": of_types([("In", ["g5", "g6"])])}, {"g5"}),
        ({"affinity": of_types([("In", ["g5", "g6"])])}, {"g5", "g6"}),
        ({"affinity": of_types([("In", ["g5", "g6"]), ("In", ["g6", "p5"])])}, {"g6"}),
        ({"affinity": of_types([("In", ["g5", "g6"]), ("NotIn", ["g6"])])}, {"g5"}),
        ({"affinity": of_types([("In", ["g5"])], [("In", ["g6"])])}, {"g5", "g6"}),
        ({"affinity": of_types([("In", ["g5"])], [])}, set()),
        ({"affinity": of_types([("NotIn", ["g5"])])}, set()),
    ],
)
def test_the_machine_types_of_a_pod_are_those_that_its_spec_requires(
    api: Any, spec: dict[str, Any], types: set[str]
) -> None:
    a_pod(api, "waiting", **{**spec, "nodeSelector": {**OF_POOL, **spec.get("nodeSelector", {})}})
    (found,) = list_pool_pods(api, OF_POOL, [])
    assert found.machine_types == types

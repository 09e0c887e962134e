"""Nodes on an API server: read, cordoned and uncordoned, by us and by others."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.cluster.api.nodes import cordon, list_nodes, uncordon
from airflow_gpu_provider.cluster.api.rest import MERGE_PATCH, call
from airflow_gpu_provider.cluster.model.node import CORDONED_BY, Node
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient


@pytest.fixture
def api() -> Any:
    return FakeApiClient(ApiServer())


@pytest.fixture
def pool() -> str:
    return "train"


@pytest.fixture
def node(api: Any, pool: str) -> Node:
    raw = {
        "metadata": {"name": f"node-{pool}", "labels": {POOL_LABEL: pool}},
        "spec": {"providerID": "aws:///us-west-2a/i-0123"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T02:00:00Z"}],
            "allocatable": {"nvidia.com/gpu": "1"},
        },
    }
    return Node.parse(call(api, "create", "/api/v1/nodes", resource="nodes", body=raw))


def test_our_cordon_is_signed_and_undone(api: Any, pool: str, node: Node) -> None:
    assert cordon(api, node, by="me at noon")
    assert cordon(api, node, by="me again")
    (now,) = list_nodes(api, {POOL_LABEL: pool})
    assert (now.cordoned, now.cordoned_by_us, now.usable) == (True, True, False)
    raw = call(api, "get", f"/api/v1/nodes/{node.name}", resource="nodes")
    assert raw["metadata"]["annotations"][CORDONED_BY] == "me at noon"

    assert uncordon(api, node)
    (now,) = list_nodes(api, {POOL_LABEL: pool})
    assert (now.cordoned, now.cordon_mark) == (False, False)


@pytest.mark.parametrize(("value", "holds"), [("true", True), ("false", False), ("1h", False)])
def test_whether_karpenter_is_kept_from_it(api: Any, pool: str, node: Node, value: str, holds: bool) -> None:
    """On a node only "true" counts: Karpenter's pkg/controllers/state/statenode.go."""
    assert not node.do_not_disrupt
    body = {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": value}}}
    call(api, "patch", f"/api/v1/nodes/{node.name}", resource="nodes", body=body, content_type=MERGE_PATCH)
    (now,) = list_nodes(api, {POOL_LABEL: pool})
    assert now.do_not_disrupt is holds


def test_a_cordon_of_somebody_else_s_stays(api: Any, pool: str, node: Node) -> None:
    body = {"spec": {"unschedulable": True}}
    call(api, "patch", f"/api/v1/nodes/{node.name}", resource="nodes", body=body, content_type=MERGE_PATCH)
    assert not cordon(api, node, by="me")
    assert not uncordon(api, node)
    (now,) = list_nodes(api, {POOL_LABEL: pool})
    assert (now.cordoned, now.cordoned_by_us) == (True, False)


def test_a_node_is_read_as_it_is(api: Any, pool: str, node: Node) -> None:
    (now,) = list_nodes(api, {POOL_LABEL: pool})
    assert (now.machine, now.gpus, now.ready) == ("i-0123", 1, True)

"""Why Karpenter keeps a machine: its claim, its NodePool, and what Karpenter's events say."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_gpu_provider.cluster.karpenter_keeps import Kept, why_kept
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient

NODE, CLAIM, POOL = ("Node", "ip-10-0-0-1"), ("NodeClaim", "gpu-x5x9l"), ("NodePool", "gpu")
INITIALIZED = {"type": "Initialized", "status": "True"}
NOT_REGISTERED = {
    "type": "Initialized",
    "status": "Unknown",
    "reason": "ResourceNotRegistered",
    "message": 'Resource "nvidia.com/gpu" was requested but not registered',
}
BUDGET = "No allowed disruptions for disruption reason {} due to blocking budget"


class Cluster:
    """One NodePool, and one claim of it with a node."""

    def __init__(self, condition: dict[str, str] = INITIALIZED, after: str = "0s", **metadata: Any) -> None:
        self.server = ApiServer()
        pool = {"metadata": {"name": "gpu"}, "spec": {"template": {}, "disruption": {"consolidateAfter": after}}}
        self.server.put("apis/karpenter.sh/v1/nodepools/gpu", pool)
        status = {"providerID": "aws:///us-west-2a/i-1", "nodeName": NODE[1], "conditions": [condition]}
        claim = {"name": CLAIM[1], "labels": {"karpenter.sh/nodepool": "gpu"}, **metadata}
        self.server.put(f"apis/karpenter.sh/v1/nodeclaims/{CLAIM[1]}", {"metadata": claim, "status": status})

    def says(self, about: tuple[str, str], reason: str, message: str, minute: int = 0) -> None:
        kind, name = about
        event = {
            "metadata": {"name": f"{name}.{minute}.{reason.lower()}"},
            "involvedObject": {"kind": kind, "name": name},
            "reason": reason,
            "message": message,
            "lastTimestamp": f"2026-03-01T02:{minute:02}:00Z",
        }
        self.server.put(f"api/v1/namespaces/default/events/{event['metadata']['name']}", event)  # type: ignore[index]

    def why_kept(self, *machines: str) -> dict[str, Kept]:
        api: Any = FakeApiClient(self.server)
        return why_kept(api, machines or ("i-1",))


def test_a_node_whose_plugin_never_came_is_never_removed() -> None:
    (kept,) = Cluster(NOT_REGISTERED, after="Never").why_kept().values()
    assert kept.claim == "gpu-x5x9l"
    assert kept.why == (
        "it removes no node that is not initialized (ResourceNotRegistered: Resource"
        ' "nvidia.com/gpu" was requested but not registered)'
    )
    assert kept.said_at is None


def test_a_node_pool_that_removes_no_idle_node_is_named() -> None:
    assert Cluster(after="Never").why_kept() == {
        "i-1": Kept(claim="gpu-x5x9l", why="NodePool gpu has consolidateAfter: Never")
    }


@pytest.mark.parametrize("about", [NODE, CLAIM, POOL], ids=lambda about: about[0])
@pytest.mark.parametrize("reason", ["DisruptionBlocked", "Unconsolidatable"])
def test_the_newest_event_about_it_is_told(about: tuple[str, str], reason: str) -> None:
    cluster = Cluster()
    cluster.says(about, reason, "first", minute=1)
    cluster.says(about, reason, "then", minute=2)
    cluster.says(("NodeClaim", "gpu-other"), reason, "of another", minute=3)
    cluster.says(about, "Nominated", "of another kind", minute=4)
    assert cluster.why_kept() == {
        "i-1": Kept(claim="gpu-x5x9l", why="then", said_at=datetime(2026, 3, 1, 2, 2, tzinfo=UTC))
    }


def test_a_budget_for_another_reason_keeps_no_empty_node() -> None:
    cluster = Cluster()
    cluster.says(POOL, "DisruptionBlocked", BUDGET.format("Empty"), minute=1)
    cluster.says(POOL, "DisruptionBlocked", BUDGET.format("Drifted"), minute=2)
    assert cluster.why_kept()["i-1"].why == BUDGET.format("Empty")


def test_what_says_nothing_still_has_its_claim() -> None:
    assert Cluster().why_kept() == {"i-1": Kept(claim="gpu-x5x9l")}


def test_a_claim_that_goes_keeps_nothing() -> None:
    assert Cluster(deletionTimestamp="2026-03-01T02:00:00Z").why_kept() == {}
    assert Cluster().why_kept("i-2") == {}

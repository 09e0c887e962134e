"""Why Karpenter keeps a machine: its claim, its NodePool, and what Karpenter's events say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.api.karpenter_objects import why_kept
from airflow_gpu_provider.cluster.model.kept_machines import KeptMachine
from airflow_gpu_provider.times import format_time
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient

NODE, CLAIM, POOL = ("Node", "ip-10-0-0-1"), ("NodeClaim", "gpu-x5x9l"), ("NodePool", "gpu")
NOW = datetime(2026, 3, 1, 2, 5, tzinfo=UTC)
INITIALIZED = {"type": "Initialized", "status": "True"}
NOT_REGISTERED = {
    "type": "Initialized",
    "status": "Unknown",
    "reason": "ResourceNotRegistered",
    "message": 'Resource "nvidia.com/gpu" was requested but not registered',
}
BUDGET = "No allowed disruptions for disruption reason {} due to blocking budget"


def at(minute: int) -> datetime:
    return NOW.replace(minute=minute)


class Cluster:
    """One NodePool, and one claim of it with a node."""

    def __init__(self, condition: dict[str, str] = INITIALIZED, after: str = "0s", **metadata: Any) -> None:
        self.server = ApiServer()
        pool = {"metadata": {"name": "gpu"}, "spec": {"template": {}, "disruption": {"consolidateAfter": after}}}
        self.server.put("apis/karpenter.sh/v1/nodepools/gpu", pool)
        status = {"providerID": "aws:///us-west-2a/i-1", "nodeName": NODE[1], "conditions": [condition]}
        claim = {"name": CLAIM[1], "labels": {"karpenter.sh/nodepool": "gpu"}, **metadata}
        self.server.put(f"apis/karpenter.sh/v1/nodeclaims/{CLAIM[1]}", {"metadata": claim, "status": status})

    def says(self, about: tuple[str, str], reason: str, message: str, at: datetime) -> None:
        kind, name = about
        event = {
            "metadata": {"name": f"{name}.{at:%M}.{reason.lower()}"},
            "involvedObject": {"kind": kind, "name": name},
            "reason": reason,
            "message": message,
            "lastTimestamp": format_time(at),
        }
        self.server.put(f"api/v1/namespaces/default/events/{event['metadata']['name']}", event)  # type: ignore[index]

    def why_kept(self, *machines: str, annotated: tuple[str, ...] = ()) -> dict[str, KeptMachine]:
        api: Any = FakeApiClient(self.server)
        return why_kept(api, machines or ("i-1",), NOW, annotated)


def test_a_node_whose_plugin_never_came_is_never_removed() -> None:
    (kept,) = Cluster(NOT_REGISTERED, after="Never").why_kept().values()
    assert kept.claim == "gpu-x5x9l"
    assert kept.why == (
        "it removes no node that is not initialized (ResourceNotRegistered: Resource"
        ' "nvidia.com/gpu" was requested but not registered)'
    )
    assert kept.reported_at is None


@pytest.mark.parametrize(
    ("reason", "minutes", "is_told"),
    [("DisruptionBlocked", 2, True), ("DisruptionBlocked", 4, False), ("Unconsolidatable", 15, True)],
)
def test_what_karpenter_does_not_say_again_is_not_so_any_more(reason: str, minutes: int, is_told: bool) -> None:
    cluster = Cluster()
    cluster.says(NODE, reason, "it is nominated", at=NOW - timedelta(minutes=minutes))
    assert bool(cluster.why_kept()["i-1"].why) is is_told


def test_a_node_pool_that_removes_no_idle_node_is_named() -> None:
    assert Cluster(after="Never").why_kept() == {
        "i-1": KeptMachine(claim="gpu-x5x9l", why="NodePool gpu has consolidateAfter: Never")
    }


def test_a_node_that_somebody_has_annotated_is_named_before_karpenter_says_so() -> None:
    """The real one says first that it has nominated the node, and then nothing else about it for two minutes."""
    cluster = Cluster()
    cluster.says(NODE, "DisruptionBlocked", "Node is nominated for a pending pod", at=NOW)
    assert cluster.why_kept(annotated=("i-1",)) == {
        "i-1": KeptMachine(claim="gpu-x5x9l", why="node ip-10-0-0-1 carries karpenter.sh/do-not-disrupt")
    }


@pytest.mark.parametrize("about", [NODE, CLAIM, POOL], ids=lambda about: about[0])
@pytest.mark.parametrize("reason", ["DisruptionBlocked", "Unconsolidatable"])
def test_the_newest_event_about_it_is_told(about: tuple[str, str], reason: str) -> None:
    cluster = Cluster()
    cluster.says(about, reason, "first", at=at(3))
    cluster.says(about, reason, "then", at=at(4))
    cluster.says(("NodeClaim", "gpu-other"), reason, "of another", at=at(5))
    cluster.says(about, "Nominated", "of another kind", at=at(5))
    assert cluster.why_kept() == {"i-1": KeptMachine(claim="gpu-x5x9l", why="then", reported_at=at(4))}


def test_a_budget_for_another_reason_keeps_no_empty_node() -> None:
    cluster = Cluster()
    cluster.says(POOL, "DisruptionBlocked", BUDGET.format("Empty"), at=at(3))
    cluster.says(POOL, "DisruptionBlocked", BUDGET.format("Drifted"), at=at(4))
    assert cluster.why_kept()["i-1"].why == BUDGET.format("Empty")


def test_what_says_nothing_still_has_its_claim() -> None:
    assert Cluster().why_kept() == {"i-1": KeptMachine(claim="gpu-x5x9l")}


def test_a_claim_that_goes_keeps_nothing() -> None:
    assert Cluster(deletionTimestamp="2026-03-01T02:00:00Z").why_kept() == {}
    assert Cluster().why_kept("i-2") == {}

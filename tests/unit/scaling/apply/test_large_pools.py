"""Pools of hundreds of nodes, on a played cluster whose requests take seconds of virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_gpu_provider.cluster.api import pods as module
from airflow_gpu_provider.cluster.api.pods import list_pods_on, list_pool_pods
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.errors import DemandLockLost
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.apply.writes import RELEASE_FOR
from benchmarks.large_pool import LargePool
from benchmarks.played_cloud import PODS, add_pod
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient
from tests.fakes.clock import START, VirtualClock


def a_pool(nodes: int, *, busy: bool = False, others: int = 0, latency: float = 0.0, **changes: Any) -> LargePool:
    return LargePool(nodes, busy=busy, others=others, latency=latency, clock=VirtualClock(), **changes)


def read(pool: LargePool) -> int:
    return pool.give_up().reads()


@pytest.mark.parametrize("busy", [True, False], ids=["all in use", "all idle"])
def test_what_is_read_does_not_grow_with_the_nodes(busy: bool) -> None:
    few, many = (a_pool(nodes, busy=busy) for nodes in (20, 160))
    assert read(many) <= read(few)
    assert len(many.cloud.machines) == (160 if busy else 0)


def test_each_node_that_goes_is_one_cordon_and_one_call_to_the_cloud() -> None:
    pool = a_pool(160)
    took = pool.give_up()
    assert took.requests["patch nodes"] == took.requests["cloud release"] == 160
    assert took.lock_writes < 12


@pytest.mark.parametrize("latency", [0.1, 3.0])
def test_a_pool_of_hundreds_of_nodes_can_be_changed_however_slow_its_api_server(latency: float) -> None:
    """A thousand pods are three pages; three hundred lists of a node's pods took longer than anybody has the lock."""
    pool = a_pool(300, busy=True, others=2000, latency=latency)
    assert pool.give_up().locked_seconds < 90
    assert len(pool.cloud.machines) == 300


def test_nobody_keeps_the_lock_for_minutes() -> None:
    with pytest.raises(DemandLockLost):
        a_pool(300, busy=True, others=5000, latency=12.0)


def test_what_takes_long_goes_in_parts_and_others_get_their_turn() -> None:
    pool = a_pool(100, latency=0.01, cloud_latency=1.0)
    left = 100
    while left:
        took = pool.give_up()
        assert took.locked_seconds < RELEASE_FOR.total_seconds() + 15
        assert len(pool.cloud.machines) < left
        left = len(pool.cloud.machines)


def test_where_a_look_at_all_is_too_old_at_its_end_a_few_are_looked_at() -> None:
    pool = a_pool(160, others=6000, latency=0.45)
    pool.give_up()
    assert len(pool.cloud.machines) < 160


# -- the pods of many nodes ----------------------------------------------------------------------------------


def lists_of_pods(server: ApiServer) -> int:
    return sum((each.verb, each.resource) == ("list", "pods") for each in server.requests)


def nodes_of(number: int) -> list[Node]:
    return [Node(name=f"node-{n}", machine=f"i-{n}", ready=True, created_at=START) for n in range(number)]


placed = st.lists(st.tuples(st.integers(-3, 25), st.booleans(), st.sampled_from(["Pending", "Running", "Failed"])))


@settings(deadline=None)
@given(placed)
def test_one_list_and_one_for_each_node_tell_the_same(pods: list[tuple[int, bool, str]]) -> None:
    server = ApiServer()
    cluster: Any = FakeApiClient(server)
    for number, (node, selects, phase) in enumerate(pods):
        add_pod(server, f"pod-{number}", f"node-{node}" if node >= 0 else "", daemon=False)
        selector = {POOL_LABEL: "large" if selects else "other"}
        server.patch(f"{PODS}/pod-{number}", {"spec": {"nodeSelector": selector}, "status": {"phase": phase}})
    selector, nodes = {POOL_LABEL: "large"}, nodes_of(20)
    found = {}
    for cheap in (module._PODS_FOR_A_REQUEST, -1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_PODS_FOR_A_REQUEST", cheap)
            on = sorted(pod.name for pod in list_pods_on(cluster, nodes))
            found[cheap] = ([pod.name for pod in list_pool_pods(cluster, selector, nodes)], on)
    assert len({str(each) for each in found.values()}) == 1
    assert lists_of_pods(server) > 20


def test_few_nodes_in_a_cluster_of_many_pods_are_asked_for_one_by_one() -> None:
    server = ApiServer()
    cluster: Any = FakeApiClient(server)
    for number in range(3000):
        add_pod(server, f"other-{number}", "elsewhere", daemon=False)
    add_pod(server, "mine", "node-3", daemon=False)
    for number, most in ((3, 4), (20, 22)):
        server.requests.clear()
        assert [pod.name for pod in list_pool_pods(cluster, {POOL_LABEL: "large"}, nodes_of(number + 1))] == ["mine"]
        assert lists_of_pods(server) <= most + 1

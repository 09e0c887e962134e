"""A pool's state as rows: GPUs in use and idle, and costs that are known or said not to be."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from airflow_gpu_provider.reports.status import pool_status
from tests.unit.scaling.pools import NOW, lease, machine, node, pod, pool, snapshot


def test_gpus_in_use_and_idle_and_what_they_cost() -> None:
    spec = pool(price_per_hour={"ON_DEMAND": 0.8}, currency="EUR")
    seen = snapshot(machine(1), machine(2), nodes=(node(1), node(2)), pods=(pod("train", on=1),), spec=spec)
    status = pool_status(seen, "here")
    assert (status.nodes, status.gpus, status.gpus_used, status.gpus_idle) == (2, 2, 1, 1)
    assert (status.cost_per_hour, status.to_json()["currency"]) == (1.6, "EUR")
    assert [row.cost_so_far for row in status.machines] == [0.8, 0.8], "launched an hour ago"
    assert status.machines[0].pods == ("default/train",)


def test_a_price_that_is_not_known_is_said_not_to_be() -> None:
    status = pool_status(snapshot(machine(1), nodes=(node(1),)), "here")
    assert status.cost_per_hour is None
    said = status.to_json()
    assert (said["cost_per_hour"], said["machines"][0]["cost_so_far"]) == ("unknown", "unknown")


def test_nothing_costs_nothing_and_expired_demand_is_shown_as_such() -> None:
    status = pool_status(snapshot(leases=(lease("old", until=NOW - timedelta(minutes=1)), lease("new"))), "here")
    assert status.cost_per_hour == 0
    assert [(row.run, row.live) for row in status.leases] == [("dag/old", False), ("dag/new", True)]


def test_finished_pods_use_no_gpu() -> None:
    seen = snapshot(machine(1), nodes=(node(1),), pods=(pod("train", on=1, phase="Succeeded"),))
    assert pool_status(seen, "here").gpus_used == 0


def test_a_node_that_we_cordoned_is_not_called_usable() -> None:
    leaving = replace(node(2), cordoned=True, cordon_mark=True)
    status = pool_status(snapshot(machine(1), machine(2), nodes=(node(1), leaving)), "here")
    assert [row.state for row in status.machines] == ["usable", "cordoned"]
    assert (status.nodes, status.booting, status.out_of_use) == (1, 0, 1)


def test_only_what_comes_is_called_booting() -> None:
    """What is broken, and what somebody else has cordoned, is there and of no use."""
    machines = (machine(1), machine(2), machine(3, launched_at=NOW))
    broken, taken = replace(node(1), bad_gpu="Xid 79"), replace(node(2), cordoned=True)
    status = pool_status(snapshot(*machines, nodes=(broken, taken)), "here")
    assert [row.state for row in status.machines] == ["broken", "taken", "coming"]
    assert (status.nodes, status.booting, status.out_of_use) == (0, 1, 2)

"""A pool's state as rows: GPUs in use and idle, and costs that are known or said not to be."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow_gpu_provider.clouds.base import Machine
from airflow_gpu_provider.cluster.model.pool_pod import HangNote
from airflow_gpu_provider.money.budget import Budget
from airflow_gpu_provider.reports.status import pool_status
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.times import format_time
from tests.unit.scaling.pools import NOW, A, dry, lease, machine, node, pod, pool, snapshot


def test_gpus_in_use_and_idle_and_what_they_cost() -> None:
    spec = pool(price_per_hour={"ON_DEMAND": 0.8}, currency="EUR")
    seen = snapshot(machine(1), machine(2), nodes=(node(1), node(2)), pods=(pod("train", on=1),), spec=spec)
    status = pool_status(seen, "here")
    assert (status.nodes, status.gpus, status.gpus_used, status.gpus_idle) == (2, 2, 1, 1)
    assert (status.cost_per_hour, status.to_json()["currency"]) == (1.6, "EUR")
    assert [row.cost_so_far for row in status.machines] == [0.8, 0.8], "launched an hour ago"
    assert status.machines[0].pods == ("default/train",)


def test_a_machine_is_shown_with_the_runs_whose_pods_use_its_gpus() -> None:
    owner, other = lease("a").key, lease("b").key
    pods = (
        pod("train-0", on=1, owner=owner),
        pod("train-1", on=1, owner=owner),
        pod("over", on=1, owner=other, phase="Succeeded"),
    )
    seen = snapshot(machine(1), machine(2), nodes=(node(1), node(2)), pods=pods)
    rows = pool_status(seen, "here").to_json()["machines"]
    assert [list(row["runs"]) for row in rows] == [["dag/a"], []]


def test_a_price_that_is_not_known_is_said_not_to_be() -> None:
    status = pool_status(snapshot(machine(1), nodes=(node(1),)), "here")
    assert status.cost_per_hour is None
    said = status.to_json()
    assert (said["cost_per_hour"], said["machines"][0]["cost_so_far"]) == ("unknown", "unknown")


def test_nothing_costs_nothing_and_expired_demand_is_shown_as_such() -> None:
    status = pool_status(snapshot(leases=(lease("old", until=NOW - timedelta(minutes=1)), lease("new"))), "here")
    assert status.cost_per_hour == 0
    assert [(row.run, row.live) for row in status.leases] == [("dag/old", False), ("dag/new", True)]


def test_demand_with_a_limit_has_what_is_left_of_it() -> None:
    budget = Budget(limit=10, spent=2, at=NOW - timedelta(hours=1), per_hour=3, raised="nearly there")
    demand = (lease("a", budget=budget), lease("b", budget=budget, extended="whatever it costs"), lease("c"))
    status = pool_status(snapshot(leases=demand), "here").to_json()
    limited, *others = (row["budget"] for row in status["leases"])
    assert (limited["max_cost"], limited["spent"], limited["left"]) == (10, 2, 5)
    assert (limited["at"], limited["raised"]) == (format_time(budget.at), "nearly there")
    assert others == [{}, {}]


def test_a_training_that_may_hang_is_told_with_its_run_while_it_runs() -> None:
    note = HangNote(
        since=NOW - timedelta(hours=1), pods=2, shown_by="busy at a draw near that of idle ones (70 W each)"
    )
    owner = lease("a").key
    hung = pod("train-0", on=1, hang=note, owner=owner)
    seen = snapshot(machine(1), nodes=(node(1),), pods=(hung, replace(hung, name="over", phase="Failed"), pod("other")))
    status = pool_status(seen, "here")
    (row,) = status.to_json()["hangs"]
    assert (row["run"], row["pod"], row["pods"]) == ("dag/a", "default/train-0", 2)
    assert (row["since"], row["shown_by"]) == (format_time(note.since), note.shown_by)
    assert str(status.hangs[0]) == (
        "dag/a may hang: the GPUs of pod default/train-0, and those of its other 1 pod, have been busy at a draw"
        f" near that of idle ones (70 W each) since {note.since:%Y-%m-%d %H:%MZ}"
    )


def test_finished_pods_use_no_gpu() -> None:
    seen = snapshot(machine(1), nodes=(node(1),), pods=(pod("train", on=1, phase="Succeeded"),))
    assert pool_status(seen, "here").gpus_used == 0


def test_a_node_that_we_cordoned_is_not_called_usable() -> None:
    leaving = replace(node(2), cordoned=True, cordon_mark=True)
    status = pool_status(snapshot(machine(1), machine(2), nodes=(node(1), leaving)), "here")
    assert [row.state for row in status.machines] == ["usable", "cordoned"]
    assert (status.nodes, status.booting, status.out_of_use) == (1, 0, 1)


def provisioned(*machines: Machine, **fields: Any) -> PoolSnapshot:
    """A pool whose only group is Karpenter's."""
    seen = snapshot(*machines, nodes=(), leases=(lease(),))
    live = sum(each.state != "terminating" for each in machines)
    group = replace(seen.groups[0], provisioner="Karpenter", machines=machines, desired=live, **fields)
    return replace(seen, groups=(group,))


def test_what_a_provisioner_has_only_asked_for_is_launching_and_costs_nothing() -> None:
    asked, boots = machine(1, state="requested", launched_at=NOW), machine(2, state="pending", launched_at=NOW)
    status = pool_status(provisioned(asked, boots, machine(3, state="terminating")), "here")
    assert (status.nodes, status.booting, status.launching) == (0, 1, 1)
    assert [row.machine for row in status.machines] == ["i-2"]


def test_what_the_provisioner_says_is_told_with_its_time() -> None:
    lacks = "NodeClaim gpu-x7k2p: NodeNotFound: Node not registered with cluster"
    slow = replace(machine(1, state="pending", launched_at=NOW), lacks=lacks)
    failed = replace(dry(minutes_ago=5), message="insufficient capacity")
    status = pool_status(provisioned(slow, issues=("NodePool gpu has no room",), launch_failure=failed), "here")
    assert status.notes == (
        "Karpenter: NodePool gpu has no room",
        "Karpenter got no machine at 01:55Z: insufficient capacity",
        f"machine i-1 (no node in the pool) of {A}: Karpenter: {lacks}",
    )
    assert status.to_json()["notes"] == list(status.notes)


def test_only_what_comes_is_called_booting() -> None:
    """What is broken, and what somebody else has cordoned, is there and of no use."""
    machines = (machine(1), machine(2), machine(3, launched_at=NOW))
    broken, taken = replace(node(1), bad_gpu="Xid 79"), replace(node(2), cordoned=True)
    status = pool_status(snapshot(*machines, nodes=(broken, taken)), "here")
    assert [row.state for row in status.machines] == ["broken", "taken", "coming"]
    assert (status.nodes, status.booting, status.out_of_use) == (0, 1, 2)


def test_what_is_left_without_an_owner_is_said_with_how_it_goes() -> None:
    over, one = lease("old", until=NOW - timedelta(minutes=1)), machine(1)
    status = pool_status(snapshot(one, nodes=(node(1),), leases=(over,)), "here")
    (notes,), unwanted = status.notes, status.to_json()["unwanted"]
    assert unwanted == 1
    assert notes.startswith(
        "no run wants the demand of dag/old, which is over, nor 1 machine: unless a scale-down is at it,"
    )
    assert "`airflow gpu reap` says more" in notes


def test_machines_that_a_run_a_pod_or_the_pool_s_own_minimum_keeps_are_no_leftovers() -> None:
    one = machine(1)
    for kept in (
        snapshot(one, leases=(lease(),)),
        snapshot(one, pods=(pod("notebook", on=1),)),
        snapshot(one, spec=pool(min_nodes=1)),
        snapshot(leases=(lease(),)),
    ):
        assert pool_status(kept, "here").notes == ()


def test_a_size_that_no_run_wants_is_left_over_too() -> None:
    asked = snapshot(train_a_g6_xlarge={"desired": 1})
    (notes,) = pool_status(asked, "here").notes
    assert notes.startswith("no run wants machines that 1 group still asks the cloud for:")

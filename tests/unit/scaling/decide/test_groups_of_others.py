"""Decisions about groups that others own: their nodes are labelled, their minimum kept, and their switch taken off."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.base import Group
from airflow_gpu_provider.errors import PoolDrift
from airflow_gpu_provider.pools import Candidate
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.placement import check_group_claims, claimed
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot, usable_nodes
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.wait.release_wait import ReleaseWait
from tests.unit.scaling.pools import EARLIER, LATER, NOW, SWITCH, key, lease, machine, node, pod

SPEC = EksGpuPool(
    name="train", cluster_name="ml", region="us-west-2", max_nodes=4, manage="scale", node_groups=("x", "y")
)


def group(name: str = "x", *numbers: int, **fields: Any) -> Group:
    machines = tuple(machine(number, group=name) for number in numbers)
    candidate = Candidate(group=name, zone="us-west-2a", instance_type="g6.xlarge", market="ON_DEMAND")
    usual: dict[str, Any] = {"status": "active", "desired": len(numbers), "max_size": 4, "owned": False}
    return Group(name=name, candidate=candidate, machines=machines, **(usual | fields))


def snapshot(*groups: Group, **fields: Any) -> PoolSnapshot:
    numbers = [int(each.id.removeprefix("i-")) for each in (m for g in groups for m in g.machines)]
    usual: dict[str, Any] = {"leases": (), "nodes": tuple(map(node, numbers)), "pods": ()}
    return PoolSnapshot(now=NOW, pool=SPEC, groups=groups, **(usual | fields))


def test_a_node_that_joined_is_labelled_and_not_usable_before() -> None:
    joined = node(1, labelled=False)
    seen = snapshot(group("x", 1, switch_at=SWITCH), leases=(lease(),), nodes=(joined,))
    decision = decide(seen)
    assert (decision.label, decision.grow, decision.release) == ((joined.name,), {}, ())
    assert any("gets the labels of pool train" in note for note in decision.notes)
    assert usable_nodes(seen) == ()
    later = replace(seen, nodes=(node(1),))
    assert decide(later).is_empty
    assert usable_nodes(later) == later.nodes


def test_a_node_that_nobody_wants_goes_without_a_label() -> None:
    decision = decide(snapshot(group("x", 1), nodes=(node(1, labelled=False),)))
    assert (decision.label, [each.id for each in decision.release]) == ((), ["i-1"])


def test_a_node_of_another_pool_is_left_alone() -> None:
    seen = snapshot(group("x", 1), nodes=(node(1, labelled=False, other_pool="theirs"),))
    decision = decide(seen)
    assert (decision.label, decision.release) == ((), ())
    assert any("it is in pool theirs" in note for note in decision.notes)


@given(
    live=st.integers(0, 4),
    least=st.integers(0, 4),
    wanted=st.integers(0, 4),
    busy=st.integers(0, 4),
    extra=st.integers(0, 2),
)
def test_never_below_the_minimum_and_never_stuck_at_it(
    live: int, least: int, wanted: int, busy: int, extra: int
) -> None:
    """Whatever is released or shrunk, the group keeps its minimum; and what is wanted is asked for all the same."""
    numbers = range(1, live + 1)
    pods = tuple(pod(f"p{n}", on=n, run="run") for n in numbers if n <= busy)
    desired = min(4, max(live, least) + extra)
    one = group("x", *numbers, desired=desired, keeps=least, switch_at=SWITCH)
    leases = (lease(nodes=wanted),) if wanted else ()
    decision = decide(snapshot(one, leases=leases, pods=pods))
    assert live - len(decision.release) >= min(live, least)
    if decision.shrink:
        assert desired > least
    asked = max(decision.grow.get("x", desired), 0)
    assert asked >= min(wanted, 4) or decision.shrink


@pytest.mark.parametrize(
    ("live", "keeps", "owned", "cleared"),
    [
        (0, 0, False, True),
        (1, 1, False, True),
        (1, 0, False, False),
        (0, 0, True, False),
    ],
)
def test_the_switch_is_taken_off_once_a_group_of_others_is_as_it_was(
    live: int, keeps: int, owned: bool, cleared: bool
) -> None:
    one = group("x", *range(1, live + 1), keeps=keeps, owned=owned, switch_at=SWITCH)
    seen = snapshot(one)
    assert decide(seen).clear_switch == (("x",) if cleared else ())
    wait = ReleaseWait(key=key("run"), started=EARLIER, deadline=LATER)
    pending = not wait.step(seen).done
    assert pending is (cleared or live > keeps)
    assert decide(snapshot(one, leases=(lease(),))).clear_switch == ()


def other(minutes_ago: float, *groups: str, pool: str = "theirs", until: Any = LATER) -> DemandLease:
    whose = DemandKey(installation="airflow", dag_id="other", run_id="r", pool=pool)
    created = NOW - timedelta(minutes=minutes_ago)
    return DemandLease(key=whose, nodes=1, until=until, created_at=created, groups=groups)


def test_who_wants_a_group_first_has_it() -> None:
    groups = (group("x"), group("y"))
    mine = replace(lease(created_at=NOW - timedelta(minutes=5)), groups=("x", "y"))
    assert claimed(SPEC, groups, (mine,), NOW) == {}
    assert claimed(SPEC, groups, (mine, other(1, "x")), NOW) == {}
    assert list(claimed(SPEC, groups, (mine, other(9, "x")), NOW)) == ["x"]
    assert list(claimed(SPEC, groups, (other(1, "y"),), NOW)) == ["y"]
    assert claimed(SPEC, groups, (other(9, "x", until=NOW),), NOW) == {}
    assert claimed(SPEC, (replace(groups[0], owned=True),), (other(9, "x"),), NOW) == {}


@given(mine=st.integers(0, 9), theirs=st.integers(0, 9))
def test_of_two_that_came_together_exactly_one_has_the_group(mine: int, theirs: int) -> None:
    leases = (replace(lease(created_at=NOW - timedelta(minutes=mine)), groups=("x",)), other(theirs, "x"))
    owners = [spec for spec in (SPEC, replace(SPEC, name="theirs")) if not claimed(spec, [group("x")], leases, NOW)]
    assert len(owners) == 1


def test_new_demand_is_refused_where_another_pool_has_the_group() -> None:
    seen = replace(snapshot(group("y")), claimed={"x": other(1, "x")})
    with pytest.raises(PoolDrift, match="Group x is scaled by pool theirs, for other/r until"):
        check_group_claims(seen)
    check_group_claims(snapshot(group("x")))


def test_a_lease_keeps_the_names_of_groups() -> None:
    named = replace(lease(), groups=("a/b", "c, d"))
    assert DemandLease.parse(named.manifest()) == named
    assert not any("groups" in each for each in lease().manifest()["metadata"]["annotations"])

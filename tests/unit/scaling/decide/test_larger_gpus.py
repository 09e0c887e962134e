"""A task that has run out of GPU memory: which type it gets, and that its nodes come while the others' stay."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.gangs import gang_placements
from airflow_gpu_provider.scaling.decide.placement import larger_type, memory_of
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.state.demand import DemandLease, TaskNodes
from tests.unit.scaling.decide.test_decision_properties import carried_out
from tests.unit.scaling.pools import EARLIER, NOW, SWITCH, A, B, dry, key, lease, machine, node, pod, pool, snapshot

LARGE_A, LARGE_B = "train-a-g6e-xlarge", "train-b-g6e-xlarge"
TYPES = ("g6.xlarge", "g6e.xlarge", "p5.4xlarge")


def larger(task: str = "train", type: str = "g6e.xlarge", **fields: Any) -> TaskNodes:
    return TaskNodes(task_id=task, map_index=-1, instance_type=type, **fields)


def spec(max_nodes: int = 4, **fields: Any) -> Any:
    return pool(**{"instance_types": TYPES, "max_nodes": max_nodes, **fields})


def there(*where: str, max_nodes: int = 4, **how: Any) -> PoolSnapshot:
    """Machines in these groups, with a node each; pods are on their numbers."""
    machines = [machine(number, group) for number, group in enumerate(where, start=1)]
    nodes = tuple(
        node(number, zone="us-west-2a" if "-a-" in group else "us-west-2b", instance_type=_type(group))
        for number, group in enumerate(where, start=1)
    )
    return snapshot(*machines, nodes=nodes, spec=spec(max_nodes), **how)


def _type(group: str) -> str:
    family, _, size = group.split("-", 2)[2].partition("-")
    return f"{family}.{size}"


@pytest.mark.parametrize(
    ("types", "than", "gpus", "found"),
    [
        (TYPES, "g6.xlarge", 1, "g6e.xlarge"),
        (("p5.4xlarge", "g6e.2xlarge", "g6e.xlarge", "g6.xlarge"), "g6.xlarge", 1, "g6e.2xlarge"),
        (TYPES, "g6e.xlarge", 1, "p5.4xlarge"),
        (TYPES, "p5.4xlarge", 1, None),
        (("g6.xlarge", "g5.xlarge"), "g6.xlarge", 1, None),  # 24 GiB both
        (("g6.12xlarge", "g6e.xlarge", "g6e.12xlarge"), "g6.12xlarge", 4, "g6e.12xlarge"),
        (TYPES, "", 1, None),
        (TYPES, "x9.large", 1, None),
    ],
)
def test_the_next_type_is_the_least_larger_one(types: Any, than: str, gpus: int, found: str | None) -> None:
    state = snapshot(spec=spec(instance_types=types))
    assert larger_type(state, than, gpus=gpus) == found


def test_a_node_of_a_type_that_the_spec_does_not_name_is_none_of_the_pool_s() -> None:
    state = there(LARGE_A)
    assert larger_type(replace(state, pool=spec(instance_types=("g6.xlarge",)), groups=()), "g6.xlarge", gpus=1) is None


@pytest.mark.parametrize(("limit", "found"), [(6.0, "g6e.xlarge"), (4.0, "p5.4xlarge"), (2.0, None)])
def test_a_type_that_costs_more_than_the_pool_pays_is_passed_over(limit: float, found: str | None) -> None:
    costs = {"g6-xlarge": 1.0, "g6e-xlarge": 5.0, "p5-4xlarge": 3.0}
    listed = ListPrices(at=NOW, per_hour={f"train-{zone}-{name}": costs[name] for zone in "abc" for name in costs})
    state = snapshot(spec=spec(price_per_hour="list", max_price_per_hour=limit), leases=(lease(prices=listed),))
    assert larger_type(state, "g6.xlarge", gpus=1) == found


def test_a_type_for_people_has_its_memory() -> None:
    assert memory_of(spec(), "g6e.xlarge") == "g6e.xlarge (48 GiB)"
    assert memory_of(spec(), "x9.large") == "x9.large"


def test_its_node_is_launched_beside_those_of_its_siblings() -> None:
    wanted = lease(nodes=2, task_nodes=(larger(),))
    decision = decide(there(A, A, leases=(wanted,), pods=(pod("sibling", on=1, run="run"),)))
    assert decision.grow == {LARGE_A: 1}
    assert [each.id for each in decision.release] == ["i-2"], "its own former one; its sibling's stays"
    (why,) = (line for line in decision.notes if line.startswith("releasing "))
    assert why.endswith(": the next try of train needs g6e.xlarge (48 GiB)")


def test_where_the_pool_is_full_its_former_node_goes_first() -> None:
    wanted = lease(nodes=1, task_nodes=(larger(),))
    first = decide(there(A, max_nodes=1, leases=(wanted,)))
    assert ([each.id for each in first.release], first.grow) == (["i-1"], {})
    assert decide(there(max_nodes=1, leases=(wanted,))).grow == {LARGE_A: 1}


def test_a_larger_node_that_is_there_is_kept_for_it() -> None:
    wanted = lease(nodes=1, task_nodes=(larger(),))
    state = there(LARGE_A, leases=(wanted,), **{LARGE_A.replace("-", "_"): {"switch_at": SWITCH}})
    assert decide(state).is_empty


def test_without_stock_of_the_larger_one_no_smaller_one_comes_instead() -> None:
    wanted = lease(nodes=1, task_nodes=(larger(),))
    no_stock = {name.replace("-", "_"): {"launch_failure": dry()} for name in (LARGE_A, LARGE_B, "train-c-g6e-xlarge")}
    assert not decide(there(leases=(wanted,), **no_stock)).grow
    del no_stock["train_b_g6e_xlarge"]
    assert decide(there(leases=(wanted,), **no_stock)).grow == {LARGE_B: 1}


def test_all_ranks_of_a_gang_move_together() -> None:
    wanted = lease(nodes=3, gang=2, task_nodes=(larger(nodes=2),))
    sibling = pod("sibling", on=3, run="run")
    assert decide(there(B, B, A, max_nodes=5, leases=(wanted,), pods=(sibling,))).grow == {LARGE_A: 2}
    full = decide(there(B, B, A, leases=(wanted,), pods=(sibling,)))
    assert ({each.id for each in full.release}, full.grow) == ({"i-1", "i-2"}, {}), "not one of them alone"


@pytest.mark.parametrize("kept", [(), (larger(times=2),), (larger(), larger("evaluate", "p5.4xlarge", nodes=2))])
def test_the_lease_keeps_what_a_task_has_got(kept: tuple[TaskNodes, ...]) -> None:
    manifest = lease(nodes=3, task_nodes=kept).manifest()
    found = DemandLease.parse(manifest)
    assert found.task_nodes == kept
    assert not found.unreadable
    assert found.task_nodes_of("train", -1) == next(iter(kept), None)
    assert found.task_nodes_of("train", 3) is None
    assert ("airflow-gpu-provider/larger" in manifest["metadata"]["annotations"]) is bool(kept)


@pytest.mark.parametrize("text", ["many", "{}", "[1]", '[{"task_id": "train"}]', '[{"task_id": "", "map_index": 1}]'])
def test_what_cannot_be_read_is_left_out_and_the_demand_stays(text: str) -> None:
    manifest = lease(nodes=3, task_nodes=(larger(),)).manifest()
    manifest["metadata"]["annotations"]["airflow-gpu-provider/larger"] = text
    found = DemandLease.parse(manifest)
    assert (found.nodes, found.task_nodes) == (3, ())
    assert text == "{}" or "airflow-gpu-provider/larger" in str(found.unreadable[0])


@st.composite
def drawn(draw: Any) -> PoolSnapshot:
    where = draw(st.lists(st.sampled_from([A, B, LARGE_A, LARGE_B, "train-a-p5-4xlarge"]), max_size=4))
    leases = []
    for number in range(draw(st.integers(1, 3))):
        tasks = draw(st.integers(0, 2))
        kinds = st.sampled_from(TYPES[1:])
        of_tasks = tuple(
            larger(f"task-{each}", draw(kinds), nodes=draw(st.integers(1, 2)), times=1) for each in range(tasks)
        )
        fields = {"nodes": draw(st.integers(0, 4)), "gang": draw(st.integers(0, 3)), "task_nodes": of_tasks}
        leases.append(lease(f"run-{number}", created_at=EARLIER + timedelta(minutes=number), **fields))
    busy = draw(st.sets(st.integers(1, len(where)))) if where else set()
    pods = tuple(pod(f"pod-{on}", on=on, run=f"run-{draw(st.integers(0, 2))}") for on in sorted(busy))
    return there(*where, leases=tuple(leases), pods=pods, at=NOW)


@given(drawn())
def test_never_more_than_wanted_and_each_part_of_its_type(state: PoolSnapshot) -> None:
    machines = state.supply
    found = gang_placements(state, machines)
    assert found.wanted <= max(state.pool.max_nodes, 0)
    types = {
        key(each.key.run_id).of_task(part.task_id, part.map_index): part
        for each in state.leases
        for part in each.task_nodes
    }
    ids = [each.machine.id for seat in found.by_key.values() for each in seat.machines]
    assert len(ids) == len(set(ids)), "no machine is of two"
    for owner, seat in found.by_key.items():
        if (part := types.get(owner)) is not None:
            assert {_type(name) for name in (*(each.machine.group for each in seat.machines), *seat.placed)} <= {
                part.instance_type
            }
            assert len(seat.machines) + sum(seat.placed.values()) in (len(seat.machines), part.nodes)
    decision = decide(state)
    added = sum(size - len(group.live) for group in state.groups for size in [decision.grow.get(group.name, 0)] if size)
    assert not added or len(machines) + added <= state.pool.max_nodes
    assert not {each.id for each in decision.release} & found.kept
    held = {each.machine.id for each in machines if each.holders}
    assert not {each.id for each in decision.release} & held


@given(drawn())
def test_what_was_decided_is_not_decided_again(state: PoolSnapshot) -> None:
    """What was asked for never comes here."""
    for _ in range(4):
        state = carried_out(state, decide(state))
    again = decide(state)
    assert (again.grow, again.release, again.shrink, again.uncordon) == ({}, (), (), ())

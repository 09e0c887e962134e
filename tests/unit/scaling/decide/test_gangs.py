"""Gangs: several nodes of one zone come together, or what came alone is released and the next group has them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.errors import OutOfStock, PoolSpecError
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.gangs import gang_placements
from airflow_gpu_provider.scaling.decide.snapshot import MachineStatus, PoolSnapshot
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait
from tests.unit.scaling.decide.test_decision_properties import carried_out, snapshots
from tests.unit.scaling.pools import (
    EARLIER,
    LATER,
    NOW,
    SWITCH,
    ZONES,
    A,
    B,
    C,
    dry,
    groups,
    key,
    lease,
    machine,
    node,
    pod,
    pool,
    snapshot,
)

ZONE_OF = dict(zip((A, B, C), ZONES, strict=True))
DRY_A, DRY_B, DRY_C = ({f"train_{zone}_g6_xlarge": {"launch_failure": dry()}} for zone in "abc")


def gang(nodes: int = 2, run: str = "run", **fields: Any) -> DemandLease:
    return lease(run, nodes=nodes, **{"gang": nodes, **fields})


def nodes(*where: str) -> tuple[Any, ...]:
    return tuple(node(number, zone=ZONE_OF[group]) for number, group in enumerate(where, start=1))


def there(*where: str, **how: Any) -> PoolSnapshot:
    machines = [machine(number, group) for number, group in enumerate(where, start=1)]
    return snapshot(*machines, nodes=nodes(*where), **how)


def test_nodes_of_a_gang_come_from_one_group() -> None:
    assert decide(there(leases=(gang(3),))).grow == {A: 3}
    assert set(decide(there(leases=(lease(nodes=3),))).grow) == {A, B, C}, "others are spread over zones"


def test_the_rest_of_a_run_with_a_gang_is_where_its_next_gang_can_have_it() -> None:
    two_gangs = gang(2, run="run")
    two_gangs = replace(two_gangs, nodes=4)
    assert decide(there(leases=(two_gangs,))).grow == {A: 4}
    assert decide(there(A, A, leases=(two_gangs,))).grow == {A: 4}
    assert decide(there(leases=(two_gangs,), **DRY_A)).grow == {B: 4}
    alone = replace(gang(3), nodes=4)
    others = lease("other", nodes=2)
    grown = decide(there(leases=(alone, others), spec=pool(max_nodes=6))).grow
    assert grown == {A: 4, B: 1, C: 1}, "another run's nodes are spread over zones"


def test_a_group_that_has_failed_is_passed_over_for_all_of_them() -> None:
    assert decide(there(leases=(gang(),), **DRY_A)).grow == {B: 2}


def test_a_node_that_came_alone_is_released_and_the_next_group_gets_all() -> None:
    failed = {"train_a_g6_xlarge": {"launch_failure": dry(), "desired": 2}}
    decision = decide(there(A, leases=(gang(),), **failed))
    assert [each.id for each in decision.release] == ["i-1"]
    assert decision.grow == {B: 2}
    assert decision.shrink == (A,)
    assert any("not all of them are there" in line for line in decision.notes if line.startswith("releasing "))


def test_a_node_that_came_alone_is_released_where_nothing_is_left_to_try() -> None:
    decision = decide(there(A, leases=(gang(),), **DRY_A, **DRY_B, **DRY_C))
    assert [each.id for each in decision.release] == ["i-1"]
    assert not decision.grow


def test_a_node_that_came_alone_serves_another_run() -> None:
    decision = decide(there(A, leases=(gang(), lease("other")), **DRY_A))
    assert (decision.release, decision.grow) == ((), {B: 2})


def test_the_others_are_waited_for_while_they_may_come() -> None:
    asked = {"train_a_g6_xlarge": {"desired": 2, "switch_at": SWITCH}}
    assert decide(there(A, leases=(gang(),), **asked)).is_empty


def test_what_is_asked_for_stays_when_a_better_group_may_be_tried_again() -> None:
    asked = {"train_b_g6_xlarge": {"desired": 2, "switch_at": SWITCH}}
    assert decide(there(leases=(gang(),), **asked)).is_empty


def test_surviving_nodes_are_kept_after_a_loss() -> None:
    assert decide(there(B, leases=(gang(),))).grow == {B: 2}


def test_two_gangs_need_not_share_a_zone() -> None:
    decision = decide(there(A, A, leases=(gang(), gang(run="two"))))
    assert (decision.grow, decision.release) == ({A: 4}, ())
    decision = decide(there(A, A, leases=(gang(), gang(run="two")), **DRY_A))
    assert (decision.grow, decision.release) == ({B: 2}, ())


def test_a_gang_stays_where_its_pods_are() -> None:
    on_b = tuple(pod(f"rank-{n}", on=n, run="run") for n in (3, 4))
    decision = decide(there(A, A, B, B, leases=(gang(),), pods=on_b))
    assert sorted(each.id for each in decision.release) == ["i-1", "i-2"]


def test_a_gang_for_which_there_is_no_room_beside_older_demand_keeps_nothing() -> None:
    older = lease("older", nodes=3, created_at=EARLIER - timedelta(hours=1))
    decision = decide(there(A, B, C, leases=(older, gang())))
    assert (decision.grow, decision.release) == ({}, ())


def test_what_is_requested_for_others_draws_no_gang_that_has_no_room_yet() -> None:
    """It left its node for the other demand's request, whose group shrank then, and it came back: once a look."""
    older = lease("older", created_at=EARLIER - timedelta(hours=1))
    state = there(A, A, C, leases=(older, gang(3)))
    drained = tuple(replace(each, cordoned=True) for each in state.nodes[:2])
    state = replace(state, nodes=(*drained, state.nodes[2]))
    assert decide(state).grow == {B: 1}
    again = decide(carried_out(state, decide(state)))
    assert (again.grow, again.shrink, again.release) == ({}, (), ())


def test_groups_of_one_zone_hold_a_gang_together_where_none_can_alone() -> None:
    spec = pool(instance_types=("g6.xlarge", "g5.xlarge"))
    small = tuple(replace(each, max_size=1) for each in groups(spec))
    state = replace(snapshot(spec=spec, leases=(gang(),)), groups=small)
    assert decide(state).grow == {A: 1, "train-a-g5-xlarge": 1}


def test_a_group_over_several_zones_is_no_place_for_a_gang() -> None:
    state = there(leases=(gang(),))
    wide = tuple(
        replace(each, owned=False, candidate=replace(each.candidate, zone="us-west-2a, us-west-2b"))
        for each in state.groups
    )
    state = replace(state, groups=wide)
    assert not decide(state).grow
    error = waiting().step(state).error
    assert isinstance(error, PoolSpecError)
    assert "us-west-2a, us-west-2b" in str(error)


def external(*where: str, **how: Any) -> PoolSnapshot:
    """Nodes that exist already, in one group, and are cordoned when no run wants them."""
    state = there(*where, **how)
    machines = tuple(replace(each, group=A) for group in state.groups for each in group.machines)
    candidate = replace(state.groups[0].candidate, zone="")
    group = replace(
        state.groups[0], candidate=candidate, machines=machines, when_idle="cordon", max_size=9, desired=len(machines)
    )
    return replace(state, groups=(group,))


def test_a_gang_on_external_nodes_has_those_of_one_zone_or_waits_for_them() -> None:
    assert decide(external(A, B, B, C, leases=(gang(),))).cordon == ("node-1", "node-4")
    done = waiting(90).step(external(A, B, B, leases=(gang(),)))
    assert done.done
    scattered = external(A, B, leases=(gang(),))
    assert (decide(scattered).cordon, decide(scattered).grow) == ((), {})
    assert not waiting(90).step(scattered).done
    busy = external(A, A, leases=(gang(),), pods=(pod("other", on=1),))
    assert decide(busy).cordon == ()
    assert waiting(90).step(busy).done, "it waits for its turn there"


def waiting(minutes: float = 30, **how: Any) -> NodesWait:
    end = EARLIER + timedelta(minutes=minutes)
    return NodesWait(key=key("run"), wait_for="ready", started=EARLIER, deadline=end, nodes=2, **how)


def test_two_nodes_of_two_zones_are_no_gang() -> None:
    step = waiting(90).step(there(A, B, leases=(gang(),)))
    assert (step.done, step.error) == (False, None)
    assert "2 nodes of one zone are wanted, us-west-2a has 1, us-west-2b has 1" in step.lines
    done = waiting(90).step(there(A, B, B, leases=(gang(),)))
    assert done.done


def test_nodes_of_an_older_gang_or_another_pod_do_not_count() -> None:
    older = gang(run="older", created_at=EARLIER - timedelta(hours=1))
    assert not waiting(90).step(there(A, A, B, leases=(older, gang()))).done
    assert waiting(90).step(there(A, A, B, B, leases=(older, gang()))).done
    busy = (pod("other", on=1),)
    assert not waiting(90).step(there(A, A, B, leases=(gang(),), pods=busy)).done


def test_a_gang_shares_the_nodes_of_a_pool_that_can_have_no_more() -> None:
    older = gang(run="older", created_at=EARLIER - timedelta(hours=1))
    assert waiting(90).step(there(A, A, leases=(older, gang()), spec=pool(max_nodes=3))).done is False
    assert waiting(90).step(there(A, A, leases=(older, gang()), spec=pool(max_nodes=2))).done


def test_the_error_says_which_zone_had_how_many_and_what_was_tried() -> None:
    error = waiting().step(there(A, leases=(gang(),), **DRY_A, **DRY_B, **DRY_C)).error
    assert isinstance(error, OutOfStock)
    assert "2 nodes of one zone are wanted, us-west-2a has 1 after 1 h" in str(error)
    assert {each["zone"] for each in error.details["tried"]} == set(ZONES)


def test_all_or_nothing_lets_go_of_a_gang_that_no_zone_can_have() -> None:
    state = there(A, leases=(gang(),), **DRY_A, **DRY_B, **DRY_C)
    ask = waiting(300, all_or_nothing=True, patience=timedelta(hours=3)).step(state).ask
    assert ask is not None
    assert (ask.after.nodes, ask.after.gang) == (0, 2)
    assert ask.after.resume_at is not None
    resting = replace(state, leases=(ask.after,), now=ask.after.resume_at)
    again = waiting(300, all_or_nothing=True, patience=timedelta(hours=3)).step(resting).ask
    assert again is not None
    assert again.after.nodes == again.after.gang == 2


@pytest.mark.parametrize("size", [0, 2, 3])
def test_the_lease_keeps_a_gang(size: int) -> None:
    manifest = replace(lease(nodes=3), gang=size).manifest()
    manifest["metadata"]["creationTimestamp"] = EARLIER.isoformat()
    assert DemandLease.parse(manifest).gang == size
    assert ("airflow-gpu-provider/gang" in manifest["metadata"]["annotations"]) is (size > 0)


@st.composite
def with_gangs(draw: Any) -> PoolSnapshot:
    """Draw a pool with gangs among its demand; its nodes' zones are their groups'."""
    state = draw(snapshots())
    several = []
    for number in range(draw(st.integers(1, 3))):
        size = draw(st.integers(2, 3))
        wanted = size + draw(st.integers(0, 1))
        at = EARLIER + timedelta(minutes=draw(st.integers(-5, 5)))
        several.append(lease(f"gang-{number}", nodes=wanted, gang=size, created_at=at, until=LATER))
    zone = {each.id: ZONE_OF[each.group] for group in state.groups for each in group.machines}
    return replace(
        state,
        leases=tuple(sorted((*state.leases, *several), key=lambda each: each.created_at)),
        nodes=tuple(replace(each, zone=zone[each.machine]) for each in state.nodes),
    )


@given(with_gangs())
def test_no_gang_has_nodes_of_two_zones(state: PoolSnapshot) -> None:
    machines = state.supply
    found = gang_placements(state, machines)
    sizes = {each.key: each.gang for each in state.leases}
    for owner, seat in found.by_key.items():
        assert {ZONE_OF[each.machine.group] for each in seat.machines} | {ZONE_OF[name] for name in seat.placed} <= {
            seat.zone
        }
        assert len(seat.machines) + sum(seat.placed.values()) in (len(seat.machines), sizes[owner])
    ids = [each.machine.id for seat in found.by_key.values() for each in seat.machines]
    assert len(ids) == len(set(ids)), "no machine is of two gangs"


def staying_for_runs(state: PoolSnapshot, grown: Mapping[str, int], machines: Sequence[MachineStatus]) -> int:
    """Count the machines that stay for runs.

    Not those that only pods of no living demand hold; of a group that does not grow, the cloud removes by itself what
    it has beyond its size; and what a group has that is still being created can be released only after that.
    """
    runs = {each.key.hash for each in state.leases if each.live(state.now)}
    serving = [each for each in machines if each.counts and (not each.holders or _runs_of(each) & runs)]
    created = {group.name for group in state.groups if group.status != "creating"}
    kept = gang_placements(state, state.supply).kept
    serving = [each for each in serving if each.machine.group in created or each.machine.id in kept]
    by_group = Counter(each.machine.group for each in serving)
    sizes = {group.name: group.desired for group in state.groups if group.name not in grown}
    return sum(min(count, sizes.get(name, count)) for name, count in by_group.items())


def _runs_of(machine: MachineStatus) -> set[str | None]:
    return {pod.run for pod in machine.holders}


@given(with_gangs())
def test_never_more_than_wanted_with_gangs(state: PoolSnapshot) -> None:
    machines = state.supply
    found = gang_placements(state, machines)
    assert found.wanted <= state.pool.max_nodes
    assert found.wanted <= max(state.pool.min_nodes, sum(each.nodes for each in state.leases) + len(state.pods))
    decision = decide(state)
    live = sum(len(group.live) for group in state.groups)
    added = sum(max(0, size - len(group.live)) for group in state.groups for size in [decision.grow.get(group.name, 0)])
    assert not added or live + added <= state.pool.max_nodes
    released = {each.id for each in decision.release}
    staying = staying_for_runs(state, decision.grow, [each for each in machines if each.machine.id not in released])
    assert not added or staying + added <= found.wanted, "beside what is released, broken or taken: that is replaced"
    assert not released & found.kept


@given(with_gangs())
def test_decisions_about_gangs_come_to_an_end(state: PoolSnapshot) -> None:
    """What was asked for never comes here; what was decided is not decided again."""
    state = replace(state, groups=tuple(replace(each, status="active") for each in state.groups))
    for _ in range(4):
        state = carried_out(state, decide(state))
    again = decide(state)
    assert (again.grow, again.release, again.shrink, again.uncordon) == ({}, (), (), ())


@given(st.integers(2, 4), st.lists(st.sampled_from([A, B, C]), max_size=4), st.permutations([A, B, C]))
def test_a_gang_is_whole_in_the_end_wherever_machines_are_to_be_had(
    size: int, where: list[str], order: list[str]
) -> None:
    """Group after group is out of stock after one machine, and the last one has them all."""
    state = there(*where, leases=(gang(size),), spec=pool(max_nodes=4))
    number = len(where)
    for _ in range(20):
        decision = decide(state)
        if not (decision.grow or decision.release):
            break
        state = carried_out(state, decision)
        found = []
        for group in state.groups:
            kept = tuple(each for each in group.machines if each.state != "terminating")
            stock = size if group.name == order[-1] else 1
            failure = group.launch_failure
            while len(kept) < group.desired and len(kept) < stock:
                number += 1
                kept = (*kept, machine(number, group.name))
            if len(kept) < group.desired:
                failure = dry()
            found.append(replace(group, machines=kept, launch_failure=failure, desired=max(group.desired, len(kept))))
        ids = [each for group in found for each in group.machines]
        state = replace(
            state,
            groups=tuple(found),
            nodes=tuple(node(int(each.id.removeprefix("i-")), zone=ZONE_OF[each.group]) for each in ids),
        )
    zones = [each.zone for each in state.nodes]
    assert len(zones) == size
    assert len(set(zones)) == 1
    assert waiting(1000).step(state).done


def test_demand_of_a_gang_whose_task_never_came_back_ends_when_its_pods_may_have_been_collected() -> None:
    """Its worker was killed after the trigger had seen the gang's end: nobody else deletes the Lease."""
    own = gang(2)
    own = replace(own, key=own.key.of_task("train", -1))
    assert (own.key.is_of_task, gang(2).key.is_of_task) == (True, False)

    def seen(minutes: float, demand: DemandLease = own, **last: Any) -> PoolSnapshot:
        ended = {"phase": "Succeeded", "finished_at": NOW - timedelta(minutes=minutes), "uncollected": True}
        pods = [replace(pod("rank-0", 1, **ended), run=demand.key.hash)]
        pods += [replace(pod("rank-1", 2, **{**ended, **last}), run=demand.key.hash)]
        return there(A, A, leases=(demand,), pods=tuple(pods))

    def released(at: PoolSnapshot) -> int:
        return len(decide(at).release)

    assert released(seen(9)) == 0
    assert released(seen(11)) == 2
    assert released(seen(11, phase="Running", finished_at=None)) == 0
    assert released(seen(11, uncollected=False)) == 0, "another attempt of the task may be about to begin"
    deleted = {"delete_at": NOW - timedelta(minutes=10)}
    assert released(seen(11, **deleted)) == 0, "its worker has deleted it, and may go on with another attempt"
    assert released(seen(11, gang(2))) == 0, "a block's next task may need them"

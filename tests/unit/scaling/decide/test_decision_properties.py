"""decide: what holds for every state that a pool can be in."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_gpu_provider.clouds.base import Group
from airflow_gpu_provider.pools.switch import SWITCH_MARGIN
from airflow_gpu_provider.scaling.decide.decisions import Decision, decide, switch_time
from airflow_gpu_provider.scaling.decide.placement import place_machines
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot, wanted_nodes
from tests.unit.scaling.pools import (
    EARLIER,
    LATER,
    NOW,
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
)

GROUPS = (A, B, C)
RUNS = ("one", "two", "gone")
recently = NOW - timedelta(minutes=1)


@st.composite
def leases(draw: Any) -> Any:
    until = draw(st.sampled_from([LATER, LATER + timedelta(hours=1), NOW - timedelta(minutes=1)]))
    runs = draw(st.lists(st.sampled_from(RUNS[:2]), unique=True))
    return tuple(lease(run, nodes=draw(st.integers(1, 3)), until=until) for run in runs)


@st.composite
def nodes_of(draw: Any, number: int) -> Any:
    changes = draw(
        st.sampled_from(
            [
                {},
                {"ready": False, "ready_changed_at": recently},
                {"ready": False, "ready_changed_at": EARLIER},
                {"cordoned": True},
                {"cordoned": True, "cordon_mark": True},
                {"cordon_mark": True},
                {"autoscaler_deleting": True},
            ]
        )
    )
    return node(number, **changes)


@st.composite
def pods_on(draw: Any, number: int | None, name: str) -> Any:
    changes: dict[str, Any] = draw(
        st.sampled_from(
            [
                {},
                {"gpus": 0},
                {"daemon": True},
                {"delete_at": NOW},
                {"phase": "Succeeded", "finished_at": recently, "uncollected": True},
                {"phase": "Failed", "finished_at": EARLIER, "uncollected": True},
            ]
        )
    )
    return pod(name, on=number, run=draw(st.sampled_from([None, *RUNS])), **(changes if number is not None else {}))


@st.composite
def snapshots(draw: Any) -> PoolSnapshot:
    spec = pool(max_nodes=draw(st.integers(1, 5)), min_nodes=draw(st.integers(0, 1)))
    machines, nodes, pods = [], [], []
    for number in range(draw(st.integers(0, 5))):
        state = draw(st.sampled_from(["pending", "running", "running", "terminating"]))
        launched = draw(st.sampled_from([EARLIER, recently, None]))
        machines.append(machine(number, draw(st.sampled_from(GROUPS)), state, launched))
        if draw(st.booleans()) or draw(st.booleans()):
            nodes.append(draw(nodes_of(number)))
            pods += [draw(pods_on(number, f"pod-{number}-{n}")) for n in range(draw(st.integers(0, 2)))]
    pods += [draw(pods_on(None, f"waiting-{n}")) for n in range(draw(st.integers(0, 2)))]
    found = groups(spec, *machines)
    return PoolSnapshot(
        now=NOW,
        pool=spec,
        leases=draw(leases()),
        nodes=tuple(nodes),
        pods=tuple(pods),
        groups=tuple(draw(changed(group)) for group in found),
    )


@st.composite
def changed(draw: Any, group: Group) -> Group:
    updated = "updating" if group.machines else "upgrading"
    return replace(
        group,
        desired=max(0, group.desired + draw(st.sampled_from([0, 0, 0, 1, 2, -1]))),
        status=draw(st.sampled_from(["active"] * 6 + ["creating", "degraded", "failed", updated])),
        launch_failure=draw(st.sampled_from([None, None, dry(1), dry(3), dry(10)])),
        switch_at=draw(st.sampled_from([None, LATER, LATER + timedelta(days=1)])),
    )


def carried_out(state: PoolSnapshot, decision: Decision) -> PoolSnapshot:
    """Return the state after all that was decided has happened, and what was asked for has come."""
    released = {each.id for each in decision.release}
    after = []
    for group in state.groups:
        desired = decision.grow.get(group.name, group.desired)
        if group.name in decision.shrink:
            desired = len(group.live)
        desired -= sum(each.group == group.name for each in decision.release)
        switch_at = decision.switch.get(group.name, None if group.name in decision.clear_switch else group.switch_at)
        kept = tuple(replace(each, state="terminating") if each.id in released else each for each in group.machines)
        after.append(replace(group, desired=max(0, desired), machines=kept, switch_at=switch_at))
    nodes = tuple(
        replace(
            each,
            cordoned=each.name in decision.cordon or (each.cordoned and not (each.cordon_mark and is_undone(each))),
            cordon_mark=each.name in decision.cordon or (each.cordon_mark and not is_undone(each)),
        )
        for each in state.nodes
        for is_undone in [lambda one: one.name in decision.uncordon]
    )
    return replace(state, nodes=nodes, groups=tuple(after))


@given(snapshots())
def test_max_nodes_is_never_passed_by_growing(state: PoolSnapshot) -> None:
    decision = decide(state)
    live = sum(len(group.live) for group in state.groups)
    sizes = Counter({group.name: max(group.desired, len(group.live)) for group in state.groups})
    for group in state.groups:
        if group.name in decision.shrink:
            sizes[group.name] = len(group.live)
        sizes[group.name] = max(sizes[group.name], decision.grow.get(group.name, 0))
    asked_before = sum(max(group.desired, len(group.live)) for group in state.groups)
    if any(decision.grow[name] > len(group.live) for group in state.groups if (name := group.name) in decision.grow):
        untouchable = sum(
            group.unfilled for group in state.groups if group.status in ("creating", "upgrading", "failed", "deleting")
        )
        assert sizes.total() - untouchable <= max(state.pool.max_nodes, live)
    else:
        assert sizes.total() <= asked_before


@given(snapshots())
def test_a_group_never_shrinks_by_growing(state: PoolSnapshot) -> None:
    groups_by_name = {group.name: group for group in state.groups}
    for name, size in decide(state).grow.items():
        assert size > groups_by_name[name].desired
        assert size >= len(groups_by_name[name].live)


@given(snapshots())
def test_an_autoscaler_s_sizes_are_left_to_it_and_no_pod_loses_its_node(state: PoolSnapshot) -> None:
    theirs = replace(state, pool=replace(state.pool, scaling="autoscaler"))
    decision = decide(theirs)
    assert (decision.grow, decision.shrink) == ({}, ())
    gone = {each.id for each in decision.release}
    left = [each for each in theirs.supply if each.counts and each.machine.id not in gone]
    assert all(each.machine.id not in gone for each in theirs.supply if each.holders or each.state == "taken")
    there = sum(each.counts for each in theirs.supply)
    assert len(left) >= min(there, wanted_nodes(theirs))


@given(snapshots())
def test_a_held_machine_is_never_released(state: PoolSnapshot) -> None:
    released = {each.id for each in decide(state).release}
    expired = {each.key.hash for each in state.leases if not each.live(state.now)}
    for each in state.nodes:
        for one in state.pods:
            if one.node == each.name and one.holds_node(state.now) and (one.finished or one.run not in expired):
                assert each.machine not in released
        if each.cordoned and not each.cordon_mark:
            assert each.machine not in released


@given(snapshots())
def test_no_machine_of_a_group_that_is_updated_is_released(state: PoolSnapshot) -> None:
    """It goes once the update is over, if it is superfluous then."""
    decision = decide(state)
    status = {group.name: group.status for group in state.groups}
    assert {status[each.group] for each in decision.release}.isdisjoint({"updating"})
    assert {status[each.group] for each in decision.later} <= {"updating"}
    after = replace(
        state,
        groups=tuple(
            replace(each, status="active" if each.status == "updating" else each.status) for each in state.groups
        ),
    )
    assert {*decision.release, *decision.later} == set(decide(after).release)


@given(snapshots())
def test_no_more_is_released_than_is_not_wanted(state: PoolSnapshot) -> None:
    released = {each.id for each in decide(state).release}
    left = [each for each in state.supply if each.counts and each.machine.id not in released]
    counted = sum(each.counts for each in state.supply)
    assert len(left) >= min(counted, wanted_nodes(state))


@given(snapshots())
def test_a_decision_that_was_carried_out_is_not_made_again(state: PoolSnapshot) -> None:
    """What has no use goes first, and its place is filled after that: at most two rounds."""
    for _ in range(2):
        state = carried_out(state, decide(state))
    again = decide(state)
    assert not again.release
    assert not again.uncordon
    assert not again.switch
    assert not again.shrink or any(group.launch_failure for group in state.groups)


@given(snapshots())
def test_more_demand_never_means_fewer_machines(state: PoolSnapshot) -> None:
    assume(all(group.desired >= len(group.live) for group in state.groups))  # such groups are left to the cloud
    more = replace(state, leases=(*state.leases, replace(lease(nodes=1), key=key("another"))))
    assert {each.id for each in decide(more).release} <= {each.id for each in decide(state).release}
    assert wanted_nodes(more) >= wanted_nodes(state)


@given(snapshots())
def test_what_grows_has_a_switch_after_the_last_demand(state: PoolSnapshot) -> None:
    decision = decide(state)
    ends = [each.until for each in state.leases if each.live(state.now)]
    for group in state.groups:
        if group.name in decision.grow and ends:
            at = decision.switch.get(group.name) or group.switch_at
            assert at is not None
            assert at > max(ends)


@given(snapshots())
def test_where_nobody_wants_anything_no_switch_is_moved_before_the_end_of_a_pod(state: PoolSnapshot) -> None:
    assume(switch_time(state) is None)
    decision = decide(state)
    for group in state.groups:
        mine = [each for each in state.supply if each.machine.group == group.name]
        at = decision.switch.get(group.name)
        if at is None or at == group.switch_at or group.name in decision.grow:
            continue
        for holder in chain.from_iterable(each.holders for each in mine):
            assert holder.lets_go_at is not None
            assert at >= holder.lets_go_at + SWITCH_MARGIN
        assert group.switch_at is None or at < group.switch_at, "it is only ever moved to come sooner"


@given(snapshots())
def test_every_step_says_why(state: PoolSnapshot) -> None:
    decision = decide(state)
    for name in (*decision.grow, *decision.shrink):
        assert any(line.startswith(f"{name} ") for line in decision.notes)
    assert sum(line.startswith("releasing ") for line in decision.notes) == len(decision.release)


@given(snapshots(), st.integers(0, 6))
def test_what_is_missing_is_placed_as_far_as_there_is_room(state: PoolSnapshot, missing: int) -> None:
    placed = place_machines(state.groups, missing, state.now)
    possible = [group for group in state.groups if group.status != "failed"]
    room = sum(max(0, group.max_size - len(group.live), group.unfilled) for group in possible)
    assert placed.total() <= missing
    assert set(placed) <= {group.name for group in possible}
    if not any(group.launch_failure for group in state.groups):
        assert placed.total() == min(missing, room)

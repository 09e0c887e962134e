"""decide: what is done about a pool, one situation a test."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_gpu_provider.clouds.base import LaunchFailure
from airflow_gpu_provider.errors import NodesNotReady
from airflow_gpu_provider.scaling.decide.decisions import Decision, decide, switch_time
from airflow_gpu_provider.scaling.decide.snapshot import usable_needed, usable_nodes, wanted_nodes
from tests.unit.scaling.pools import (
    EARLIER,
    LATER,
    NOW,
    SWITCH,
    A,
    B,
    C,
    dry,
    key,
    lease,
    machine,
    node,
    pod,
    pool,
    snapshot,
)


def released(decision: Decision) -> list[str]:
    return [each.id for each in decision.release]


# -- up --------------------------------------------------------------------------------------------------------


def test_nobody_wants_anything() -> None:
    assert decide(snapshot()).is_empty


def test_one_node_is_wanted_from_zero() -> None:
    decision = decide(snapshot(leases=(lease(),)))
    assert decision.grow == {A: 1}
    assert decision.switch == {A: SWITCH}
    assert decision.notes == (f"{A} 0->1, wanted by dag/run (1 node)",)


def test_several_nodes_are_spread_over_the_zones() -> None:
    assert decide(snapshot(leases=(lease(nodes=4),))).grow == {A: 2, B: 1, C: 1}


def test_what_exists_is_kept_and_what_is_missing_comes_on_top() -> None:
    assert decide(snapshot(machine(1), leases=(lease(nodes=2),))).grow == {B: 1}


def test_the_size_is_never_set_below_what_exists() -> None:
    spec = pool(max_nodes=2, zones=("us-west-2a",))
    decision = decide(snapshot(machine(1), leases=(lease(nodes=2),), spec=spec, **at_zone_a_only()))
    assert decision.grow == {A: 2}


def at_zone_a_only() -> dict[str, dict[str, object]]:
    return {name.replace("-", "_"): {"status": "failed"} for name in (B, C)}


def test_demand_is_capped_at_max_nodes() -> None:
    state = snapshot(leases=(lease("a", 3), lease("b", 3)), spec=pool(max_nodes=4))
    assert wanted_nodes(state) == 4
    assert sum(decide(state).grow.values()) == 4


def test_min_nodes_are_there_without_demand_and_without_a_switch() -> None:
    decision = decide(snapshot(spec=pool(min_nodes=2)))
    assert decision.grow == {A: 1, B: 1}
    assert decision.switch == {}


def test_the_switch_is_taken_off_what_min_nodes_keep() -> None:
    assert decide(snapshot(machine(1), spec=pool(min_nodes=1))).clear_switch == (A,)


def test_a_cloud_without_a_switch_is_not_asked_for_one() -> None:
    without = {name.replace("-", "_"): {"has_switch": False} for name in (A, B, C)}
    decision = decide(snapshot(leases=(lease(),), **without))
    assert (decision.grow, decision.switch) == ({A: 1}, {})


def test_machines_that_boot_are_waited_for() -> None:
    booting = machine(1, state="pending", launched_at=NOW)
    assert decide(snapshot(booting, leases=(lease(),), nodes=())).is_empty


def test_a_size_that_is_asked_for_already_is_waited_for() -> None:
    state = snapshot(leases=(lease(),), train_b_g6_xlarge={"desired": 1, "switch_at": SWITCH})
    assert decide(state).is_empty


def test_machines_on_their_way_out_are_no_supply() -> None:
    state = snapshot(machine(1, state="terminating"), leases=(lease(),), spec=pool(max_nodes=1))
    assert decide(state).grow == {A: 1}


def test_a_machine_that_never_joins_is_replaced() -> None:
    decision = decide(snapshot(machine(1), leases=(lease(),), nodes=()))
    assert released(decision) == ["i-1"]
    assert decision.grow == {B: 1}
    assert "has no node in the cluster 15 minutes after its launch" in decision.notes[-1]


def test_a_machine_that_is_slow_to_join_is_told_with_the_time_of_its_replacement() -> None:
    slow = machine(1, launched_at=NOW - timedelta(minutes=4))
    decision = decide(snapshot(slow, leases=(lease(),), nodes=()))
    assert decision.notes == (
        f"machine i-1 (no node in the pool) of {A} has no node in the cluster; it runs since 01:56:00Z;"
        " it is replaced if it is not usable by 02:11:00Z",
    )
    blinking = node(1, ready=False, ready_changed_at=NOW - timedelta(minutes=4))
    decision = decide(snapshot(machine(1), leases=(lease(),), nodes=(blinking,)))
    assert decision.notes == (
        f"node node-1 of {A} is not Ready since 01:56:00Z; it is replaced if it is not usable by 02:11:00Z",
    )
    given = {"when_idle": "keep"}
    assert decide(snapshot(machine(1), leases=(lease(),), nodes=(blinking,), train_a_g6_xlarge=given)).notes == ()


def test_a_pool_without_groups_names_who_creates_them() -> None:
    state = replace(snapshot(leases=(lease(),)), groups=())
    assert decide(state).notes == (
        "pool train has no node group: EnsureGpuPoolOperator, or a gpu_nodes block, creates them",
    )
    just_made = replace(state, leases=(replace(lease(), created_at=NOW),))
    assert decide(just_made).notes == ()


def test_at_max_nodes_the_dead_machine_goes_before_the_next_comes() -> None:
    decision = decide(snapshot(machine(1), leases=(lease(),), nodes=(), spec=pool(max_nodes=1)))
    assert (released(decision), decision.grow) == (["i-1"], {})


def test_a_node_that_is_not_ready_for_a_moment_still_counts() -> None:
    blinking = node(1, ready=False, ready_changed_at=NOW - timedelta(minutes=2))
    assert decide(snapshot(machine(1), leases=(lease(),), nodes=(blinking,))).is_empty


def test_a_group_that_is_about_to_lose_a_wanted_machine_is_set_to_what_exists() -> None:
    state = snapshot(machine(1), machine(2), leases=(lease(nodes=2),), train_a_g6_xlarge={"desired": 1})
    assert decide(state).grow == {A: 2}


SPOT = "train-a-g6-xlarge-spot"


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("max_nodes", [1, 4])
def test_a_spot_machine_s_replacement_is_left_to_the_cloud_until_it_has_taken_its_place(
    joined: bool, max_nodes: int
) -> None:
    """Capacity Rebalancing: two machines in a group of size one, and the old one goes when the new one is Ready."""
    spec = pool(capacity_types=("SPOT",), max_nodes=max_nodes)
    state = snapshot(
        machine(1, SPOT),
        machine(2, SPOT, state="running" if joined else "pending"),
        leases=(lease(),),
        nodes=(node(1), node(2))[: 1 + joined],
        pods=(pod("train", on=1, run="run"),),
        spec=spec,
        train_a_g6_xlarge_spot={"desired": 1},
    )
    assert decide(state).is_empty
    given_up = decide(replace(state, leases=()))
    assert (given_up.grow, given_up.release, given_up.shrink) == ({}, (), ())


def test_what_a_replacement_adds_makes_no_other_machine_superfluous() -> None:
    other = "train-b-g6-xlarge-spot"
    state = snapshot(
        machine(1, SPOT),
        machine(2, SPOT),
        machine(3, other),
        leases=(lease(nodes=2),),
        spec=pool(capacity_types=("SPOT",)),
        train_a_g6_xlarge_spot={"desired": 1},
    )
    assert decide(state).is_empty


def test_a_spot_group_below_what_is_needed_is_set_to_what_exists() -> None:
    state = snapshot(
        machine(1, SPOT),
        machine(2, SPOT),
        leases=(lease(nodes=2),),
        spec=pool(capacity_types=("SPOT",)),
        train_a_g6_xlarge_spot={"desired": 1},
    )
    assert decide(state).grow == {SPOT: 2}


def test_no_size_is_above_the_group_s_largest() -> None:
    sizes = {"desired": 1, "max_size": 1}
    state = snapshot(machine(1), machine(2), leases=(lease(nodes=2),), train_a_g6_xlarge=sizes)
    assert A not in decide(state).grow


def test_nothing_is_released_while_its_group_is_updated() -> None:
    """A surge upgrade adds a machine first; and it is no more superfluous than the one that it is to replace."""
    state = snapshot(machine(1), machine(2), train_a_g6_xlarge={"status": "updating"})
    decision = decide(state)
    assert (released(decision), {each.id for each in decision.later}) == ([], {"i-1", "i-2"})
    assert decision.cordon == ()
    assert decision.switch == {A: NOW + timedelta(minutes=15)}
    why = "is released when its group has been updated: no run wants it"
    assert decision.notes[0].startswith(f"node node-1 of {A} {why}")
    after = replace(state, groups=tuple(replace(group, status="active") for group in state.groups))
    assert set(released(decide(after))) == {"i-1", "i-2"}


def test_a_group_that_the_switch_has_set_to_zero_is_left_to_it() -> None:
    assert decide(snapshot(machine(1), train_a_g6_xlarge={"desired": 0})).is_empty


def test_what_is_kept_of_it_for_a_pod_that_ends_has_a_switch_again() -> None:
    ending = pod("ending", on=1, run="given up", delete_at=NOW)
    decision = decide(snapshot(machine(1), pods=(ending,), train_a_g6_xlarge={"desired": 0, "switch_at": None}))
    assert (decision.grow, decision.switch) == ({A: 1}, {A: NOW + timedelta(minutes=25)})


def test_groups_that_are_being_created_are_waited_for_in_their_turn() -> None:
    decision = decide(snapshot(leases=(lease(),), train_a_g6_xlarge={"status": "creating"}))
    assert decision.grow == {}
    assert decision.notes == (f"{A} grows to 1 when it has been created",)


def test_groups_that_are_brought_up_to_date_are_waited_for_and_get_no_machine_until_then() -> None:
    """EKS would replace one that came meanwhile."""
    decision = decide(snapshot(leases=(lease(),), train_a_g6_xlarge={"status": "upgrading"}))
    assert decision.grow == {}
    assert decision.notes == (f"{A} grows to 1 when it has been updated",)


def test_failed_groups_are_passed_over() -> None:
    assert decide(snapshot(leases=(lease(),), train_a_g6_xlarge={"status": "failed"})).grow == {B: 1}


# -- out of stock ----------------------------------------------------------------------------------------------


def test_the_next_zone_is_tried_and_the_dry_one_is_not_asked_any_more() -> None:
    waiting = {"desired": 1, "launch_failure": dry(), "switch_at": SWITCH}
    decision = decide(snapshot(leases=(lease(),), train_a_g6_xlarge=waiting))
    assert (decision.grow, decision.shrink) == ({B: 1}, (A,))
    assert decision.notes[:2] == (
        "no g6.xlarge on-demand in us-west-2a (InsufficientInstanceCapacity, not tried again until 02:04Z)",
        "trying g6.xlarge on-demand in us-west-2b",
    )


def test_a_dry_zone_is_tried_again_after_a_while() -> None:
    state = snapshot(leases=(lease(),), train_a_g6_xlarge={"launch_failure": dry(minutes_ago=6)})
    assert decide(state).grow == {A: 1}


def test_a_failed_launch_for_another_reason_passes_on_to_the_next_zone_too() -> None:
    failure = {"launch_failure": dry().__class__(at=NOW, message="There are not enough free addresses")}
    assert decide(snapshot(leases=(lease(),), train_a_g6_xlarge=failure)).grow == {B: 1}
    all_failed = {f"train_{each}_g6_xlarge": failure for each in "abc"}
    assert decide(snapshot(leases=(lease(),), **all_failed)).grow == {A: 1}


def test_types_come_before_markets() -> None:
    spec = pool(instance_types=("g6.xlarge", "g5.xlarge"), capacity_types=("SPOT", "ON_DEMAND"))
    order = [group.candidate for group in snapshot(spec=spec).groups]
    dried: dict[str, dict[str, object]] = {}
    tried = []
    for _ in range(4):
        (name,) = decide(snapshot(leases=(lease(),), spec=spec, **dried)).grow
        (candidate,) = (each for each in order if each.group == name)
        tried.append((candidate.instance_type, candidate.market))
        same = [c for c in order if (c.instance_type, c.market) == tried[-1]]
        dried |= {c.group.replace("-", "_"): {"launch_failure": dry()} for c in same}
    assert tried == [
        ("g6.xlarge", "SPOT"),
        ("g5.xlarge", "SPOT"),
        ("g6.xlarge", "ON_DEMAND"),
        ("g5.xlarge", "ON_DEMAND"),
    ]


def test_a_zone_that_is_dry_again_and_again_is_passed_over_for_longer() -> None:
    twice = replace(dry(minutes_ago=6), earlier=(NOW - timedelta(minutes=20),))
    decision = decide(snapshot(leases=(lease(),), train_a_g6_xlarge={"launch_failure": twice}))
    assert decision.grow == {B: 1}
    assert "(InsufficientInstanceCapacity, 2nd time, not tried again until 02:04Z)" in decision.notes[0]


def test_a_quota_is_met_in_every_zone_at_once() -> None:
    spec = pool(capacity_types=("SPOT", "ON_DEMAND"))
    spot, *_, on_demand = snapshot(spec=spec).groups
    used_up = LaunchFailure(at=NOW, message="MaxSpotInstanceCountExceeded", kind="quota")
    failed = {spot.name.replace("-", "_"): {"launch_failure": used_up}}
    decision = decide(snapshot(leases=(lease(),), spec=spec, **failed))
    assert [on_demand.candidate.market] == ["ON_DEMAND"]
    assert list(decision.grow) == [A]
    assert sum("spot" in note for note in decision.notes) == 3


def test_a_quota_is_tried_again_at_once_when_a_machine_of_the_pool_has_ended_in_another_zone() -> None:
    met = LaunchFailure(at=NOW - timedelta(minutes=2), message="VcpuLimitExceeded", kind="quota")
    full = {"launch_failure": met, "failures": (met,)}
    waits = decide(snapshot(machine(1, B, state="terminating"), leases=(lease(),), train_a_g6_xlarge=full))
    assert waits.grow == {}
    ended = {"last_end": NOW - timedelta(seconds=1)}
    decision = decide(snapshot(leases=(lease(),), train_a_g6_xlarge=full, train_b_g6_xlarge=ended))
    assert decision.grow == {A: 1}


def test_when_all_is_dry_nothing_is_asked_for_until_the_first_one_s_time_has_come() -> None:
    state = snapshot(
        leases=(lease(),),
        train_a_g6_xlarge={"launch_failure": dry(1), "desired": 1, "switch_at": SWITCH},
        train_b_g6_xlarge={"launch_failure": dry(3)},
        train_c_g6_xlarge={"launch_failure": dry(2)},
    )
    decision = decide(state)
    assert (decision.grow, decision.shrink) == ({}, (A,))
    assert "nothing is left to try; g6.xlarge on-demand in us-west-2b is next, at 02:02Z" in decision.notes
    assert decide(replace(state, now=NOW + timedelta(minutes=2))).grow == {B: 1}


def test_machines_of_a_dry_zone_stay() -> None:
    state = snapshot(machine(1), leases=(lease(nodes=2),), train_a_g6_xlarge={"launch_failure": dry(), "desired": 2})
    decision = decide(state)
    assert (decision.grow, decision.shrink, decision.release) == ({B: 1}, (A,), ())


# -- down ------------------------------------------------------------------------------------------------------


def test_a_machine_that_nobody_wants_goes_by_name_after_a_cordon() -> None:
    decision = decide(snapshot(machine(1)))
    assert (released(decision), decision.cordon, decision.grow) == (["i-1"], ("node-1",), {})


def test_unfilled_size_goes_too() -> None:
    assert decide(snapshot(train_a_g6_xlarge={"desired": 2})).shrink == (A,)


def test_what_goes_first() -> None:
    machines = [machine(n, launched_at=EARLIER + timedelta(minutes=n)) for n in range(1, 6)]
    nodes = (node(1), node(2), node(3, cordoned=True, cordon_mark=True), node(4, ready=False, ready_changed_at=NOW))
    machines[4] = machine(5, launched_at=NOW)
    order = [
        (
            set(
                released(
                    decide(snapshot(*machines, nodes=nodes, leases=(lease(nodes=5 - gone),), spec=pool(max_nodes=5)))
                )
            )
        )
        for gone in range(1, 5)
    ]
    assert order == [{"i-5"}, {"i-5", "i-4"}, {"i-5", "i-4", "i-3"}, {"i-5", "i-4", "i-3", "i-2"}]


def test_a_machine_with_somebody_s_pod_stays_and_whose_it_is_is_said() -> None:
    decision = decide(snapshot(machine(1), pods=(pod("theirs", on=1, gpus=0),)))
    assert decision.release == ()
    assert decision.notes == (f"node node-1 of {A} is kept: pod default/theirs holds it",)


def test_daemons_hold_nothing() -> None:
    assert released(decide(snapshot(machine(1), pods=(pod("plugin", on=1, daemon=True, gpus=0),)))) == ["i-1"]


def test_a_finished_pod_holds_its_node_until_it_is_collected_or_its_time_is_up() -> None:
    ended = {"phase": "Succeeded", "finished_at": NOW - timedelta(minutes=1)}
    assert not decide(snapshot(machine(1), pods=(pod("p", on=1, uncollected=True, **ended),))).release
    assert released(decide(snapshot(machine(1), pods=(pod("p", on=1, **ended),)))) == ["i-1"]
    ended["finished_at"] = NOW - timedelta(minutes=11)
    assert released(decide(snapshot(machine(1), pods=(pod("p", on=1, uncollected=True, **ended),)))) == ["i-1"]


def test_what_keeps_a_pod_that_has_ended_and_is_deleted_is_told_and_keeps_no_machine() -> None:
    ended = {"phase": "Succeeded", "finished_at": NOW - timedelta(minutes=1), "uncollected": True}
    stuck = pod("p", on=1, delete_at=NOW - timedelta(seconds=50), finalizers=("kueue.x-k8s.io/managed",), **ended)
    decision = decide(snapshot(machine(1), pods=(stuck,)))
    assert released(decision) == ["i-1"]
    (line,) = [line for line in decision.notes if "finalizer" in line]
    assert "pod default/p has ended and is deleted, but its finalizer kueue.x-k8s.io/managed keeps it" in line


def test_the_idle_machine_goes_and_the_busy_one_stays() -> None:
    state = snapshot(machine(1), machine(2), leases=(lease(),), pods=(pod("p", on=2, run="run"),))
    assert released(decide(state)) == ["i-1"]


def test_a_cordon_that_is_not_ours_is_respected() -> None:
    decision = decide(snapshot(machine(1), leases=(lease(),), nodes=(node(1, cordoned=True),)))
    assert (decision.release, decision.uncordon, decision.grow) == ((), (), {B: 1})
    assert decision.notes[-1] == f"node node-1 of {A} is neither used nor removed: it was cordoned externally"


def test_what_cluster_autoscaler_removes_is_left_to_it() -> None:
    assert decide(snapshot(machine(1), nodes=(node(1, autoscaler_deleting=True),))).is_empty


def test_a_cordoned_machine_counts_against_max_nodes() -> None:
    state = snapshot(machine(1), leases=(lease(),), nodes=(node(1, cordoned=True),), spec=pool(max_nodes=1))
    decision = decide(state)
    assert decision.grow == {}
    assert decision.notes[-1] == "1 more wanted, but max_nodes=1 machines exist"


def test_a_dead_holder_s_cordon_is_carried_out_where_nobody_wants_the_node() -> None:
    decision = decide(snapshot(machine(1), nodes=(node(1, cordoned=True, cordon_mark=True),)))
    assert (released(decision), decision.cordon, decision.uncordon) == (["i-1"], (), ())


def test_a_dead_holder_s_cordon_is_undone_where_the_node_is_wanted() -> None:
    state = snapshot(machine(1), leases=(lease(),), nodes=(node(1, cordoned=True, cordon_mark=True),))
    assert (decide(state).release, decide(state).uncordon) == ((), ("node-1",))


def test_a_node_whose_machine_is_ending_stays_cordoned() -> None:
    state = snapshot(machine(1, state="terminating"), nodes=(node(1, cordoned=True, cordon_mark=True),))
    assert decide(state).is_empty


def test_unclear_machines_of_a_shrinking_group_are_left_to_the_cloud() -> None:
    state = snapshot(machine(1), machine(2), train_a_g6_xlarge={"desired": 1})
    assert decide(state).is_empty


# -- leases and time -------------------------------------------------------------------------------------------


def test_an_expired_lease_wants_nothing() -> None:
    assert wanted_nodes(snapshot(leases=(lease(until=NOW),))) == 0


def test_a_pod_whose_run_s_time_is_over_goes_with_its_machine() -> None:
    decision = decide(snapshot(machine(1), leases=(lease(until=NOW),), pods=(pod("late", on=1, run="run"),)))
    assert released(decision) == ["i-1"]
    assert "pod default/late ends with it" in decision.notes[0]


def test_an_overdue_machine_serves_nobody_else() -> None:
    leases = (lease("old", until=NOW), lease("new"))
    decision = decide(snapshot(machine(1), leases=leases, pods=(pod("late", on=1, run="old"),)))
    assert (released(decision), decision.grow) == (["i-1"], {B: 1})


def test_a_pod_beside_an_overdue_one_protects_the_machine() -> None:
    leases = (lease("old", until=NOW), lease("new"))
    pods = (pod("late", on=1, run="old"), pod("young", on=1, run="new"))
    assert decide(snapshot(machine(1), leases=leases, pods=pods)).release == ()


def test_a_pod_without_a_lease_is_demand_and_is_never_killed() -> None:
    state = snapshot(machine(1), pods=(pod("theirs", on=1), pod("waiting")))
    assert wanted_nodes(state) == 2
    assert decide(state).grow == {B: 1}


def test_pending_pods_without_a_lease_share_nodes() -> None:
    spec = pool(instance_types=("g6.12xlarge",))
    assert wanted_nodes(snapshot(pods=tuple(pod(str(n)) for n in range(3)), spec=spec)) == 1
    assert wanted_nodes(snapshot(pods=tuple(pod(str(n)) for n in range(5)), spec=spec)) == 2


def test_pods_of_a_leased_run_are_no_further_demand() -> None:
    state = snapshot(leases=(lease(),), pods=(pod("one", run="run"), pod("two", run="run")))
    assert wanted_nodes(state) == 1


def test_a_pod_that_was_deleted_is_no_demand_but_holds_its_node_while_it_ends() -> None:
    ending = pod("p", on=1, delete_at=NOW + timedelta(seconds=20))
    state = snapshot(machine(1), pods=(ending,))
    assert wanted_nodes(state) == 0
    assert decide(state).release == ()


def test_a_pod_that_cannot_end_stops_holding_its_node() -> None:
    stuck = pod("p", on=1, delete_at=NOW - timedelta(minutes=11))
    assert released(decide(snapshot(machine(1), pods=(stuck,)))) == ["i-1"]


def test_old_demand_is_forgotten_once_its_pods_are_gone() -> None:
    old = lease(until=NOW - timedelta(days=2))
    assert decide(snapshot(leases=(old,))).delete_demand == (old.key,)
    assert decide(snapshot(machine(1), leases=(old,), pods=(pod("p", on=1, run="run"),))).delete_demand == ()


# -- the switch ------------------------------------------------------------------------------------------------


def test_the_switch_is_set_for_the_latest_demand_on_all_groups_in_use() -> None:
    state = snapshot(machine(1), leases=(lease("a"), lease("b", until=LATER + timedelta(hours=1), created_at=NOW)))
    assert set(decide(state).switch) == {A, B}
    assert set(decide(state).switch.values()) == {SWITCH + timedelta(hours=1)}


def test_the_switch_moves_back_when_the_latest_demand_is_given_up() -> None:
    state = snapshot(machine(1), leases=(lease(),), train_a_g6_xlarge={"switch_at": SWITCH + timedelta(hours=1)})
    assert decide(state).switch == {A: SWITCH}


def test_the_switch_stays_when_nobody_wants_anything() -> None:
    assert decide(snapshot(train_a_g6_xlarge={"switch_at": SWITCH})).is_empty


def test_the_switch_comes_soon_after_the_last_pods_that_end_when_nobody_wants_anything() -> None:
    """Whoever waits there to remove the machine may die."""
    ending = pod("ending", on=1, delete_at=NOW + timedelta(seconds=30))
    read = pod("read", on=1, phase="Succeeded", uncollected=True, finished_at=NOW - timedelta(minutes=1))
    assert decide(snapshot(machine(1), pods=(ending,))).switch == {A: NOW + timedelta(minutes=16)}
    assert decide(snapshot(machine(1), pods=(ending, read))).switch == {A: NOW + timedelta(minutes=24)}
    retried = replace(read, collect_within=timedelta(hours=1))
    assert decide(snapshot(machine(1), pods=(ending, retried))).switch == {A: NOW + timedelta(minutes=74)}
    moved = {"switch_at": NOW + timedelta(minutes=16)}
    assert decide(snapshot(machine(1), pods=(ending,), train_a_g6_xlarge=moved)).is_empty


def test_the_switch_comes_soon_where_a_machine_that_nobody_wants_is_still_launched() -> None:
    """AWS does not end it before, and who comes again for it may be dead by then."""
    decision = decide(snapshot(machine(1, state="pending")))
    assert released(decision) == ["i-1"]
    assert decision.switch == {A: NOW + timedelta(minutes=15)}
    assert decide(snapshot(machine(1))).switch == {}
    asked_for = {"desired": 1, "switch_at": SWITCH, "launching": True}
    assert decide(snapshot(train_a_g6_xlarge=asked_for)).switch == {A: NOW + timedelta(minutes=15)}
    assert decide(snapshot(train_a_g6_xlarge={**asked_for, "keeps": 1})).switch == {}


def test_the_switch_stays_where_something_has_no_end_or_a_person_keeps_the_node() -> None:
    ending = pod("ending", on=1, delete_at=NOW + timedelta(seconds=30))
    theirs = pod("theirs", on=1, gpus=0)
    assert decide(snapshot(machine(1), pods=(ending, theirs))).switch == {}
    assert decide(snapshot(machine(1), nodes=(node(1, cordoned=True),), pods=(ending,))).switch == {}
    assert decide(snapshot(machine(1), pods=(ending,), spec=pool(min_nodes=1))).switch == {}


def test_a_pod_without_a_lease_is_demand_for_as_long_as_its_kubelet_lets_it_run() -> None:
    hours = {n: timedelta(hours=n) for n in (2, 3, 6, 9)}
    waiting = pod("p", active_deadline=hours[3])
    assert switch_time(snapshot(pods=(waiting,))) == EARLIER + hours[3] + timedelta(minutes=15)
    started = pod("p", on=1, active_deadline=hours[3], started_at=NOW)
    assert switch_time(snapshot(machine(1), pods=(started,))) == NOW + hours[3] + timedelta(minutes=15)
    longer = pod("p", on=1, active_deadline=hours[9])
    assert switch_time(snapshot(machine(1), pods=(longer,))) == EARLIER + hours[6] + timedelta(minutes=15)


def test_the_switch_is_a_whole_minute_and_never_too_early() -> None:
    at = switch_time(snapshot(leases=(lease(until=LATER + timedelta(seconds=1)),)))
    assert at == SWITCH + timedelta(minutes=1)


def test_a_pod_without_a_lease_gets_the_pool_s_time_again_and_again() -> None:
    created = NOW - timedelta(hours=7)
    state = snapshot(machine(1), pods=(pod("theirs", on=1, created_at=created),))
    assert switch_time(state) == created + timedelta(hours=12, minutes=15)


# -- whose turn it is ------------------------------------------------------------------------------------------


def test_leases_are_served_oldest_first() -> None:
    leases = (lease("first", 1), lease("second", 2, created_at=NOW))
    state = snapshot(leases=leases)
    assert usable_needed(state, key("first")) == 1
    assert usable_needed(state, key("second")) == 3


def test_max_nodes_are_enough_for_everybody() -> None:
    leases = (lease("first", 2), lease("second", 2, created_at=NOW))
    assert usable_needed(snapshot(leases=leases, spec=pool(max_nodes=2)), key("second")) == 2


def test_what_runs_without_a_lease_is_not_the_run_s() -> None:
    assert usable_needed(snapshot(machine(1), leases=(lease(),), pods=(pod("theirs", on=1),)), key("run")) == 2


def test_demand_that_is_gone_is_an_error() -> None:
    with pytest.raises(NodesNotReady, match="no longer wants nodes"):
        usable_needed(snapshot(), key("run"))


def test_usable_nodes_have_a_machine_that_stays() -> None:
    machines = (machine(1), machine(2, state="terminating"), machine(3))
    nodes = (node(1), node(2), node(3, ready=False), node(4))
    assert [each.name for each in usable_nodes(snapshot(*machines, nodes=nodes))] == ["node-1"]


def test_the_same_state_gives_the_same_decision() -> None:
    state = snapshot(machine(1), leases=(lease(nodes=3),), pods=(pod("theirs", on=1),))
    assert decide(state) == decide(state)
    assert EARLIER < NOW


def test_a_pod_behind_a_scheduling_gate_is_no_demand_until_it_is_admitted() -> None:
    assert wanted_nodes(snapshot(pods=(pod("queued", gated=True),))) == 0
    assert wanted_nodes(snapshot(pods=(pod("admitted"),))) == 1

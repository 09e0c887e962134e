"""Nights on reserved machines, in virtual time: what is awaited, when a block is emptied, and where nodes come then."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_gpu_provider.clouds.answers import Reserved
from airflow_gpu_provider.clouds.aws.reservations import SHORTEST, Reservation, judge
from airflow_gpu_provider.clouds.base import Group, Plan
from airflow_gpu_provider.errors import OutOfStock
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.scarce_capacity import awaited, tried, until_it_begins, with_wait
from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait
from tests.unit.scaling.decide.test_scarce_capacity import Night
from tests.unit.scaling.pools import LATER, NOW, SWITCH, A, B, dry, lease, machine, pod, pool, snapshot

ID = "cr-0a1b2c3d4e5f67890"
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
FULL = Reserved(id=ID, why_not=f"{ID} is full: 0 of 2 free")
CANCELLED = Reserved(id=ID, why_not=f"{ID} is cancelled", is_over=True)


def opens(at: datetime) -> Reserved:
    return Reserved(id=ID, opens_at=at, why_not=f"{ID} begins at {at:%H:%MZ}")


def ends(at: datetime, why_not: str = "") -> Reserved:
    return Reserved(id=ID, ends_at=at, why_not=why_not, has_ended=at <= NOW)


class BlockNight(Night):
    """A night whose first candidate is a Capacity Block's group, read and judged as the platform does."""

    def __init__(self, *, starts: timedelta, lasts: timedelta, total: int = 1, **fields: Any) -> None:
        super().__init__(lambda _, name: 9, **fields)
        self.start, self.end, self.total = NOW + starts, NOW + starts + lasts, total
        self.state = ""

    def _group(self, name: str, zone: Any) -> Group:
        found = super()._group(name, zone)
        if name != A:
            return found
        (found,) = judge([found], {A: ID}, {ID: self.reservation}, self.now)
        return found

    @property
    def reservation(self) -> Reservation:
        by_clock = "scheduled" if self.now < self.start else "active" if self.now < self.end else "expired"
        state = self.state or by_clock
        used = len(self.zones[A].machines)
        return Reservation(
            id=ID,
            is_block=True,
            instance_type="g6.xlarge",
            zone="us-west-2a",
            state=state,
            total=self.total,
            free=self.total - used if state == "active" else 0,
            start=self.start,
            end=self.end,
        )

    def wants_by(self, hours: float) -> NodesWait:
        """Want one node as Ensure does, which gives up after so many hours."""
        wait = self.wants("run", 1, deadline=NOW + hours * HOUR)
        self.leases["run"] = until_it_begins(self.snapshot(), self.leases["run"], wait.deadline)
        return wait


# -- waiting for one that is to begin ------------------------------------------------------------------------


def test_a_block_that_begins_in_two_hours_is_waited_for_and_nothing_is_asked_for_before() -> None:
    night = BlockNight(starts=2 * HOUR, lasts=24 * HOUR)
    wait = night.wants_by(4)
    assert night.step(wait).lines == (
        f"g6.xlarge on-demand in us-west-2a is waited for: {ID} begins at 2026-03-01 04:00Z;"
        " nothing is requested before",
    )
    assert night.until_over(wait).done
    assert {name for _, name in night.tries} == {A}
    assert night.start <= night.tries[0][0] <= night.start + MINUTE
    assert night.leases["run"].until >= night.start + pool().max_runtime, "its time begins with the block"


def test_one_that_begins_too_late_is_not_waited_for_and_the_next_candidate_is_tried() -> None:
    night = BlockNight(starts=2 * HOUR, lasts=24 * HOUR)
    progress = night.until_over(night.wants_by(1))
    assert progress.done
    assert {name for _, name in night.tries} == {B}
    assert progress.result
    assert [(each["group"], each["times"], each["why"]) for each in progress.result["tried"]] == [
        (A, 0, f"{ID} begins at 2026-03-01 04:00Z")
    ]


def test_one_that_is_cancelled_meanwhile_is_waited_for_no_longer() -> None:
    night = BlockNight(starts=2 * HOUR, lasts=24 * HOUR)
    wait = night.wants_by(4)
    night.pass_time()
    night.state = "cancelled"
    assert night.until_over(wait).done
    assert night.now < NOW + 10 * MINUTE
    assert {name for _, name in night.tries} == {B}


def test_one_that_begins_late_is_waited_for_a_little_longer() -> None:
    night = BlockNight(starts=HOUR, lasts=24 * HOUR)
    night.state = "scheduled"
    wait = night.wants_by(4)
    while night.now < night.start + 5 * MINUTE:
        assert not night.step(wait).done
        night.pass_time()
    assert night.tries == []
    night.state = ""
    assert night.until_over(wait).done
    assert {name for _, name in night.tries} == {A}


def test_one_that_should_have_begun_a_moment_ago_is_waited_for_too() -> None:
    night = BlockNight(starts=-MINUTE, lasts=24 * HOUR)
    night.state = "scheduled"
    wait = night.wants_by(4)
    night.pass_time()
    assert (night.leases["run"].nodes, night.tries) == (0, [])
    night.state = ""
    assert night.until_over(wait).done
    assert {name for _, name in night.tries} == {A}


def test_what_is_preferred_and_has_machines_now_is_not_kept_waiting_by_a_later_block() -> None:
    seen = snapshot(us_west_2b={}, train_b_g6_xlarge={"reserved": opens(NOW + HOUR)})
    assert awaited(seen.groups, NOW + 2 * HOUR) is None
    closed = snapshot(train_a_g6_xlarge={"reserved": FULL}, train_b_g6_xlarge={"reserved": opens(NOW + HOUR)})
    group = awaited(closed.groups, NOW + 2 * HOUR)
    assert group
    assert group.name == B


def test_nodes_that_are_there_are_not_left_for_a_block_that_is_to_come() -> None:
    wanted = lease()
    seen = snapshot(machine(1, B), leases=(wanted,), train_a_g6_xlarge={"reserved": opens(NOW + HOUR)})
    assert until_it_begins(seen, wanted, NOW + 2 * HOUR) == wanted


@pytest.mark.parametrize(("starts", "hours"), [(6, 1), (46, 1), (44, 1), (120, 1), (120, 4)])
def test_the_plan_shows_what_the_wait_does(starts: int, hours: int) -> None:
    night = BlockNight(starts=starts * MINUTE, lasts=24 * HOUR)
    grow = (f"{B} 0->1 (g6.xlarge on-demand in us-west-2b first)",)
    plan = Plan(pool="train", grow=grow, order=night.snapshot().groups, read_at=NOW)
    shown = with_wait(plan, hours * HOUR)
    wait = night.wants_by(hours)
    if night.leases["run"].nodes:
        assert shown.grow == grow
        (note,) = shown.notes
        assert f"that takes a wait until {night.start + 15 * MINUTE:%Y-%m-%d %H:%MZ} (give_up_after" in note
    else:
        assert shown.grow == night.step(wait).lines
    assert with_wait(replace(plan, grow=()), hours * HOUR).grow == (), "no node is missing"
    assert with_wait(replace(plan, read_at=None), hours * HOUR).grow == grow, "nothing is reserved"


# -- full, cancelled, expired --------------------------------------------------------------------------------


@pytest.mark.parametrize("reserved", [FULL, CANCELLED])
def test_the_next_candidate_is_tried_and_the_log_says_why(reserved: Reserved) -> None:
    decision = decide(snapshot(leases=(lease(),), train_a_g6_xlarge={"reserved": reserved, "max_size": 0}))
    assert decision.grow == {B: 1}
    assert f"no g6.xlarge on-demand in us-west-2a: {reserved.why_not}" in decision.notes


def test_a_size_that_was_asked_of_one_that_is_cancelled_now_is_asked_elsewhere() -> None:
    changed = {"reserved": CANCELLED, "max_size": 0, "desired": 1}
    decision = decide(snapshot(leases=(lease(),), train_a_g6_xlarge=changed))
    assert (decision.shrink, decision.grow) == ((A,), {B: 1})


def test_where_nothing_else_is_left_the_error_says_what_each_reservation_is() -> None:
    night = BlockNight(starts=-HOUR, lasts=24 * HOUR, total=0, spec=pool(zones=["us-west-2a"]))
    night.zones = {A: night.zones[A]}
    error = night.until_over(night.wants_by(1)).error
    assert isinstance(error, OutOfStock)
    assert f"g6.xlarge on-demand in us-west-2a (not tried): {ID} is full: 0 of 0 free" in str(error)


def test_a_reservation_that_is_full_of_the_runs_own_nodes_is_not_told() -> None:
    seen = snapshot(machine(1), leases=(lease(),), train_a_g6_xlarge={"reserved": FULL, "max_size": 1})
    assert tried(seen, NOW - HOUR) == ()
    elsewhere = snapshot(
        machine(1), machine(2, B), leases=(lease(nodes=2),), train_a_g6_xlarge={"reserved": FULL, "max_size": 1}
    )
    assert [each.group.name for each in tried(elsewhere, NOW - HOUR)] == [A]


def test_a_launch_that_failed_is_told_rather_than_the_reservation() -> None:
    seen = snapshot(leases=(lease(),), train_a_g6_xlarge={"reserved": FULL, "launch_failure": dry()})
    (found,) = tried(seen, NOW - HOUR)
    assert (found.times, found.is_reserved, found.kind) == (1, False, "out_of_stock")


# -- the end of a block --------------------------------------------------------------------------------------


def test_the_cloud_scales_a_block_to_zero_when_it_is_to_be_empty_and_no_other_group() -> None:
    at = NOW + 3 * HOUR + timedelta(seconds=30)
    changed = {"reserved": ends(at), "switch_at": None}
    decision = decide(
        snapshot(
            machine(1),
            machine(2, B),
            leases=(lease(nodes=2),),
            train_a_g6_xlarge=changed,
            train_b_g6_xlarge={"switch_at": None},
        )
    )
    assert decision.switch == {A: NOW + 3 * HOUR, B: SWITCH}


def test_a_run_that_ends_before_its_block_has_its_own_switch() -> None:
    decision = decide(
        snapshot(machine(1), leases=(lease(),), train_a_g6_xlarge={"reserved": ends(LATER + HOUR), "switch_at": None})
    )
    assert decision.switch == {A: SWITCH}


def test_a_run_that_outlasts_its_block_is_told() -> None:
    night = BlockNight(starts=-HOUR, lasts=5 * HOUR)
    wait = night.wants_by(1)
    lines = night.until_over(wait).lines
    assert lines[-1].startswith(f"machines of {A} are emptied from 2026-03-01 05:20Z on, before {ID} ends")
    longer = BlockNight(starts=-HOUR, lasts=24 * HOUR)
    assert not any("emptied" in line for line in longer.until_over(longer.wants_by(1)).lines)


def test_a_machine_that_is_to_be_empty_serves_nobody_and_another_comes_elsewhere() -> None:
    over = {"reserved": ends(NOW, "it ends"), "max_size": 0}
    seen = snapshot(machine(1), leases=(lease(),), pods=(pod("train", on=1, run="run"),), train_a_g6_xlarge=over)
    (status,) = seen.supply
    assert (status.is_ending, status.counts, status.state) == (True, False, "usable")
    decision = decide(seen)
    assert (decision.grow, decision.release) == ({B: 1}, ())
    assert f"{A} is emptied, and nodes come elsewhere: it ends" in decision.notes


def test_without_a_pod_it_goes_at_once() -> None:
    decision = decide(
        snapshot(machine(1), leases=(lease(),), train_a_g6_xlarge={"reserved": ends(NOW, "it ends"), "max_size": 0})
    )
    assert [each.id for each in decision.release] == ["i-1"]
    assert any("what is reserved for it ends" in line for line in decision.notes)


def test_a_switch_that_has_not_fired_in_time_is_set_once_more_and_then_left() -> None:
    over = {"reserved": ends(NOW - 5 * MINUTE, "it ends"), "max_size": 0, "switch_at": None}
    held = (pod("train", on=1, run="run"),)
    decision = decide(snapshot(machine(1), leases=(lease(),), pods=held, train_a_g6_xlarge=over))
    assert decision.switch[A] == NOW + MINUTE
    again = decide(
        snapshot(machine(1), leases=(lease(),), pods=held, train_a_g6_xlarge=over | {"switch_at": NOW + MINUTE})
    )
    assert A not in again.switch


def test_a_block_that_the_switch_has_emptied_is_not_grown_again() -> None:
    over = {"reserved": ends(NOW, "it ends"), "max_size": 0, "desired": 0}
    decision = decide(
        snapshot(machine(1), leases=(lease(),), pods=(pod("train", on=1, run="run"),), train_a_g6_xlarge=over)
    )
    assert (decision.grow, decision.release) == ({B: 1}, ())


@settings(max_examples=60, deadline=None)
@given(
    starts=st.integers(-120, 300),
    lasts=st.integers(60, 600),
    hours=st.integers(1, 6),
    total=st.integers(0, 2),
)
def test_a_run_has_its_node_from_the_block_or_from_elsewhere_and_never_too_late(
    starts: int, lasts: int, hours: int, total: int
) -> None:
    night = BlockNight(starts=starts * MINUTE, lasts=lasts * MINUTE, total=total)
    wait = night.wants_by(hours)
    assert night.until_over(wait).done
    empty_at = night.end - 40 * MINUTE
    for at, name in night.tries:
        if name == A:
            assert night.start <= at <= empty_at - SHORTEST + MINUTE
    begins_in_time = 0 < starts <= hours * 60 - 15
    gives = total > 0 and night.start < empty_at - SHORTEST
    if gives and (begins_in_time or (starts <= 0 and empty_at - SHORTEST > NOW)):
        assert {name for _, name in night.tries} == {A}
    while night.now < night.end:  # and it has one to the end of its time, whatever becomes of the block
        night.pass_time()
        if not night.leases["run"].live(night.now):
            break
        there = night.snapshot().supply
        if night.now > empty_at + MINUTE:
            assert not night.zones[A].machines
            assert sum(each.counts for each in there) == 1


def test_a_record_of_the_wait_says_nothing_new() -> None:
    """What is awaited is read from the cloud each time: a triggerer of any age continues the wait."""
    night = BlockNight(starts=2 * HOUR, lasts=24 * HOUR)
    wait = night.wants_by(4)
    assert NodesWait.from_record(wait.to_record()) == wait
    assert replace(night.leases["run"], nodes=1).resume_at == night.start

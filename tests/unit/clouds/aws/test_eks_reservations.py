"""Capacity Reservations and Capacity Blocks: what each lets a group have, in each state and at each time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.session import get_session
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws import platform as aws_platform
from airflow_gpu_provider.clouds.aws.external_groups import candidate
from airflow_gpu_provider.clouds.aws.group_state import instance_end
from airflow_gpu_provider.clouds.aws.owned_platform import OwnedEksPlatform
from airflow_gpu_provider.clouds.aws.quota import quota_code
from airflow_gpu_provider.clouds.aws.reservations import SHORTEST, Reservation, judge, notes, read
from airflow_gpu_provider.clouds.base import Group, Machine
from airflow_gpu_provider.clouds.ec2_launches import failure_kind
from airflow_gpu_provider.errors import CloudError
from airflow_gpu_provider.pools import Candidate

NOW = datetime(2026, 11, 26, 11, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
STATES = get_session().get_service_model("ec2").shape_for("CapacityReservationState").enum
ID = "cr-0a1b2c3d4e5f67890"


def raw(**fields: Any) -> dict[str, Any]:
    """A Capacity Block that is active for a day, as EC2 describes it."""
    return {
        "CapacityReservationId": ID,
        "ReservationType": "capacity-block",
        "InstanceType": "p5.48xlarge",
        "AvailabilityZone": "us-west-2a",
        "State": "active",
        "TotalInstanceCount": 4,
        "AvailableInstanceCount": 2,
        "StartDate": NOW - HOUR,
        "EndDate": NOW + 23 * HOUR,
    } | fields


def block(**fields: Any) -> Reservation:
    return Reservation.parse(raw(**fields))


def on_demand(**fields: Any) -> Reservation:
    found = raw(ReservationType="default", **fields)
    return Reservation.parse({key: value for key, value in found.items() if fields.get(key) or key != "EndDate"})


def group(live: int = 0, max_size: int = 8) -> Group:
    where = Candidate(group="reserved", zone="us-west-2a", instance_type="p5.48xlarge", market="CAPACITY_BLOCK")
    machines = tuple(Machine(id=f"i-{number}", group="reserved", state="running") for number in range(live))
    return Group(name="reserved", candidate=where, status="active", desired=live, max_size=max_size, machines=machines)


def judged(reservation: Reservation | None, live: int = 0, now: datetime = NOW) -> Group:
    (found,) = judge([group(live)], {"reserved": ID}, {ID: reservation} if reservation else {}, now)
    return found


# -- at each state and time ----------------------------------------------------------------------------------


def test_an_active_one_gives_what_is_free() -> None:
    found = judged(block(), live=2)
    assert found.reserved
    assert (found.reserved.why_not, found.reserved.opens_at, found.max_size) == ("", None, 4)


def test_one_that_is_full_gives_none_now_and_may_later() -> None:
    found = judged(block(AvailableInstanceCount=0), live=1)
    assert found.reserved
    assert (found.reserved.why_not, found.reserved.is_over) == (f"{ID} is full: 0 of 4 free", False)
    assert (found.max_size, found.has_room) == (1, False)


def test_one_into_which_ec2_launches_nothing_now_gives_none() -> None:
    found = block(LaunchStatus="unlaunchable").reserved(NOW)
    assert found.why_not.endswith("is active, and EC2 launches nothing into it now (LaunchStatus unlaunchable)")
    assert not found.is_over


def test_one_that_is_to_begin_says_when() -> None:
    start = NOW + 2 * HOUR
    found = judged(block(State="scheduled", AvailableInstanceCount=0, StartDate=start)).reserved
    assert found
    assert (found.opens_at, found.why_not) == (start, f"{ID} begins at 2026-11-26 13:30Z")
    late = judged(block(State="scheduled", StartDate=start), now=start + timedelta(minutes=9)).reserved
    assert late
    assert late.opens_at == start, "EC2 takes a moment to begin"
    later = judged(block(State="scheduled", StartDate=start), now=start + timedelta(minutes=10)).reserved
    assert later
    assert (later.opens_at, later.why_not) == (None, f"{ID} is scheduled")


@pytest.mark.parametrize("state", [each for each in STATES if each not in ("active", "scheduled")])
@pytest.mark.parametrize("make", [block, on_demand])
def test_one_in_any_other_state_gives_none(state: str, make: Any) -> None:
    found = judged(make(State=state), live=1)
    assert found.reserved
    assert (found.reserved.why_not, found.max_size) == (f"{ID} is {state}", 1)
    assert found.reserved.is_over is (state not in ("pending", "payment-pending", "assessing", "delayed"))


def test_one_that_ec2_does_not_know_gives_none() -> None:
    found = judged(None)
    assert found.reserved
    assert "EC2 has no Capacity Reservation" in found.reserved.why_not
    assert (found.reserved.is_over, found.max_size) == (True, 0)


@pytest.mark.parametrize(("kind", "before"), [("p5.48xlarge", 40), ("p6e-gb200.36xlarge", 70)])
def test_a_block_is_emptied_ten_minutes_before_ec2_begins_to_end_its_machines(kind: str, before: int) -> None:
    found = block(InstanceType=kind)
    assert found.end
    assert found.ends_at == found.end - timedelta(minutes=before)


def test_machines_of_an_on_demand_one_outlive_it() -> None:
    ends = on_demand(EndDate=NOW + timedelta(minutes=1))
    assert (ends.ends_at, judged(ends, live=1).max_size) == (None, 3)
    after = judged(ends, live=1, now=NOW + timedelta(minutes=1))
    assert after.reserved
    assert (after.reserved.has_ended, after.max_size, after.reserved.is_over) == (False, 1, True)


@given(
    state=st.sampled_from(STATES),
    is_block=st.booleans(),
    start=st.integers(-300, 300),
    lasts=st.none() | st.integers(60, 600),
    free=st.integers(0, 4),
    live=st.integers(0, 4),
    minutes=st.integers(-400, 1000),
)
def test_at_any_time(
    state: str, is_block: bool, start: int, lasts: int | None, free: int, live: int, minutes: int
) -> None:
    begin, now = NOW + timedelta(minutes=start), NOW + timedelta(minutes=minutes)
    end = begin + timedelta(minutes=lasts) if lasts else None
    given_kind = "capacity-block" if is_block else "default"
    found = Reservation.parse(
        raw(State=state, ReservationType=given_kind, StartDate=begin, EndDate=end, AvailableInstanceCount=free)
    )
    seen = judged(found, live, now)
    reserved = seen.reserved
    assert reserved
    if seen.has_room:  # only what EC2 would launch, and for long enough
        assert (state, reserved.why_not, reserved.opens_at) == ("active", "", None)
        assert seen.max_size - live <= free
        assert end is None or now < end
        assert reserved.ends_at is None or reserved.ends_at - now > SHORTEST
    if reserved.opens_at:
        assert (state, reserved.opens_at) == ("scheduled", begin)
    if is_block and end and now >= end - timedelta(minutes=40):
        assert (seen.max_size, reserved.has_ended, reserved.is_over) == (0, True, True)
    if reserved.is_over:  # and for good, as time goes by
        later = judged(found, live, now + HOUR).reserved
        assert later
        assert later.is_over
    assert seen.max_size <= 8


# -- reading -------------------------------------------------------------------------------------------------


class Ec2:
    """Knows one reservation, and fails a call that names another, as EC2 does."""

    def __init__(self) -> None:
        self.calls = 0

    def items(self, operation: str, key: str, *, CapacityReservationIds: list[str]) -> Iterator[Mapping[str, Any]]:
        assert (operation, key) == ("describe_capacity_reservations", "CapacityReservations")
        self.calls += 1
        if unknown := [each for each in CapacityReservationIds if each != ID]:
            raise CloudError(f"{unknown} does not exist.", "", code="InvalidCapacityReservationId.NotFound")
        yield raw()


@pytest.mark.parametrize(
    ("ends", "state", "why"),
    [
        (timedelta(minutes=30), "shutting-down", f"{ID} ends at 2026-11-26 12:00Z, and its machines are emptied from"),
        (timedelta(hours=3), "shutting-down", "EC2: shutting-down, Client.UserInitiatedShutdown: User initiated"),
        (timedelta(minutes=30), "running", None),
    ],
)
def test_a_machine_that_is_emptied_for_its_blocks_end_ends_for_that(
    ends: timedelta, state: str, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = {"Code": "Client.UserInitiatedShutdown", "Message": "Client.UserInitiatedShutdown: User initiated shutdown"}
    machine = {"InstanceId": "i-1", "State": {"Name": state}, "StateReason": cause, "CapacityReservationId": ID}
    monkeypatch.setattr(aws_platform, "instances", lambda ec2, **_: [machine])
    monkeypatch.setattr(aws_platform, "read", lambda ec2, ids: {ID: block(EndDate=NOW + ends)})
    platform = object.__new__(OwnedEksPlatform)
    platform._clients = cast("Any", SimpleNamespace(ec2=SimpleNamespace(now=lambda: NOW)))
    platform._eks = cast("Any", SimpleNamespace(scaling=SimpleNamespace(why_ending=lambda _: "")))
    platform._pool = EksGpuPool(
        name="p",
        cluster_name="ml",
        region="us-west-2",
        instance_types=["p5.48xlarge"],
        max_nodes=1,
        capacity_types=["RESERVED"],
        reservations=[ID],
    )
    end = platform.machine_end("i-1")
    assert (end is None) if why is None else (end is not None and end.why.startswith(why))


def test_all_are_read_in_one_call() -> None:
    ec2: Any = Ec2()
    assert (read(ec2, []), ec2.calls) == ({}, 0)
    assert ([*read(ec2, [ID])], ec2.calls) == ([ID], 1)


def test_one_that_is_unknown_hides_no_other() -> None:
    ec2: Any = Ec2()
    assert [*read(ec2, ["cr-0000000000000gone", ID])] == [ID]
    assert read(ec2, ["cr-0000000000000gone"]) == {}


# -- groups of others ----------------------------------------------------------------------------------------

TEMPLATE = {
    "InstanceType": "p5.48xlarge",
    "CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": ID}},
}
ASG = {"AvailabilityZones": ["us-west-2a"]}


@pytest.mark.parametrize("node_group", [None, {"capacityType": "ON_DEMAND"}])
def test_machines_of_a_targeted_reservation_are_reserved_and_count_against_no_quota(node_group: Any) -> None:
    found = candidate("own", ASG, node_group, TEMPLATE)
    assert (found.market, quota_code(found.instance_type, found.market)) == ("RESERVED", None)


def test_those_of_a_block_are_a_blocks() -> None:
    of_block = TEMPLATE | {"InstanceMarketOptions": {"MarketType": "capacity-block"}}
    assert candidate("own", ASG, None, of_block).market == "CAPACITY_BLOCK"


def test_a_plan_tells_what_each_is_and_why_it_gives_no_machine() -> None:
    what = "Capacity Block, 4 p5.48xlarge in us-west-2a"
    until = "until 2026-11-27 10:30Z"
    assert notes([ID, ID], {ID: block()}, NOW) == (f"{ID} ({what}, 2 free, active, {until})",)
    full = block(AvailableInstanceCount=0)
    assert notes([ID], {ID: full}, NOW) == (f"{ID} ({what}, 0 free, active, {until}): {ID} is full: 0 of 4 free",)
    assert notes([ID], {}, NOW) == (f"EC2 has no Capacity Reservation {ID} (any more)",)


# -- what it costs, and how it ends --------------------------------------------------------------------------


def test_a_reserved_machine_costs_what_one_on_demand_does_and_a_block_is_paid_ahead() -> None:
    of_pool: dict[str, Any] = {"name": "train", "cluster_name": "ml", "region": "us-west-2", "max_nodes": 1}
    prices = {"ON_DEMAND": 55.0, "SPOT": 20.0}
    typed = EksGpuPool(**of_pool, instance_types=["p5.48xlarge"], price_per_hour=prices)
    assert (typed.price("RESERVED"), typed.price("CAPACITY_BLOCK")) == (55.0, None)
    prices = {"RESERVED": 40.0, "CAPACITY_BLOCK": 0.0, "ON_DEMAND": 55.0}
    own = EksGpuPool(**of_pool, instance_types=["p5.48xlarge"], price_per_hour=prices)
    assert (own.price("RESERVED"), own.price("CAPACITY_BLOCK")) == (40.0, 0.0)


def test_a_full_reservation_is_a_stock_out_in_ec2s_words_with_and_without_its_code() -> None:
    text = "The requested reservation does not have sufficient compatible and available capacity for this request."
    assert failure_kind(f"{text} Launching EC2 instance failed.") == "out_of_stock"
    assert failure_kind(f"Could not launch Capacity Block Instances. ReservationCapacityExceeded - {text}") == (
        "out_of_stock"
    )


@pytest.mark.parametrize(
    ("code", "lifecycle", "taken_back"),
    [
        ("Server.CapacityBlockEnding", "capacity-block", True),
        ("Client.UserInitiatedShutdown", "capacity-block", False),
        ("Server.InternalError", None, False),
    ],
)
def test_a_machine_that_its_block_takes_is_taken_back(code: str, lifecycle: str | None, taken_back: bool) -> None:
    instance = {
        "State": {"Name": "shutting-down"},
        "StateReason": {"Code": code, "Message": f"{code}: ..."},
        **({"InstanceLifecycle": lifecycle} if lifecycle else {}),
    }
    end = instance_end(instance)
    assert end
    assert end.taken_back is taken_back

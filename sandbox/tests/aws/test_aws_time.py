"""Whatever happens in an account happens at the same moments, in however many pieces its time passes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_sandbox.aws import AwsCloud
from gpu_sandbox.faults import Faults, Stockout
from gpu_sandbox.manual_clock import ManualClock
from tests.sandbox.aws_account import ACCOUNT_ID, CLUSTER, TIMINGS, Account, Recorder

BEGIN = datetime(2026, 3, 1, 22, tzinfo=UTC)
ZONES = ("us-west-2a", "us-west-2b")
deeds = st.one_of(
    st.tuples(st.just("resize"), st.integers(0, 3)),
    st.tuples(st.just("terminate"), st.integers(0, 2)),
    st.tuples(st.just("interrupt"), st.integers(0, 2)),
    st.tuples(st.just("at risk"), st.integers(0, 2)),
    st.tuples(st.just("no stock in"), st.sampled_from(ZONES)),
    st.tuples(st.just("stock"), st.none()),
)
nights = st.lists(st.tuples(st.integers(1, 1000), deeds), min_size=1, max_size=8)


class Timeline(Recorder):
    """What the cloud reports, with the seconds since the night's begin."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.told: list[tuple[float, str]] = []
        self._clock = clock

    def _note(self, what: str, instance: Any) -> None:
        super()._note(what, instance)
        self.told.append((self._clock.now() - BEGIN.timestamp(), what))


def lived(night: list[tuple[int, tuple[str, Any]]], advance: Callable[[ManualClock, int], None]) -> Any:
    """What is told in a night, and what is left after it. Ids are drawn, and left out."""
    clock, faults = ManualClock(BEGIN), Faults()
    events = Timeline(clock)
    cloud = AwsCloud(account_id=ACCOUNT_ID, faults=faults, timings=TIMINGS, events=events, clock=clock)
    events.complete_drain, events.node_joined = cloud.complete_drain, cloud.node_joined
    cloud.start()
    try:
        network = cloud.create_cluster(CLUSTER, endpoint="https://127.0.0.1:6443", certificate_authority="Q0E=")
        account = Account(cloud, clock, events, faults, network)
        subnets = [network.subnets[zone] for zone in ZONES]
        asg = account.node_group(subnets=subnets, capacityType="SPOT")
        for seconds, (deed, what) in night:
            do(cloud, asg, deed, what, faults)
            advance(clock, seconds)
        advance(clock, 3600)
        activities = [
            (activity["StartTime"] - BEGIN, activity.get("EndTime", BEGIN) - BEGIN, activity["StatusCode"])
            for activity in account.activities(asg)
        ]
        (group,) = cloud.describe_groups()
        states = [(one["zone"], one["state"]) for one in group["instances"]]
        return events.told, activities, (group["status"], group["desired"], states)
    finally:
        cloud.stop()


def do(cloud: AwsCloud, asg: str, deed: str, what: Any, faults: Faults) -> None:
    (group,) = cloud.describe_groups()
    running = [one["instance_id"] for one in group["instances"] if one["state"] == "InService"]
    if deed == "resize":
        cloud.set_desired_capacity(asg, what)
    elif deed == "no stock in":
        faults.add(Stockout(zone=what))
    elif deed == "stock":
        faults.clear()
    elif what < len(running):
        acts = {
            "terminate": cloud.terminate_in_group,
            "interrupt": cloud.interrupt_spot,
            "at risk": cloud.recommend_rebalance,
        }
        acts[deed](running[what])


def bit_by_bit(clock: ManualClock, seconds: int) -> None:
    pieces, rest = divmod(seconds, 7)
    for piece in [7] * pieces + [rest]:
        clock.advance(piece)


@settings(max_examples=15, deadline=None)
@given(nights)
def test_a_night_is_the_same_at_once_and_bit_by_bit(night: list[tuple[int, tuple[str, Any]]]) -> None:
    assert lived(night, lambda clock, seconds: clock.advance(seconds)) == lived(night, bit_by_bit)

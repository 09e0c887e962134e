"""Where nodes come from once a candidate has lost machines: elsewhere for a while, and there if nowhere else."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.clouds.backoff import FORGOTTEN_AFTER, LONGEST, growth_notes, losses_there, preferred
from airflow_gpu_provider.clouds.base import Group, MachineLoss
from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.pools import Candidate
from airflow_gpu_provider.scaling.decide.decisions import decide, heeding_losses
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from tests.unit.scaling.pools import NOW, ZONES, A, B, C, dry, groups, lease, machine, node, pod, pool, snapshot

SPOT = pool(capacity_types=("SPOT", "ON_DEMAND"))
SPOT_A, SPOT_B, SPOT_C = (f"train-{zone}-g6-xlarge-spot" for zone in "abc")


def lost(*minutes_ago: float) -> dict[str, Any]:
    """A group's losses, the oldest first."""
    times = [NOW - timedelta(minutes=each) for each in minutes_ago]
    return {"losses": tuple(MachineLoss(at=at, machine=f"i-9{n}", why="spot") for n, at in enumerate(times))}


def named(*names: str, **fields: Any) -> dict[str, dict[str, Any]]:
    return {name.replace("-", "_"): fields for name in names}


def wanting(wanted: int, *machines: Any, **parts: Any) -> PoolSnapshot:
    fields = {"spec": SPOT, "leases": (lease("a", wanted, gang=parts.pop("gang", 0)),), **parts}
    return heeding_losses(snapshot(*machines, **fields))


def test_after_one_loss_the_others_of_the_market_come_first() -> None:
    seen = wanting(2, **named(SPOT_A, **lost(2)))
    assert decide(seen).grow == {SPOT_B: 1, SPOT_C: 1}
    assert decide(wanting(1, **named(SPOT_A, SPOT_B, SPOT_C, **lost(2)))).grow == {SPOT_A: 1}, (
        "one loss moves no market"
    )
    assert decide(wanting(1, **named(SPOT_A, **lost(6)))).grow == {SPOT_A: 1}, "five minutes later it is as before"


def test_after_two_losses_in_each_zone_the_next_market_comes_first() -> None:
    everywhere = named(SPOT_A, SPOT_B, SPOT_C, **lost(9, 2))
    assert decide(wanting(1, **everywhere)).grow == {A: 1}
    dried = named(
        *(group.name for group in groups(SPOT) if group.candidate.market == "ON_DEMAND"), launch_failure=dry()
    )
    assert decide(wanting(1, **everywhere, **dried)).grow == {SPOT_A: 1}, "a preference, and no refusal"


def test_what_is_reserved_is_paid_for_and_stays_first() -> None:
    seen = wanting(1, **named(SPOT_A, **lost(9, 2)))
    blocks = (
        replace(group, candidate=replace(group.candidate, market="CAPACITY_BLOCK")) if group.name == SPOT_A else group
        for group in seen.groups
    )
    assert decide(replace(seen, groups=tuple(blocks))).grow == {SPOT_A: 1}


@pytest.mark.parametrize(("minutes", "shunned"), [((2,), False), ((9, 2), True)])
def test_the_machine_that_a_cloud_puts_there_serves_after_one_loss_and_not_after_two(
    minutes: tuple[float, ...], shunned: bool
) -> None:
    anew = machine(1, SPOT_A, state="pending", launched_at=NOW - timedelta(minutes=1))
    seen = wanting(1, anew, nodes=(), **named(SPOT_A, desired=1, **lost(*minutes)))
    decision = decide(seen)
    assert [each.id for each in decision.release] == (["i-1"] if shunned else [])
    assert decision.grow == ({SPOT_B: 1} if shunned else {})
    assert any("loses one machine after the other" in note for note in decision.notes) == shunned


def test_a_machine_that_others_use_or_that_nothing_can_replace_stays() -> None:
    anew = machine(1, SPOT_A, launched_at=NOW - timedelta(minutes=1))
    twice = named(SPOT_A, desired=1, **lost(9, 2))
    assert not decide(wanting(1, anew, pods=(pod("p", 1, "a"),), **twice)).release
    old = machine(1, SPOT_A, launched_at=NOW - timedelta(hours=1))
    assert not decide(wanting(1, old, **twice)).release, "it was there before the losses"
    others = [group.name for group in groups(SPOT) if group.name != SPOT_A]
    assert not decide(wanting(1, anew, **twice, **named(*others, launch_failure=dry()))).release


def test_requests_of_a_zone_with_several_losses_end_where_others_have_room() -> None:
    decision = decide(wanting(1, **named(SPOT_A, desired=1, **lost(9, 2))))
    assert (decision.shrink, decision.grow) == ((SPOT_A,), {SPOT_B: 1})
    assert not decide(wanting(1, **named(SPOT_A, desired=1, **lost(2)))).shrink


def test_a_gang_stays_with_its_machines_after_one_loss_and_moves_after_two() -> None:
    one, gang = machine(1, SPOT_A), {"gang": 2, "nodes": (node(1, zone="us-west-2a"),)}
    assert decide(wanting(2, one, **gang, **named(SPOT_A, **lost(2)))).grow == {SPOT_A: 2}
    assert decide(wanting(2, one, **gang, **named(SPOT_A, **lost(9, 2)))).grow == {SPOT_B: 2}
    assert decide(wanting(2, gang=2, **named(SPOT_A, **lost(2)))).grow == {SPOT_B: 2}


def test_the_cheapest_place_that_loses_machines_comes_after_dearer_ones_of_its_market() -> None:
    spec = pool(price_per_hour="list", prefer="price")
    prices = ListPrices(at=NOW, per_hour={A: 0.8, B: 0.7, C: 0.5})
    seen = snapshot(leases=(lease("a", prices=prices),), spec=spec, **named(C, **lost(2)))
    assert decide(heeding_losses(seen)).grow == {B: 1}


def test_the_plan_and_the_log_name_the_loss() -> None:
    said = (
        "g6.xlarge spot in us-west-2a: machine i-91 was lost (spot, 2nd loss in a row); others are preferred until"
        " 02:08Z"
    )
    seen = wanting(1, **named(SPOT_A, **lost(9, 2)))
    assert said in decide(seen).notes
    candidates = SPOT.candidates(ZONES)
    first, last = growth_notes(SPOT, 1, candidates, seen.groups, NOW)
    assert (first, last) == (f"{SPOT_B} 0->1 (g6.xlarge spot in us-west-2b first)", said)


times = st.lists(st.integers(0, 300), max_size=6).map(lambda found: sorted(found, reverse=True))


@given(st.lists(times, min_size=6, max_size=6), st.integers(0, 400))
def test_losses_only_ever_order(all_minutes: list[list[int]], later: int) -> None:
    found = tuple(replace(group, **lost(*minutes)) for group, minutes in zip(groups(SPOT), all_minutes, strict=True))
    now = NOW + timedelta(minutes=later)
    losses = losses_there(found, now)
    first = preferred(found, losses, _candidate)
    assert [group for group in found if group in first] == first != []
    assert all(each.until - each.last.at <= LONGEST and each.until > now for each in losses.values())
    assert all(now - each.last.at < FORGOTTEN_AFTER for each in losses.values())
    assert preferred(first, losses, _candidate) == first


def _candidate(group: Group) -> Candidate:
    return group.candidate

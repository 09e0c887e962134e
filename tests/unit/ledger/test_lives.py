"""When machines ran, by the cloud's word: each second of them is on somebody's bill, and never more than there were."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.clouds.base import MachineLife
from airflow_gpu_provider.ledger.ledger import machines_to_bill
from airflow_gpu_provider.money.bill import shares
from airflow_gpu_provider.money.run_usage import MachineUse, RunUsage, Span
from tests.unit.scaling.pools import NOW, key

MARKETS = {"spot": "SPOT"}
NODE = "node-1"


def at(minutes: float) -> datetime:
    return NOW + timedelta(minutes=minutes)


def span(start: float, end: float) -> Span:
    return at(start), at(end)


def look(start: float, usable: float | None, end: float, **fields: Any) -> MachineUse:
    usable_at = None if usable is None else at(usable)
    usual = {"id": "i-1", "node": NODE, "launched_at": at(start), "usable_at": usable_at, "seen_until": at(end)}
    return MachineUse(**{**usual, **fields})


def life(start: float | None, end: float | None, **fields: Any) -> MachineLife:
    launched_at, ended_at = None if start is None else at(start), None if end is None else at(end)
    return MachineLife(**{"id": "i-1", "group": "spot", "launched_at": launched_at, "ended_at": ended_at, **fields})


def run(*wanted: Span, worked: dict[str, tuple[Span, ...]] | None = None) -> RunUsage:
    return RunUsage(key=key("a"), wanted=wanted, worked=worked or {})


def billed(
    seen: list[MachineUse], told: list[MachineLife], *runs: RunUsage, since: float = 0, now: float = 100
) -> list[MachineUse]:
    return list(machines_to_bill(seen, told, runs, since=at(since), now=at(now), markets=MARKETS))


class TestOneMachine:
    def test_the_cloud_knows_better_than_looks(self) -> None:
        assert billed([look(1, 3, 5)], [life(0, 60)], run(span(0, 90))) == [
            look(0, 3, 60, group="spot", market="SPOT"),
        ]

    def test_a_machine_that_nobody_saw_booted_until_its_first_pod_ran(self) -> None:
        worked = {"node-9": (span(30, 40), span(45, 50))}
        assert billed([], [life(20, 55)], run(span(0, 90), worked=worked)) == [
            look(20, 30, 55, node="node-9", group="spot", market="SPOT")
        ]

    def test_a_machine_that_never_joined_booted_all_its_time(self) -> None:
        (found,) = billed([], [life(20, 55)], run(span(0, 90)))
        assert (found.node, found.usable_at) == ("", None)
        assert dict(shares(found, [run(span(0, 90))])[key("a")]) == {"booting": 35 * 60.0}

    def test_one_that_runs_has_run_until_it_was_seen_last(self) -> None:
        assert billed([look(1, 3, 70)], [life(0, None)], run(span(0, 65)))[0].seen_until == at(70)
        assert billed([], [life(50, None)], run(span(0, 65)))[0].seen_until == at(100)

    def test_one_that_was_there_before_is_counted_from_the_first_demand(self) -> None:
        assert billed([], [life(None, 30)], run(span(10, 65)), since=10)[0].launched_at == at(10)

    def test_one_that_came_after_the_last_demand_and_was_not_seen_is_another_pool_s(self) -> None:
        assert billed([], [life(66, None)], run(span(0, 65))) == []
        assert billed([look(66, 70, 80)], [life(66, 80)], run(span(0, 65)))[0].seen_until == at(80)

    def test_machines_of_one_name_are_several(self) -> None:
        told = [life(0, 10, id=NODE, node=NODE), life(20, 39, id=NODE, node=NODE), life(41, None, id=NODE, node=NODE)]
        worked = {NODE: (span(5, 10), span(25, 39), span(45, 60))}
        found = billed([look(0, 2, 8, id=NODE)], told, run(span(0, 100), worked=worked))
        assert [(each.launched_at, each.usable_at, each.seen_until) for each in found] == [
            (at(0), at(2), at(10)),
            (at(20), at(25), at(39)),
            (at(41), at(45), at(100)),
        ]

    def test_one_that_the_cloud_has_forgotten_ran_until_its_last_pod_whatever_it_knows_of_others(self) -> None:
        worked = {"node-9": (span(3, 60),)}
        found = billed([look(0, 2, 5, id="i-9", node="node-9")], [life(0, 90)], run(span(0, 95), worked=worked))
        assert {each.id: each.seen_until for each in found} == {"i-1": at(90), "i-9": at(60)}

    def test_a_pod_goes_to_the_machine_that_ran_then(self) -> None:
        told = [life(0, 30), life(31, 60, id="i-2"), life(5, 90, id="i-3")]
        worked = {"node-a": (span(10, 30),), "node-b": (span(40, 60),), "node-c": (span(15, 85),)}
        seen = [look(5, 9, 9, id="i-3", node="node-c")]
        found = {each.id: each.node for each in billed(seen, told, run(span(0, 90), worked=worked))}
        assert found == {"i-1": "node-a", "i-2": "node-b", "i-3": "node-c"}


class TestWithoutTheCloud:
    def test_the_last_pod_s_end_counts_where_no_look_came_after_it(self) -> None:
        assert billed([look(0, 3, 5)], [], run(span(0, 90), worked={NODE: (span(10, 50),)})) == [look(0, 3, 50)]
        assert billed([look(0, 3, 60)], [], run(span(0, 90), worked={NODE: (span(10, 50),)})) == [look(0, 3, 60)]

    def test_a_name_that_came_again_is_no_reason_to_count_one_machine_on(self) -> None:
        seen = [look(0, 3, 5), look(20, 23, 25, id="i-2")]
        assert billed(seen, [], run(span(0, 90), worked={NODE: (span(4, 5), span(24, 50))})) == seen

    def test_a_node_that_nobody_saw_ran_as_long_as_its_pods(self) -> None:
        worked = {"node-9": (span(10, 20), span(30, 50))}
        assert billed([], [], run(span(0, 90), worked=worked)) == [look(10, 10, 50, id="node-9", node="node-9")]


@st.composite
def nights(draw: st.DrawFn) -> tuple[list[MachineLife], list[MachineUse], RunUsage]:
    """One run's night, minutes 0 to 100: machines that came and went, each with a pod or none, some of them seen."""
    lives, looks, worked = [], [], {}
    for number in range(draw(st.integers(0, 5))):
        times = sorted(draw(st.lists(st.integers(0, 99), min_size=4, max_size=4, unique=True)))
        start, begun, over, end = times
        node = f"node-{number}"
        lives.append(life(start, end, id=f"i-{number}"))
        if draw(st.booleans()):
            worked[node] = (span(begun, over),)
        if draw(st.booleans()):
            seen_at = draw(st.integers(start, end))
            usable = draw(st.sampled_from([None, *range(start, min(begun, seen_at) + 1)]))
            looks.append(look(start, usable, seen_at, id=f"i-{number}", node=draw(st.sampled_from([node, ""]))))
    return lives, looks, run(span(0, 100), worked=worked)


def lasted(told: MachineLife) -> float:
    assert told.launched_at
    assert told.ended_at
    return (told.ended_at - told.launched_at).total_seconds()


@given(nights())
def test_the_bill_is_what_the_cloud_says_to_the_second(
    night: tuple[list[MachineLife], list[MachineUse], RunUsage],
) -> None:
    told, looks, only = night
    found = billed(looks, told, only)
    lives = {(each.id, each.launched_at, each.ended_at) for each in told}
    assert {(each.id, each.launched_at, each.seen_until) for each in found} == lives
    parts = [dict(shares(each, [only]).get(key("a"), {})) for each in found]
    assert sum(sum(each.values()) for each in parts) == pytest.approx(sum(map(lasted, told)))


@given(nights())
def test_what_pods_worked_is_never_counted_twice(night: tuple[list[MachineLife], list[MachineUse], RunUsage]) -> None:
    told, looks, only = night
    found = billed(looks, told, only)
    nodes = [each.node for each in found if each.node]
    assert len(nodes) == len(set(nodes))
    working = sum(shares(each, [only]).get(key("a"), {}).get("working", 0.0) for each in found)
    pods = sum((end - start).total_seconds() for spans in only.worked.values() for start, end in spans)
    assert working <= pods + 1e-6
    if all(each.node for each in looks) and len(looks) >= len(told) - 1:
        assert working == pytest.approx(pods)


@given(nights())
def test_the_order_of_what_is_told_does_not_matter(
    night: tuple[list[MachineLife], list[MachineUse], RunUsage],
) -> None:
    told, looks, only = night

    assert set(billed(looks, told, only)) == set(billed(looks[::-1], told[::-1], only))

"""Whose each second of a machine is: no second is lost or counted twice, and whoever works pays for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.money.bill import IDLE_AUTOSCALER, MOST_LANES, PHASES, bill, shares
from airflow_gpu_provider.money.run_usage import MachineUse, RunUsage, Span, union
from airflow_gpu_provider.times import format_time
from tests.unit.scaling.pools import NOW, key, pool

NODE = "node-1"
RUNS = ("a", "b", "c")

moments = st.integers(0, 600).map(lambda minutes: NOW + timedelta(minutes=minutes))
spans = st.tuples(moments, moments).map(lambda pair: (min(pair), max(pair)))


def at(minutes: float) -> datetime:
    return NOW + timedelta(minutes=minutes)


def span(start: float, end: float) -> Span:
    return at(start), at(end)


def machine(start: float, usable: float | None, end: float, **fields: Any) -> MachineUse:
    usable_at = None if usable is None else at(usable)
    usual = {"id": "i-1", "node": NODE, "launched_at": at(start), "usable_at": usable_at, "seen_until": at(end)}
    return MachineUse(**{**usual, **fields})


def run(name: str, *wanted: Span, worked: tuple[Span, ...] = ()) -> RunUsage:
    return RunUsage(key=key(name), wanted=wanted, worked={NODE: worked} if worked else {})


@st.composite
def machines(draw: st.DrawFn) -> MachineUse:
    start, usable, end = sorted(draw(st.tuples(moments, moments, moments)))
    ready = draw(st.sampled_from([usable, None]))
    return MachineUse(id="i-1", node=NODE, launched_at=start, usable_at=ready, seen_until=end)


runs = st.builds(
    lambda wanted, worked: tuple(
        RunUsage(key=key(name), wanted=union(wanted.get(name, ())), worked={NODE: union(worked.get(name, ()))})
        for name in RUNS
    ),
    st.dictionaries(st.sampled_from(RUNS), st.lists(spans, max_size=3)),
    st.dictionaries(st.sampled_from(RUNS), st.lists(spans, max_size=3)),
)


def seconds(found: Any) -> float:
    return float(sum(sum(phases.values()) for phases in found.values()))


def overlap(first: Span, second: Span) -> float:
    return max(0.0, (min(first[1], second[1]) - max(first[0], second[0])).total_seconds())


class TestShares:
    def test_a_night_of_one_run(self) -> None:
        found = shares(machine(1, 5, 65), [run("a", span(0, 60), worked=(span(7, 30), span(40, 60)))])
        assert dict(found[key("a")]) == {"booting": 240.0, "working": 43 * 60.0, "idle": 2 * 60 + 600 + 300.0}

    def test_whoever_works_has_the_node_and_who_only_wants_one_shares_what_is_idle(self) -> None:
        a = run("a", span(0, 60), worked=(span(10, 20),))
        b = run("b", span(0, 60), worked=(span(15, 20),))
        found = shares(machine(0, 10, 30), [a, b])
        assert dict(found[key("a")]) == {"booting": 300.0, "working": 300 + 150.0, "idle": 300.0}
        assert dict(found[key("b")]) == {"booting": 300.0, "working": 150.0, "idle": 300.0}

    def test_what_nobody_wants_any_more_is_of_who_wanted_it_last(self) -> None:
        found = shares(machine(0, 0, 60), [run("a", span(0, 10)), run("b", span(5, 20))])
        assert (found[key("a")]["idle"], found[key("b")]["idle"]) == (5 * 60 + 150.0, 150 + 50 * 60.0)

    def test_the_years_of_a_machine_of_one_s_own_before_the_run_are_nobody_s(self) -> None:
        found = shares(machine(-500_000, -499_999, 30), [run("a", span(0, 20), worked=(span(0, 20),))])
        assert dict(found[key("a")]) == {"working": 1200.0, "idle": 600.0}

    @given(machines(), runs)
    def test_no_second_is_lost_or_counted_twice(self, one: MachineUse, all_runs: tuple[RunUsage, ...]) -> None:
        starts = [start for each in all_runs for start, _ in (*each.wanted, *each.worked[NODE])]
        life = (one.launched_at, one.seen_until)
        found = shares(one, all_runs)
        assert seconds(found) <= overlap(life, life) + 1e-6
        wanted = union(each for run_ in all_runs for each in (*run_.wanted, *run_.worked[NODE]))
        assert seconds(found) >= sum(overlap(life, each) for each in wanted) - 1e-6
        if starts and any(run_.wanted for run_ in all_runs):
            first = min(start for each in all_runs for start, _ in each.wanted)
            assert seconds(found) >= overlap(life, (first, one.seen_until)) - 1e-6 or first >= one.seen_until

    @given(machines(), runs)
    def test_working_time_is_when_pods_ran_and_never_more(
        self, one: MachineUse, all_runs: tuple[RunUsage, ...]
    ) -> None:
        life = (one.launched_at, one.seen_until)
        found = shares(one, all_runs)
        for each in all_runs:
            mine = found.get(each.key, {}).get("working", 0.0)
            assert mine <= sum(overlap(life, worked) for worked in each.worked[NODE]) + 1e-6
        together = sum(phases.get("working", 0.0) for phases in found.values())
        ran = union(worked for each in all_runs for worked in each.worked[NODE])
        assert together == pytest.approx(sum(overlap(life, each) for each in ran))

    @given(machines(), runs)
    def test_the_order_of_runs_does_not_matter(self, one: MachineUse, all_runs: tuple[RunUsage, ...]) -> None:
        first, second = shares(one, all_runs), shares(one, all_runs[::-1])
        assert {run_: dict(phases) for run_, phases in first.items()} == {
            run_: dict(phases) for run_, phases in second.items()
        }


class TestBill:
    USED = run("a", span(0, 60), worked=(span(10, 60),))
    LIFE = machine(0, 10, 60, group="train-a", market="SPOT")

    def test_a_price_for_each_market(self) -> None:
        spec = pool(price_per_hour={"spot": 0.3, "on-demand": 1.2})
        other = machine(30, 40, 60, id="i-2", node="node-2", market="ON_DEMAND")
        found = bill(spec, key("a"), [self.USED], [self.LIFE, other])
        assert found.machines == 2
        assert dict(found.seconds) == {"booting": 1200.0, "working": 3000.0, "idle": 1200.0}
        assert found.cost["booting"] == pytest.approx(0.05 + 0.2)
        assert found.cost["working"] == pytest.approx(0.25)
        assert found.total_cost == pytest.approx(0.3 + 0.6)
        assert found.to_json()["cost"]["total"] == 0.9

    def test_without_a_price_money_is_unknown_and_time_is_not(self) -> None:
        said = bill(pool(), key("a"), [self.USED], [self.LIFE]).to_json()
        assert said["node_seconds"] == {"booting": 600.0, "working": 3000.0, "idle": 0.0}
        assert said["cost"] == {"booting": "unknown", "working": "unknown", "idle": 0.0, "total": "unknown"}

    def test_a_market_without_a_price_makes_no_guess(self) -> None:
        spec = pool(price_per_hour={"on-demand": 1.2})
        assert bill(spec, key("a"), [self.USED], [self.LIFE]).cost["working"] is None

    def test_what_an_autoscaler_would_have_kept_is_beside_it(self) -> None:
        said = bill(pool(price_per_hour=6.0), key("a"), [self.USED], [self.LIFE]).to_json()["autoscaler"]
        assert said["idle_minutes"] == 10
        assert said["node_seconds"] == {"booting": 600.0, "working": 3000.0, "idle": 600.0}
        assert said["cost"] == {"booting": 1.0, "working": 5.0, "idle": 1.0, "total": 7.0}

    def test_a_machine_that_never_worked_is_kept_from_when_it_was_usable(self) -> None:
        wanted = run("a", span(0, 12))
        said = bill(pool(), key("a"), [wanted], [machine(0, 5, 12)]).to_json()["autoscaler"]
        assert said["node_seconds"] == {"booting": 300.0, "working": 0.0, "idle": 600.0}

    def test_the_last_that_worked_on_a_machine_pays_for_what_comes_after(self) -> None:
        other = run("b", span(0, 80), worked=(span(60, 80),))
        life = machine(0, 10, 80)
        first, last = (bill(pool(), key(name), [self.USED, other], [life]) for name in "ab")
        assert first.autoscaler is not None
        assert last.autoscaler is not None
        assert first.autoscaler.seconds == first.seconds
        assert last.autoscaler.seconds["idle"] == last.seconds["idle"] + 600.0

    def test_each_machine_s_times_are_in_it_and_the_shortest_lives_are_left_out(self) -> None:
        many = [machine(0, 10, 60 + index, id=f"i-{index}") for index in range(MOST_LANES + 2)]
        said = bill(pool(), key("a"), [self.USED], many).to_json()
        assert said["timeline_left_out"] == 2
        shown = {each["machine"]: each for each in said["timeline"]}
        assert set(shown) == {each.id for each in many[2:]}
        assert shown["i-2"] == {
            "machine": "i-2",
            "node": NODE,
            "group": "",
            "market": "",
            "instance_type": None,
            "launched_at": format_time(at(0)),
            "usable_at": format_time(at(10)),
            "gone_at": format_time(many[2].seen_until),
            "worked": [[format_time(at(10)), format_time(at(60))]],
        }

    @given(st.lists(machines(), max_size=4), runs)
    def test_an_autoscaler_is_never_cheaper_and_keeps_no_machine_longer_than_its_time(
        self, some: list[MachineUse], all_runs: tuple[RunUsage, ...]
    ) -> None:
        """A pod may be said to have run a moment longer than its machine: not here."""
        ends = [end for each in all_runs for _, end in each.worked[NODE]]
        some = [one for one in some if all(end <= one.seen_until for end in ends)]
        bills = [bill(pool(), each.key, all_runs, some) for each in all_runs]
        extra = [each.autoscaler.total_seconds - each.total_seconds for each in bills if each.autoscaler]
        assert len(extra) == len(bills)
        assert all(each >= -1e-6 for each in extra)
        assert sum(extra) <= IDLE_AUTOSCALER.total_seconds() * len(some) + 1e-6

    def test_who_used_nothing_owes_nothing(self) -> None:
        found = bill(pool(price_per_hour=1.0), key("b"), [self.USED], [self.LIFE])
        assert (found.machines, found.total_seconds, found.total_cost, found.is_idle) == (0, 0, 0, False)

    @pytest.mark.parametrize(
        ("gap", "began", "gone", "idle", "is_idle"),
        [
            (15, 75, 75, 15, True),  # the second training begins a quarter of an hour after the first
            (4, 64, 64, 4, False),  # some minutes: nobody can do much about them
            (0, 60, 120, 0, False),  # the cloud refuses to terminate the machine for an hour
            (0, 75, 120, 15, True),  # a task without GPUs kept the block open
            (0, None, 120, 0, False),  # scale-down is tried again: since when is not known
        ],
    )
    def test_only_the_time_that_its_tasks_left_unused_is_idle_of_them(
        self, gap: float, began: float | None, gone: float, idle: float, is_idle: bool
    ) -> None:
        work = (span(0, 30), span(30 + gap, 60 + gap))
        used = run("a", span(0, gone), worked=work)
        release_began = None if began is None else at(began)
        found = bill(pool(), key("a"), [used], [machine(0, 0, gone)], release_began=release_began)
        assert found.idle_before_release == idle * 60
        assert found.is_idle == is_idle

    @given(st.lists(machines(), max_size=4), runs, st.floats(0.01, 100))
    def test_the_bills_of_all_runs_are_the_price_of_all_that_they_had(
        self, some: list[MachineUse], all_runs: tuple[RunUsage, ...], price: float
    ) -> None:
        spec = pool(price_per_hour=price)
        bills = [bill(spec, each.key, all_runs, some) for each in all_runs]
        had = sum(seconds(shares(one, all_runs)) for one in some)
        assert sum(each.total_seconds for each in bills) == pytest.approx(had)
        assert sum(each.total_cost or 0.0 for each in bills) == pytest.approx(price * had / 3600)
        assert all(each.seconds[phase] >= 0 for each in bills for phase in PHASES)


@given(st.lists(spans))
def test_a_union_covers_what_its_parts_cover_once(parts: list[Span]) -> None:
    found = union(parts)
    assert list(found) == sorted(found)
    assert all(first[1] < second[0] for first, second in pairwise(found))
    minutes = [NOW + timedelta(minutes=number) for number in range(601)]
    assert [any(s <= m < e for s, e in found) for m in minutes] == [any(s <= m < e for s, e in parts) for m in minutes]


@given(st.permutations([machine(0, None, 5), machine(2, 4, 3, group="g", market="SPOT"), machine(1, 5, 9, node="")]))
def test_what_is_known_of_a_machine_does_not_depend_on_who_said_it_first(order: list[MachineUse]) -> None:
    first, second, third = order
    assert first.merged(second).merged(third) == machine(0, 4, 9, group="g", market="SPOT")


def test_a_bill_that_lacks_something_is_at_least_so_much() -> None:
    used = (run("a", span(0, 30), worked=(span(10, 20),)),)
    part = bill(pool(price_per_hour=6.0), key("a"), used, [machine(0, 5, 30)])
    assert part.lacking("") is part
    assert part.lacking("one").lacking("two").to_json()["at_least"] == "one; two"
    assert part.lacking("one").total_cost == part.total_cost


@pytest.mark.parametrize(("max_cost", "over"), [(2.0, 1.0), (3.0, None), (5.0, None), (None, None)])
def test_what_was_spent_beyond_the_limit_is_in_the_bill(max_cost: float | None, over: float | None) -> None:
    limited = replace(run("a", span(0, 30)), max_cost=max_cost)
    found = bill(pool(price_per_hour=6.0), key("a"), (limited,), [machine(0, 5, 30)])
    assert (found.total_cost, found.to_json()["over_max_cost"]) == (3.0, over)
    assert bill(pool(), key("a"), (limited,), [machine(0, 5, 30)]).over_max_cost == 0.0, "its cost is not known"

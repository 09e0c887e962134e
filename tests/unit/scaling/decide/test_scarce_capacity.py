"""Nodes that are hard to get, in virtual time: waits of production code over a cloud whose stock comes and goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.base import FailureKind, Group, LaunchFailure, Machine
from airflow_gpu_provider.errors import GpuError, GroupFailed, OutOfStock, QuotaExceeded
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait
from airflow_gpu_provider.scaling.wait.records import Progress
from tests.unit.scaling.pools import NOW, ZONES, A, key, lease, machine, node, pool, snapshot

Stock = Callable[[datetime, str], int]
"""How many machines a zone has to give in all, at some time."""


@dataclass
class Zone:
    machines: list[int] = field(default_factory=list)
    failures: list[LaunchFailure] = field(default_factory=list)
    worked_at: datetime | None = None
    desired: int = 0


class Night:
    """A pool in virtual time: each step is half a minute in which the cloud launches what it is asked for."""

    def __init__(self, stock: Stock, *, kind: FailureKind = "out_of_stock", spec: EksGpuPool | None = None) -> None:
        self.now = NOW
        self.spec = spec or pool()
        self._stock = stock
        self._kind = kind
        self.zones = {c.group: Zone() for c in self.spec.candidates(ZONES)}
        self._names = {c.group: c for c in self.spec.candidates(ZONES)}
        self.leases: dict[str, DemandLease] = {}
        self.said: list[str] = []
        self._count = 0
        self.tries: list[tuple[datetime, str]] = []

    def wants(self, run: str, nodes: int, **how: Any) -> NodesWait:
        until = self.now + self.spec.max_runtime
        self.leases[run] = DemandLease(key=key(run), nodes=nodes, until=until, created_at=self.now)
        patience = timedelta(minutes=30)
        how = {"deadline": self.now + patience, "patience": patience, **how}
        return NodesWait(key=key(run), wait_for="ready", started=self.now, nodes=nodes, **how)

    def snapshot(self) -> PoolSnapshot:
        numbers = [number for zone in self.zones.values() for number in zone.machines]
        return PoolSnapshot(
            now=self.now,
            pool=self.spec,
            leases=tuple(sorted(self.leases.values(), key=lambda each: each.created_at)),
            nodes=tuple(node(number) for number in numbers),
            pods=(),
            groups=tuple(self._group(name, zone) for name, zone in self.zones.items()),
        )

    def _group(self, name: str, zone: Zone) -> Group:
        in_a_row = [each for each in zone.failures if zone.worked_at is None or each.at > zone.worked_at]
        earlier = tuple(each.at for each in in_a_row[:-1])
        return Group(
            name=name,
            candidate=self._names[name],
            status="active",
            desired=zone.desired,
            max_size=self.spec.max_nodes,
            machines=tuple(Machine(id=f"i-{number}", group=name, state="running") for number in zone.machines),
            launch_failure=replace(in_a_row[-1], earlier=earlier) if in_a_row else None,
            failures=tuple(zone.failures),
        )

    def pass_time(self) -> None:
        """Decide and carry it out; then the cloud has half a minute."""
        decision = decide(self.snapshot())
        self.said += decision.notes
        for name in decision.shrink:
            self.zones[name].desired = len(self.zones[name].machines)
        for name, size in decision.grow.items():
            self.zones[name].desired = size
        for each in decision.release:
            self.zones[each.group].machines.remove(int(each.id.removeprefix("i-")))
            self.zones[each.group].desired -= 1
        self.now += timedelta(seconds=30)
        for name, zone in self.zones.items():
            while len(zone.machines) < zone.desired:
                self.tries.append((self.now, name))
                if len(zone.machines) >= self._stock(self.now, name):
                    words = "InsufficientInstanceCapacity" if self._kind == "out_of_stock" else "VcpuLimitExceeded"
                    zone.failures.append(LaunchFailure(at=self.now, message=words, kind=self._kind, quota="L-1"))
                    break
                self._count += 1
                zone.machines.append(self._count)
                zone.worked_at = self.now

    def step(self, wait: NodesWait) -> Progress:
        """Step as `run_wait` does, with the wait as a triggerer that was just started reads it from its row."""
        again = NodesWait.from_record(wait.to_record())
        progress = again.step(self.snapshot())
        if progress.ask:
            run = progress.ask.before.key.run_id
            assert self.leases[run] == progress.ask.before
            self.leases[run] = DemandLease.parse(progress.ask.after.manifest())
            self.said.append(progress.ask.why)
            return self.step(wait)
        return progress

    def until_over(self, wait: NodesWait, *, hours: float = 30) -> Progress:
        ends = self.now + timedelta(hours=hours)
        while self.now < ends:
            progress = self.step(wait)
            if progress.done or progress.error:
                return progress
            self.pass_time()
        raise AssertionError(f"not over after {hours} hours: {self.said[-5:]}")

    @property
    def machines(self) -> int:
        return sum(len(zone.machines) for zone in self.zones.values())


def hours(number: float) -> dict[str, datetime]:
    return {"deadline": NOW + timedelta(hours=number)}


def test_the_candidates_are_tried_in_order_and_the_log_says_why() -> None:
    last = pool().candidates(ZONES)[-1].group
    night = Night(lambda _, name: 1 if name == last else 0)
    progress = night.until_over(night.wants("run", 1))
    assert progress.result
    assert [(each["zone"], each["times"], each["why"]) for each in progress.result["tried"]] == [
        ("us-west-2a", 1, "InsufficientInstanceCapacity"),
        ("us-west-2b", 1, "InsufficientInstanceCapacity"),
    ]
    assert (progress.result["wanted"], progress.result["got"]) == (1, 1)
    assert (
        "no g6.xlarge on-demand in us-west-2a (InsufficientInstanceCapacity, not tried again until 02:05Z)"
        in night.said
    )
    assert "trying g6.xlarge on-demand in us-west-2b" in night.said


def test_every_candidate_dry_is_tried_seldom_and_the_error_names_each() -> None:
    night = Night(lambda _, __: 0)
    progress = night.until_over(night.wants("run", 1, **hours(10)))
    assert isinstance(progress.error, OutOfStock)
    assert progress.error.details["tried"][0]["times"] == len(night.tries) / len(ZONES)
    per_zone = [at - NOW for at, name in night.tries if name == night.tries[0][1]]
    gaps = [later - sooner for sooner, later in pairwise(per_zone)]
    assert [round(gap / timedelta(minutes=5)) for gap in gaps[:5]] == [1, 2, 4, 6, 6]
    for zone in ZONES:
        assert f"g6.xlarge on-demand in {zone} (tried {len(per_zone)} times, last failed at" in str(progress.error)


def test_capacity_that_comes_after_hours_is_got_and_the_run_s_time_begins_then() -> None:
    night = Night(lambda now, _: 4 if now > NOW + timedelta(hours=9) else 0)
    progress = night.until_over(night.wants("run", 2, **hours(12)))
    assert progress.done
    assert night.now - NOW < timedelta(hours=9, minutes=31)
    assert night.leases["run"].until - night.now >= 0.75 * night.spec.max_runtime


@pytest.mark.parametrize("how", [{}, {"all_or_nothing": True}], ids=["keeps what came", "all or nothing"])
def test_no_demand_outlasts_its_run_however_long_it_tries(how: dict[str, Any]) -> None:
    night, latest = Night(lambda now, _: 4 if now > NOW + timedelta(hours=9) else 0), NOW + timedelta(hours=10)
    wait = night.wants("run", 2, latest=latest, **how, **hours(12))
    night.leases["run"] = replace(night.leases["run"], until=min(night.leases["run"].until, latest))
    assert night.until_over(wait).done
    assert night.leases["run"].until == latest


def test_fewer_nodes_will_do_when_the_others_are_out_of_stock() -> None:
    night = Night(lambda _, name: 1 if "-a-" in name else 0)
    progress = night.until_over(night.wants("run", 3, at_least=1))
    assert progress.result
    assert (progress.result["wanted"], progress.result["got"], len(progress.result["nodes"])) == (3, 1, 1)
    assert night.now - NOW < timedelta(minutes=5)
    night.pass_time()
    assert sum(zone.desired for zone in night.zones.values()) == 1
    assert "1 of 3 nodes have come; that is enough, so the wait for the others ends" in night.said


def test_fewer_nodes_will_do_when_the_others_are_over_quota() -> None:
    night = Night(lambda _, name: 1 if "-a-" in name else 0, kind="quota")
    progress = night.until_over(night.wants("run", 2, at_least=1))
    assert progress.result
    assert (progress.result["wanted"], progress.result["got"]) == (2, 1)


def test_too_few_nodes_will_not_do() -> None:
    night = Night(lambda _, name: 1 if "-a-" in name else 0)
    assert isinstance(night.until_over(night.wants("run", 3, at_least=2)).error, OutOfStock)


def test_all_or_nothing_lets_go_and_gets_all_later() -> None:
    night = Night(lambda now, name: 2 if "-a-" in name and now > NOW + timedelta(hours=1) else int("-a-" in name))
    held = []
    wait = night.wants("run", 2, all_or_nothing=True, **hours(3))
    while not (progress := night.step(wait)).done:
        assert progress.error is None
        night.pass_time()
        held.append(night.machines)
    assert (night.machines, night.leases["run"].nodes) == (2, 2)
    assert night.leases["run"].attempts > 1
    assert held.count(0) > len(held) / 2, "most of the time nothing is held"
    assert night.leases["run"].until - night.now > 0.9 * night.spec.max_runtime


def test_all_or_nothing_ends_with_nothing() -> None:
    night = Night(lambda _, name: int("-a-" in name))
    progress = night.until_over(night.wants("run", 2, all_or_nothing=True))
    assert isinstance(progress.error, OutOfStock)
    assert night.now - NOW <= timedelta(minutes=30)


def test_a_quota_ends_the_wait_at_once_with_its_name() -> None:
    night = Night(lambda _, __: 0, kind="quota")
    progress = night.until_over(night.wants("run", 1))
    assert isinstance(progress.error, QuotaExceeded)
    assert progress.error.details["quota"] == "L-1"
    assert "quota L-1 is exhausted" in str(progress.error)
    assert night.now - NOW < timedelta(minutes=5)
    assert len(night.tries) == 1, "a quota is the account's: no other zone is tried"


def test_the_next_zone_is_tried_after_a_launch_that_failed_for_who_knows_what() -> None:
    last = pool().candidates(ZONES)[-1].group
    night = Night(lambda _, name: 1 if name == last else 0, kind="other")
    progress = night.until_over(night.wants("run", 1))
    assert progress.result
    assert [each["times"] for each in progress.result["tried"]] == [1, 1]
    assert night.now - NOW < timedelta(minutes=3)


def test_one_candidate_that_failed_for_who_knows_what_is_asked_on() -> None:
    night = Night(lambda now, _: int(now > NOW + timedelta(minutes=3)), kind="other", spec=pool(zones=ZONES[:1]))
    night.zones = {name: zone for name, zone in night.zones.items() if name == A}
    assert night.until_over(night.wants("run", 1)).done
    assert night.now - NOW < timedelta(minutes=4)


def test_a_wait_ends_at_once_where_every_candidate_would_be_refused_again() -> None:
    night = Night(lambda _, __: 0, kind="refused")
    progress = night.until_over(night.wants("run", 1, **hours(12)))
    assert isinstance(progress.error, GroupFailed)
    assert "refuses to launch" in str(progress.error)
    assert [name for _, name in night.tries] == list(night.zones), "each zone once"
    assert night.now - NOW < timedelta(minutes=5)


def test_a_used_up_quota_ends_no_wait_while_a_machine_of_the_pool_is_on_its_way_out() -> None:
    failure = LaunchFailure(at=NOW, message="VcpuLimitExceeded", kind="quota", quota="L-1")
    full = {"launch_failure": failure, "failures": (failure,)}
    wait = NodesWait(key=key("run"), wait_for="ready", started=NOW, deadline=NOW + timedelta(minutes=30))
    draining = snapshot(machine(1, state="terminating"), leases=(lease(),), train_a_g6_xlarge=full)
    assert wait.step(draining).error is None
    assert isinstance(wait.step(snapshot(leases=(lease(),), train_a_g6_xlarge=full)).error, QuotaExceeded)


def test_a_used_up_quota_is_waited_for_by_who_said_so() -> None:
    night = Night(lambda now, _: 1 if now > NOW + timedelta(hours=2) else 0, kind="quota")
    assert night.until_over(night.wants("run", 1, **hours(5))).done


def test_two_runs_that_want_all_or_nothing_of_too_little_both_get_theirs_in_turn() -> None:
    night = Night(lambda _, name: 3 if "-a-" in name else 0)
    waits = {run: night.wants(run, 2, all_or_nothing=True, **hours(12)) for run in ("one", "two")}
    got: list[str] = []
    while waits and night.now < NOW + timedelta(hours=12):
        for run in list(waits):
            progress: Progress = night.step(waits[run])
            assert progress.error is None, progress.error
            if progress.done:
                got.append(run)
                del waits[run], night.leases[run]  # it trains, and is gone
        night.pass_time()
    assert sorted(got) == ["one", "two"]


STOCKS = st.lists(st.integers(0, 3), min_size=3, max_size=24)


@settings(deadline=None, max_examples=60)
@given(stock=STOCKS, nodes=st.integers(1, 4), at_least=st.none() | st.integers(1, 4), all_or_nothing=st.booleans())
def test_every_wait_ends_with_what_it_wanted_or_an_error_in_time(
    stock: list[int], nodes: int, at_least: int | None, all_or_nothing: bool
) -> None:
    """The stock of each zone changes every ten minutes; what a wait ends with holds whatever it is."""

    def now_there(now: datetime, name: str) -> int:
        tens = int((now - NOW) / timedelta(minutes=10))
        return stock[(tens * 3 + list(night.zones).index(name)) % len(stock)]

    night = Night(now_there)
    how: dict[str, Any] = {"all_or_nothing": all_or_nothing} if at_least is None or at_least > nodes else {}
    if not how:
        how = {"at_least": at_least}
    wait = night.wants("run", nodes, **how, **hours(6))
    progress = night.until_over(wait)
    assert night.now <= wait.deadline
    if progress.done:
        got = night.leases["run"].nodes
        assert (how.get("at_least") or nodes) <= got <= nodes
        assert progress.result
        assert len(progress.result["nodes"]) >= got
    else:
        assert isinstance(progress.error, GpuError)


@pytest.mark.parametrize("missing", ["nodes", "at_least", "all_or_nothing", "patience", "latest"])
def test_a_row_of_the_first_release_still_loads(missing: str) -> None:
    night = Night(lambda _, __: 4)
    record = night.wants("run", 2).to_record()
    del record[missing]
    wait = NodesWait.from_record(record)
    assert night.until_over(wait).done

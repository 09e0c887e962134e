"""prefer="price": where missing nodes come from, and which go first, by what they cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.clouds.base import LaunchFailure
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.placement import larger_type
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from tests.unit.scaling.pools import NOW, A, B, C, dry, lease, machine, pool, snapshot

TYPES = ("g6.xlarge", "g5.xlarge")


def market(
    prices: dict[str, float], nodes: int = 1, *, gang: int = 0, spec: Any = None, **groups: dict[str, Any]
) -> PoolSnapshot:
    spec = spec or pool(price_per_hour="list", prefer="price")
    wanted = lease("a", nodes, gang=gang, prices=ListPrices(at=NOW, per_hour=prices))
    return snapshot(leases=(wanted,), spec=spec, **groups)


def test_nodes_come_where_they_are_cheapest_and_are_spread_over_what_is_equally_cheap() -> None:
    assert decide(market({A: 0.8, B: 0.7, C: 0.5}, 2)).grow == {C: 2}
    assert decide(market({A: 0.52, B: 0.7, C: 0.5}, 2)).grow == {A: 1, C: 1}
    assert decide(market({A: 0.52, B: 0.7, C: 0.5})).grow == {A: 1}, "the spec's order among the equally cheap"


def test_what_has_no_capacity_or_no_known_price_comes_later() -> None:
    dry_c = {C.replace("-", "_"): {"launch_failure": dry()}}
    assert decide(market({A: 0.8, B: 0.7, C: 0.5}, **dry_c)).grow == {B: 1}
    assert decide(market({B: 9.0})).grow == {B: 1}
    assert decide(market({})).grow == {A: 1}, "nothing is known: the spec's order"


def test_what_is_reserved_comes_before_what_is_cheaper() -> None:
    seen = market({A: 0.1, B: 0.9, C: 0.2})
    reserved = (
        replace(group, candidate=replace(group.candidate, market="CAPACITY_BLOCK")) if group.name == B else group
        for group in seen.groups
    )
    assert decide(replace(seen, groups=tuple(reserved))).grow == {B: 1}


def test_a_gang_goes_where_all_its_nodes_cost_least() -> None:
    assert decide(market({A: 0.8, B: 0.7, C: 0.5}, 2, gang=2)).grow == {C: 2}
    full_c = {C.replace("-", "_"): {"max_size": 1}}
    assert decide(market({A: 0.8, B: 0.7, C: 0.5}, 2, gang=2, **full_c)).grow == {B: 2}
    under_way = {A.replace("-", "_"): {"desired": 2}}
    assert not decide(market({A: 0.8, B: 0.7, C: 0.5}, 2, gang=2, **under_way)).grow, "what is under way stays"


def test_the_dearest_idle_machine_goes_first() -> None:
    prices = ListPrices(at=NOW, per_hour={A: 0.5, B: 0.8, C: 0.6})
    seen = snapshot(
        *(machine(number, group) for number, group in enumerate((A, B, C))),
        leases=(lease("a", 2, prices=prices),),
        spec=pool(price_per_hour="list", prefer="price"),
    )
    assert [each.group for each in decide(seen).release] == [B]


def test_a_larger_gpu_is_of_the_cheapest_type() -> None:
    spec = pool(instance_types=("g6.xlarge", "g6e.2xlarge", "g6e.xlarge"), price_per_hour="list", prefer="price")
    seen = snapshot(spec=spec)
    prices = {group.name: 1.0 if "g6e-2xlarge" in group.name else 0.5 for group in seen.groups}
    seen = replace(seen, leases=(lease("a", prices=ListPrices(at=NOW, per_hour=prices)),))
    assert larger_type(seen, "g6.xlarge", gpus=1) == "g6e.xlarge"
    assert larger_type(replace(seen, pool=replace(spec, prefer="order")), "g6.xlarge", gpus=1) == "g6e.2xlarge"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"prefer": "cheapest"}, '"order" or "price"'),
        ({"prefer": "price"}, "needs prices"),
        ({"prefer": "price", "price_per_hour": 1.0}, "every node costs the same"),
        ({"prefer": "price", "price_per_hour": 1.0, "scaling": "autoscaler"}, "has no effect where others add"),
    ],
)
def test_a_pool_that_cannot_prefer_by_price_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(PoolSpecError, match=why):
        pool(**fields)


def test_a_pool_of_machines_that_are_there_is_refused() -> None:
    with pytest.raises(PoolSpecError, match="has no effect where others add"):
        KubernetesGpuPool(name="own", max_nodes=2, price_per_hour=1.0, prefer="price")


amounts = st.integers(40, 200).map(lambda cents: cents / 100)


@st.composite
def markets(draw: st.DrawFn) -> tuple[PoolSnapshot, PoolSnapshot]:
    """One market, with all prices known and some groups dry or full, seen by both preferences."""
    spec = pool(
        instance_types=TYPES, capacity_types=["SPOT", "ON_DEMAND"], price_per_hour="list", prefer="price", max_nodes=8
    )
    nodes, is_gang = draw(st.sampled_from([(1, False), (4, False), (2, True), (4, True)]))
    plain = snapshot(spec=spec)
    prices = {group.name: draw(amounts) for group in plain.groups}
    failure: LaunchFailure | None = dry()
    changed = {
        group.name.replace("-", "_"): {
            "launch_failure": draw(st.sampled_from([None, None, failure])),
            "max_size": draw(st.sampled_from([1, 4, 8])),
        }
        for group in plain.groups
    }
    seen = market(prices, nodes, gang=nodes if is_gang else 0, spec=spec, **changed)
    return seen, replace(seen, pool=replace(spec, prefer="order"))


def cost(seen: PoolSnapshot) -> tuple[int, float]:
    """How many nodes come, and what they cost an hour."""
    grown = decide(seen).grow
    return sum(grown.values()), sum(number * (seen.price_of(name) or 0.0) for name, number in grown.items())


@settings(max_examples=500, deadline=timedelta(seconds=10))
@given(markets())
def test_by_price_no_night_is_dearer_than_by_order(seen: tuple[PoolSnapshot, PoolSnapshot]) -> None:
    (nodes, by_price), (as_many, by_order) = map(cost, seen)
    assert nodes == as_many
    assert by_price <= by_order + 1e-9


@settings(max_examples=200, deadline=timedelta(seconds=10))
@given(markets())
def test_a_second_look_at_the_same_prices_changes_nothing(seen: tuple[PoolSnapshot, PoolSnapshot]) -> None:
    first, _ = seen
    grown = Counter(decide(first).grow)
    groups = tuple(replace(group, desired=max(group.desired, grown[group.name])) for group in first.groups)
    second = decide(replace(first, groups=groups))
    assert (dict(second.grow), second.shrink, second.release) == ({}, (), ())

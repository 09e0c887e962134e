"""How long a run's money would last, at each price that its pool's nodes may have."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.money.budget import budget_of
from airflow_gpu_provider.money.planned_money import money_lines
from airflow_gpu_provider.times import format_seconds
from tests.unit.money.test_budget import AT, listed, pool

SPOT_TOO: dict[str, Any] = {"capacity_types": ["SPOT", "ON_DEMAND"]}


def test_each_market_at_its_typed_price_the_dearest_first() -> None:
    spec = pool(price_per_hour={"spot": 0.5, "on-demand": 4.0}, **SPOT_TOO)
    assert [*money_lines(spec, 50, 2, None)] == [
        "max_cost=50 lasts 5 h 50 min for 2 nodes at 8.00 USD an hour in all (on-demand)",
        "max_cost=50 lasts 49 h 35 min for 2 nodes at 1.00 USD an hour in all (spot)",
        "of max_cost=50, 3.33 USD are kept back: what the dearest machines cost in 25 min 0 s after SIGTERM, until the"
        " cloud ends them while nobody looks",
    ]
    held_to = budget_of(spec, 50, nodes=2, spent=0.0, at=AT, listed=None)
    assert format_seconds(held_to.lasts) == "5 h 50 min"


def test_each_group_at_its_list_price_and_those_that_cost_too_much_are_none() -> None:
    spec = pool(price_per_hour="list", max_price_per_hour=5, **SPOT_TOO)
    found = money_lines(spec, 10, 1, listed("train-c", a=2.5, b=2.5, dear=9.0))
    assert [*found] == [
        "max_cost=10 lasts 3 h 35 min for 1 node at 2.50 USD (list price) an hour (a, b)",
        "of max_cost=10, 1.04 USD (list price) are kept back: what the dearest machines cost in 25 min 0 s after"
        " SIGTERM, until the cloud ends them while nobody looks",
        "max_cost=10 cannot be held, as the price of train-c is not known: AWS refused it",
    ]


@pytest.mark.parametrize(
    ("price", "line"),
    [
        (3.0, "max_cost=1 lasts 18 min 0 s for 1 node at 3.00 USD an hour"),
        (90.0, "max_cost=1 is not enough, which 9.01 is, for 1 node at 90.00 USD an hour"),
        (0.0, "max_cost=1 is never used up for 1 node at 0.00 USD an hour"),
    ],
)
def test_a_pool_of_one_price(price: float, line: str) -> None:
    spec = KubernetesGpuPool(name="lab", nodes=["a"], price_per_hour=price)
    assert next(iter(money_lines(spec, 1, 1, None))) == line

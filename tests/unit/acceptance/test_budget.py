"""The bound of an acceptance's bill: no course of things costs more, and no price means no bound."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool, GkeGpuPool
from airflow_gpu_provider.acceptance.pools import GOING, AcceptanceCost, price_of
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.switch import SWITCH_MARGIN

prices = st.floats(min_value=0.01, max_value=200)


def pool(**changes: object) -> EksGpuPool:
    fields = {"name": "p", "cluster_name": "c", "region": "us-west-2", "instance_types": ["g6.xlarge"], "max_nodes": 1}
    return EksGpuPool(**{**fields, **changes})  # type: ignore[arg-type]


@given(price=prices, minutes=st.integers(5, 240), nights=st.lists(st.floats(0, 1), max_size=3))
def test_no_course_of_the_nights_costs_more_than_the_bound(price: float, minutes: int, nights: list[float]) -> None:
    """Each night takes any share of its worst case; those that fail before a node comes take none."""
    night = timedelta(minutes=minutes)
    budget = AcceptanceCost(nights=3, night=night, price=price, currency="USD")
    worst = (night + SWITCH_MARGIN + GOING).total_seconds() / 3600
    assert sum(share * worst * price for share in nights) <= budget.bound * (1 + 1e-9)


@given(on_demand=prices, spot=prices)
def test_the_dearest_market_counts(on_demand: float, spot: float) -> None:
    both = pool(capacity_types=["SPOT", "ON_DEMAND"], price_per_hour={"ON_DEMAND": on_demand, "SPOT": spot})
    assert price_of(both, None) == max(on_demand, spot)
    assert price_of(both, 3.0) == 3.0


def test_a_preemptible_machine_has_the_price_of_spot() -> None:
    where = {"project_id": "acme-ml-1", "location": "us-central1", "cluster_name": "c"}
    spec = GkeGpuPool(
        name="train",
        machine_types=["g2-standard-4"],
        capacity_types=["PREEMPTIBLE"],
        price_per_hour={"PREEMPTIBLE": 0.3},
        max_nodes=1,
        **where,
    )
    assert price_of(spec, None) == 0.3


@pytest.mark.parametrize(
    ("spec", "given_price"),
    [
        ({}, None),
        ({"capacity_types": ["SPOT", "ON_DEMAND"], "price_per_hour": {"SPOT": 0.3}}, None),
        ({"price_per_hour": 0.8}, 0.0),
        ({"price_per_hour": 0.8}, float("inf")),
        ({"price_per_hour": 0.8}, float("nan")),
    ],
)
def test_without_a_price_there_is_no_bound(spec: dict[str, object], given_price: float | None) -> None:
    with pytest.raises(PoolSpecError, match="no bound"):
        price_of(pool(**spec), given_price)


def test_the_bound_is_said_with_how_it_comes_about() -> None:
    said = AcceptanceCost(nights=3, night=timedelta(minutes=45), price=0.8048, currency="EUR").in_words()
    assert said.startswith("At most 3.22 EUR: 3 nights of one node, each 80 minutes in the worst case (45 until")
    assert "at 0.8048 EUR an hour." in said

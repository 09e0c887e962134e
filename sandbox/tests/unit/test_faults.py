"""What is told to fail, and the way it goes through JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sandbox.faults import Faults, GpuUse, Stockout

ZONES = ["us-west-2a", "us-west-2b"]
TYPES = ["g6.xlarge", "g5.xlarge"]
MARKETS = ["on-demand", "spot"]

stockouts = st.builds(
    Stockout,
    zone=st.sampled_from([None, *ZONES]),
    instance_type=st.sampled_from([None, *TYPES]),
    market=st.sampled_from([None, *MARKETS]),
)
places = st.fixed_dictionaries(
    {"zone": st.sampled_from(ZONES), "instance_type": st.sampled_from(TYPES), "market": st.sampled_from(MARKETS)}
)
rates = st.dictionaries(st.sampled_from(["*", "eks", "autoscaling", "ec2"]), st.floats(0, 1))
described = st.fixed_dictionaries(
    {},
    optional={
        "boot_seconds": st.none() | st.floats(0, 3600),
        "device_plugin_never_ready": st.booleans(),
        "driver_never_ready": st.booleans(),
        "autoscaler_dead": st.booleans(),
        "token_seconds": st.none() | st.floats(0, 3600),
        "deadline_speed": st.none() | st.floats(0.1, 1000),
        "lease_conflict_rate": st.floats(0, 1),
        "error_rates": rates,
        "throttle_rates": rates,
        "gpu_uses": st.lists(st.builds(GpuUse, utilization=st.integers(0, 100)).map(asdict), max_size=1),
    },
)


@given(declared=st.lists(stockouts, max_size=4), place=places)
def test_out_of_stock_where_any_stockout_covers_the_place(declared: list[Stockout], place: dict[str, str]) -> None:
    faults = Faults()
    for stockout in declared:
        faults.add(stockout)
    expected = any(
        all(getattr(stockout, field) in (None, value) for field, value in place.items()) for stockout in declared
    )
    assert faults.out_of_stock(**place) == expected


@given(stockout=stockouts, place=places)
def test_a_stockout_ends_when_removed(stockout: Stockout, place: dict[str, str]) -> None:
    faults = Faults()
    faults.add(stockout)
    faults.add(stockout)
    faults.remove(stockout)
    assert not faults.out_of_stock(**place)
    with pytest.raises(ValueError, match="not declared"):
        faults.remove(stockout)


@given(declared=st.lists(stockouts, max_size=3), changes=described)
def test_what_is_described_can_be_applied_elsewhere(declared: list[Stockout], changes: dict[str, Any]) -> None:
    faults, other = Faults(), Faults()
    for stockout in declared:
        faults.add(stockout)
    faults.apply(changes)
    other.apply(json.loads(json.dumps(faults.describe())))
    assert other.describe() == faults.describe()


@given(changes=described)
def test_clear_ends_everything(changes: dict[str, Any]) -> None:
    faults = Faults()
    faults.add(Stockout())
    faults.apply(changes)
    faults.clear()
    assert faults.describe() == Faults().describe()


@given(first=described, second=described)
def test_what_is_left_out_stays(first: dict[str, Any], second: dict[str, Any]) -> None:
    faults = Faults()
    faults.apply(first)
    before = faults.describe()
    faults.apply(second)
    untouched = before.keys() - second.keys()
    assert {name: faults.describe()[name] for name in untouched} == {name: before[name] for name in untouched}


@pytest.mark.parametrize(
    "changes",
    [
        {"boot_seconds": -1},
        {"boot_seconds": float("nan")},
        {"error_rates": {"eks": 1.1}},
        {"throttle_rates": {"*": -0.1}},
        {"token_seconds": -1},
        {"deadline_speed": 0},
        {"lease_conflict_rate": 1.1},
        {"stockouts": [{"market": "spotty"}]},
        {"stockouts": [{"region": "us-west-2"}]},
        {"stokouts": []},
        {"gpu_uses": [{"utilization": 101}]},
    ],
)
def test_a_wrong_change_changes_nothing(changes: dict[str, Any]) -> None:
    faults = Faults()
    with pytest.raises(ValueError):
        faults.apply({"device_plugin_never_ready": True, **changes})
    assert faults.describe() == Faults().describe()


def test_a_rate_of_one_service_overrules_the_rate_of_all() -> None:
    faults = Faults()
    faults.set_error_rate(1.0)
    faults.set_error_rate(0.0, service="sts")
    assert faults.draw_error("eks")
    assert not faults.draw_error("sts")
    faults.set_error_rate(0.0)
    assert not faults.draw_error("eks")


@given(rate=st.floats(0, 1), seed=st.integers())
def test_draws_follow_the_rate_and_repeat_with_the_seed(rate: float, seed: int) -> None:
    def draws() -> list[bool]:
        faults = Faults(seed=seed)
        faults.set_throttle_rate(rate)
        return [faults.draw_throttle("eks") for _ in range(200)]

    drawn = draws()
    assert drawn == draws()
    assert abs(sum(drawn) / len(drawn) - rate) < 0.25

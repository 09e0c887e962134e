"""Which places a pool prefers, and which of them its spec still wants."""

from __future__ import annotations

import pytest

from airflow_gpu_provider.pools import Candidate
from airflow_gpu_provider.pools.candidates import Market, Preferences

BOTH = Preferences(markets=("SPOT", "ON_DEMAND"), types=("g6.xlarge", "g5.xlarge"), zones=("b", "a"))


def name(zone: str, machine_type: str, market: Market) -> str:
    return f"{zone} {machine_type} {market}"


def test_the_rank_is_the_order_of_candidates_and_what_is_not_named_comes_last() -> None:
    candidates = BOTH.candidates(BOTH.zones, name)
    elsewhere = Candidate(group="c", zone="c", instance_type="g6.xlarge", market="SPOT")
    older = Candidate(group="old", zone="b", instance_type="p2.xlarge", market="SPOT")
    assert sorted(reversed(candidates), key=BOTH.rank) == list(candidates)
    assert sorted([older, elsewhere, candidates[0]], key=BOTH.rank) == [candidates[0], elsewhere, older]


@pytest.mark.parametrize("zones", [("b", "a"), ()])
def test_without_zones_all_are_wanted(zones: tuple[str, ...]) -> None:
    wanted = Preferences(markets=BOTH.markets, types=BOTH.types, zones=zones)
    elsewhere = Candidate(group="c", zone="c", instance_type="g6.xlarge", market="SPOT")
    assert wanted.include(elsewhere) == (not zones)
    assert not wanted.include(Candidate(group="old", zone="b", instance_type="p2.xlarge", market="SPOT"))

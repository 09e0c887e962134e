"""Which nights the chaos matrix runs: all that can be, a cover that is small, and the same ones for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.money.budget import check_max_cost
from tests.airflow.chaos.cell import MAX_COST, Cell, Strike
from tests.airflow.chaos.faults import FAULTS
from tests.airflow.chaos.moments import MOMENTS
from tests.airflow.chaos.schedule import (
    MOST_CELLS,
    NAMED_ON_GKE,
    NAMED_PAIRS,
    ON_EACH_LANDING,
    ON_GKE,
    ON_KARPENTER,
    cover,
    drawn,
    full_matrix,
    is_on_each_landing,
)
from tests.airflow.chaos.world import PRICE

ON_EKS = {name for name, fault in FAULTS.items() if not fault.of_karpenter}
SEEDS = st.integers(min_value=0, max_value=2**31)


def test_the_matrix_has_each_fault_at_each_moment_that_it_can_meet() -> None:
    pairs = pairs_on("eks", full_matrix())
    can_meet = {(when, what) for when in MOMENTS for what in ON_EKS if FAULTS[what].meets(MOMENTS[when])}
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == can_meet


def test_the_matrix_has_a_choice_of_them_on_gke_too() -> None:
    pairs = pairs_on("gke", full_matrix())
    assert pairs == list(ON_GKE)
    assert len(pairs) == len(set(pairs))
    assert all(FAULTS[what].meets(MOMENTS[when]) for when, what in pairs)
    assert set(NAMED_ON_GKE) < set(ON_GKE)
    assert [cell.number for cell in full_matrix()] == list(range(len(full_matrix())))


def test_the_matrix_has_a_node_that_karpenter_takes_at_each_moment_at_which_there_is_one() -> None:
    pairs = pairs_on("karpenter", full_matrix())
    assert pairs == list(ON_KARPENTER)
    assert len(pairs) == len(set(pairs))
    assert all(FAULTS[what].meets(MOMENTS[when]) for when, what in pairs)
    begins = [moment.name for moment in MOMENTS.values()].index("train-pod-created")
    without = ("train-waits-for-retry", "train-on-budget", "train-on-block", "gang-suspended")
    with_nodes = {name for name, moment in [*MOMENTS.items()][begins:] if name not in without}
    assert {when for when, what in pairs if what == "node-expires"} == with_nodes


def pairs_on(platform: str, cells: Sequence[Cell]) -> list[tuple[str, str]]:
    return [(strike.when, strike.what) for cell in cells if cell.platform == platform for strike in cell.strikes]


def test_every_fault_says_why_it_cannot_meet_a_moment() -> None:
    silent = [
        fault.name for fault in FAULTS.values() if not all(map(fault.can_meet, MOMENTS.values())) and not fault.why_not
    ]
    assert silent == []


@given(seed=SEEDS)
def test_the_cover_has_each_moment_each_fault_and_each_named_pair(seed: int) -> None:
    cells = cover(seed=seed)
    pairs = set(pairs_on("eks", cells))
    assert pairs_on("gke", cells) == list(NAMED_ON_GKE)
    assert pairs_on("karpenter", cells) == list(ON_KARPENTER)
    assert len(pairs) + len(NAMED_ON_GKE) == len(cells) - len(ON_KARPENTER) <= MOST_CELLS
    assert {when for when, _ in pairs} == MOMENTS.keys()
    assert {what for _, what in pairs} == ON_EKS
    assert pairs >= set(NAMED_PAIRS)
    assert all(FAULTS[what].meets(MOMENTS[when]) for when, what in pairs)


def test_the_docs_say_how_many_nights_the_cover_has() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    assert f"The cover has {len(cover())} nights today" in page


def test_a_night_whose_step_is_held_by_a_throttled_call_runs_alone() -> None:
    def is_local(when: str) -> bool:
        return Cell(number=0, seed=0, strikes=(Strike(when=when, what="worker-lost"),)).is_local

    assert not is_local("template-made")
    assert is_local("group-of-template")


@given(seed=SEEDS)
def test_the_nights_of_each_landing_are_of_the_cover(seed: int) -> None:
    assert sum(is_on_each_landing(cell) for cell in cover(seed=seed)) == len(ON_EACH_LANDING)


@given(seed=SEEDS, count=st.integers(min_value=1, max_value=20))
def test_a_seed_draws_the_same_nights_again(seed: int, count: int) -> None:
    nights = drawn(count, seed=seed)
    assert drawn(count, seed=seed) == nights
    for number, night in enumerate(nights):
        assert drawn(1, seed=night.seed)[0].strikes == night.strikes
        assert night.number == number


@given(seed=SEEDS)
def test_a_drawn_night_can_be(seed: int) -> None:
    (night,) = drawn(1, seed=seed)
    order = list(MOMENTS)
    moments = [order.index(strike.when) for strike in night.strikes]
    assert moments == sorted(set(moments))
    assert all(strike.fault.meets(strike.moment) for strike in night.strikes)
    assert len({strike.moment.dag_id for strike in night.strikes} - {"chaos_deferred"}) <= 1


def test_a_night_whose_money_ends_may_begin() -> None:
    of_cell = {"instance_types": ["g6.xlarge"], "price_per_hour": PRICE, "max_nodes": 1}
    check_max_cost(EksGpuPool(name="c1", cluster_name="k8s", region="us-west-2", **of_cell), MAX_COST)

"""Which cells are run: the whole matrix, a cover of it, or nights drawn by a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.airflow.chaos.cell import Cell, Strike
from tests.airflow.chaos.clouds import Platform
from tests.airflow.chaos.faults import FAULTS
from tests.airflow.chaos.moments import MOMENTS

NAMED_PAIRS: tuple[tuple[str, str], ...] = (
    # What each layer of the design is there for, or what facts about Airflow made of it.
    ("ensure-after-create", "worker-killed"),
    ("placement-made", "worker-lost"),
    ("template-made", "worker-killed"),
    ("template-made", "worker-lost"),
    ("group-of-template", "worker-lost"),
    ("prefetch-begun", "airflow-killed"),
    ("prefetch-begun", "run-deleted"),
    ("ensure-deferred", "triggerer-killed"),
    ("ensure-deferred", "dagrun-timeout"),
    ("ensure-deferred", "run-deleted"),
    ("train-deferred", "triggerer-stalled"),
    ("train-deferred", "airflow-killed"),
    ("train-deferred", "api-server-down"),
    ("train-deferred", "spot-lost"),
    ("train-in-worker", "scheduler-killed"),
    ("train-on-budget", "worker-killed"),
    ("train-on-budget", "spot-lost"),
    ("train-on-budget", "price-rises"),
    ("train-on-block", "airflow-killed"),
    ("train-on-block", "airflow-dead"),
    ("gang-suspended", "job-controller-away"),
    ("gang-half-up", "one-node-lost"),
    ("gang-running", "task-cleared"),
    ("gang-running", "dagrun-timeout"),
    ("gang-in-worker", "worker-killed"),
    ("rank-lost", "triggerer-killed"),
    ("scale-down-begins", "worker-killed"),
    ("scale-down-begins", "two-runs"),
    ("scale-down-begins", "cloud-errors"),
    ("scale-down-begins", "kubernetes-403"),
)
"""Pairs that are in every cover, but for those that tests/airflow, tests/sandbox or tests/dry_nights hold.

The last of these has a run that is marked failed while its training waits for a worker or for its next try:
test_marks.py, test_run_marked_failed_while_its_training_waits.
"""

ON_GKE: tuple[tuple[str, str], ...] = (
    # What meets the other cloud's side of the package: its calls, its errors, its machines, its tokens, its clock.
    ("ensure-before-create", "worker-killed"),
    ("ensure-before-create", "cloud-errors"),
    ("ensure-before-create", "cloud-throttles"),
    ("ensure-before-create", "stockout"),
    ("ensure-after-create", "worker-killed"),
    ("ensure-after-create", "cloud-errors"),
    ("ensure-after-create", "stockout"),
    ("ensure-deferred", "cloud-errors"),
    ("ensure-deferred", "cloud-throttles"),
    ("ensure-deferred", "airflow-killed"),
    ("ensure-deferred", "airflow-dead"),
    ("ensure-deferred", "spot-lost"),
    ("ensure-deferred", "token-expired"),
    ("ensure-deferred", "driver-never-ready"),
    ("ensure-deferred", "run-deleted"),
    ("train-deferred", "airflow-killed"),
    ("train-deferred", "airflow-dead"),
    ("train-deferred", "spot-lost"),
    ("train-deferred", "token-expired"),
    ("train-deferred", "dagrun-timeout"),
    ("scale-down-begins", "worker-killed"),
    ("scale-down-begins", "cloud-errors"),
    ("scale-down-begins", "cloud-throttles"),
    ("scale-down-begins", "two-runs"),
    ("scale-down-goes", "airflow-dead"),
)
"""The matrix's cells on Google Cloud; the cluster's side and Airflow's are the same as on AWS."""

NAMED_ON_GKE: tuple[tuple[str, str], ...] = (
    ("ensure-after-create", "stockout"),
    ("train-deferred", "airflow-dead"),
    ("scale-down-begins", "cloud-errors"),
)
"""Those that are in every cover."""

ON_KARPENTER: tuple[tuple[str, str], ...] = (
    # A node that is taken with what runs on it, at each moment at which there can be one.
    ("train-pod-created", "node-expires"),
    ("train-deferred", "node-expires"),
    ("train-in-worker", "node-expires"),
    ("train-ended", "node-expires"),
    ("gang-half-up", "node-expires"),
    ("gang-running", "node-expires"),
    ("gang-in-worker", "node-expires"),
    ("rank-lost", "node-expires"),
    ("scale-down-begins", "node-expires"),
    ("scale-down-goes", "node-expires"),
    # What brings zero where nobody but Karpenter removes a machine: the run itself, its triggers, the janitor.
    ("train-deferred", "airflow-killed"),
    ("train-deferred", "dagrun-timeout"),
    ("train-deferred", "run-deleted"),
    ("gang-running", "triggerer-killed"),
    ("scale-down-begins", "worker-killed"),
    ("scale-down-begins", "two-runs"),
)
"""The matrix's cells with Karpenter, in a cluster of EKS; all of them are in every cover."""

ON_EACH_LANDING: tuple[tuple[Platform, str, str], ...] = (
    ("eks", "ensure-after-create", "worker-killed"),  # groups are created at size 0, and the next try goes on with them
    ("eks", "scale-down-begins", "worker-killed"),  # scale-down is a teardown, and is retried
    ("eks", "ensure-deferred", "dagrun-timeout"),  # triggers release where Airflow skips teardowns
    ("eks", "ensure-deferred", "run-deleted"),  # the janitor releases what no run needs
    ("gke", "train-deferred", "airflow-dead"),  # the cloud's own end of the machines
    ("eks", "gang-running", "task-cleared"),  # two nodes, which come and go together
)
"""Of every cover: one night for each layer of zero, and a gang's. The others are for `make nightly`."""

MOST_CELLS = 46
"""The cover's bound, but for the nights with Karpenter."""

_DAGS_OF_EKS = frozenset({"chaos_plugin", "chaos_no_gpus", "chaos_budget", "chaos_efa", "chaos_block"})
"""GKE's own device plugin leaves the installing task so little to do that nobody sees it run; the rest is AWS'."""

_SECOND_STRIKE = 0.3  # the share of drawn nights that are struck twice
_ON_GKE = 0.2  # the share of drawn nights there
_EVERYBODY = 0.25  # the share of drawn strikes that hit everybody: those nights run alone, and take longest


def meetings() -> Iterator[Strike]:
    """Every cell of the matrix that can be on EKS: each fault at each moment at which it can meet a night."""
    for when, moment in MOMENTS.items():
        for what, fault in FAULTS.items():
            if fault.meets(moment) and not fault.of_karpenter:
                yield Strike(when=when, what=what)


def full_matrix(*, seed: int = 0) -> list[Cell]:
    """One cell for each fault at each moment on EKS, those of GKE, and those with Karpenter."""
    return _numbered(list(meetings()), _strikes(ON_GKE), seed)


def of_gangs(*, seed: int = 0) -> list[Cell]:
    """The matrix's nights of trainings on two nodes, with the numbers that they have there."""
    return [cell for cell in full_matrix(seed=seed) if cell.strikes[0].moment.of_gang]


def cover(*, seed: int = 0) -> list[Cell]:
    """Few cells with each moment, each fault and each named pair in them."""
    chosen = _strikes(NAMED_PAIRS)
    left = list(meetings())
    random.Random(seed).shuffle(left)
    while missing := _missing(chosen):
        best = max(left, key=lambda strike: ((strike.when in missing) + (strike.what in missing), _is_quick(strike)))
        chosen.append(best)
        left.remove(best)
    return _numbered(chosen, _strikes(NAMED_ON_GKE), seed)


def is_on_each_landing(cell: Cell) -> bool:
    return any((cell.platform, each.when, each.what) in ON_EACH_LANDING for each in cell.strikes)


def drawn(count: int, *, seed: int = 0) -> list[Cell]:
    """So many nights, each with one or two strikes; the same ones for the same seed."""
    return [_draw(number, seed + number) for number in range(count)]


def _draw(number: int, seed: int) -> Cell:
    dice = random.Random(seed)
    platform: Platform = "gke" if dice.random() < _ON_GKE else "eks"
    can_be = [each for each in meetings() if platform == "eks" or each.moment.dag_id not in _DAGS_OF_EKS]
    strikes = [_draw_strike(dice, can_be)]
    if dice.random() < _SECOND_STRIKE:
        later = [strike for strike in can_be if _may_follow(strikes[0], strike)]
        strikes += [_draw_strike(dice, later)] if later else []
    return Cell(number=number, seed=seed, strikes=tuple(strikes), platform=platform)


def _draw_strike(dice: random.Random, strikes: Sequence[Strike]) -> Strike:
    hits = "all" if dice.random() < _EVERYBODY else "run"
    return dice.choice([strike for strike in strikes if strike.fault.hits == hits] or list(strikes))


def _may_follow(first: Strike, second: Strike) -> bool:
    """A later moment of the same DAG's nights, and another fault.

    Where a second run wants nodes, the first one's scale-down may well find none to remove.
    """
    order = list(MOMENTS)
    dags = {first.moment.dag_id, second.moment.dag_id}
    return (
        order.index(second.when) > order.index(first.when)
        and (first.what, second.when) != ("two-runs", "scale-down-goes")
        and second.what != first.what
        and first.fault.promise.ends == "green"
        and (len(dags) == 1 or (dags == {"chaos_deferred", "chaos_plugin"} and second.when != "train-in-worker"))
    )


def _missing(chosen: Sequence[Strike]) -> set[str]:
    faults = {name for name, fault in FAULTS.items() if not fault.of_karpenter}
    return (MOMENTS.keys() | faults) - {s.when for s in chosen} - {s.what for s in chosen}


def _is_quick(strike: Strike) -> bool:
    return strike.fault.hits == "run"


def _strikes(pairs: Sequence[tuple[str, str]]) -> list[Strike]:
    return [Strike(when=when, what=what) for when, what in pairs]


def _numbered(on_eks: Sequence[Strike], on_gke: Sequence[Strike], seed: int) -> list[Cell]:
    where: list[tuple[Platform, Strike]] = [
        *(("eks", each) for each in on_eks),
        *(("gke", each) for each in on_gke),
        *(("karpenter", each) for each in _strikes(ON_KARPENTER)),
    ]
    return [
        Cell(number=number, seed=seed, strikes=(strike,), platform=platform)
        for number, (platform, strike) in enumerate(where)
    ]

"""Whether GPUs hang, by their use and draw: on drawn trainings and hangs, sampled as nvidia-smi would show them.

A training is a series of stretches, each with a use and a draw of its own; the sensor shows the average draw of the
last second. Idle and full draws, and those of a spinning kernel, are orders of size of real boards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_gpu_provider.training.wait.gpu_use import LEAST_SAMPLES, Reading, Sample, Spinning

EVERY = 60.0
WINDOW = 20 * 60.0
HOURS = 4 * 3600
LAG = 1.0
"""Seconds over which the sensor averages."""


@dataclass(frozen=True)
class Board:
    """Watts: idle with a context, spinning in a collective, and the limit."""

    idle: float
    spin: float
    limit: float


BOARDS = {
    "T4": Board(27, 31, 70),
    "L4": Board(28, 32, 72),
    "V100": Board(42, 68, 300),
    "A10G": Board(55, 75, 300),
    "A100": Board(62, 95, 400),
    "H100": Board(115, 190, 700),
}
Stretch = tuple[float, float, float]
"""Seconds, percent, watts."""


def work(board: Board, random: Random) -> float:
    return board.limit * random.uniform(0.6, 1.0)


def steady(board: Board, random: Random) -> Iterator[Stretch]:
    while True:
        yield random.uniform(5, 90), random.uniform(97, 100), work(board, random)


def with_stalls(board: Board, random: Random) -> Iterator[Stretch]:
    """A loader that is too slow, for seconds or for half an hour."""
    longest = random.choice([3, 60, 1800])
    while True:
        yield random.uniform(0.5, 120), random.uniform(80, 100), work(board, random)
        yield random.uniform(0.2, longest), 0, board.idle * random.uniform(1, 1.1)


def with_checkpoints(board: Board, random: Random) -> Iterator[Stretch]:
    """Minutes of writing, after each of which all ranks spin until the slowest has written."""
    while True:
        yield random.uniform(300, 1500), random.uniform(97, 100), work(board, random)
        yield random.uniform(10, 400), 0, board.idle
        yield random.uniform(1, 240), 100, board.spin


def memory_bound(board: Board, random: Random) -> Iterator[Stretch]:
    """Inference: busy throughout at less than half of the limit, and idle between batches of requests."""
    share = random.uniform(0.45, 0.6)
    yield random.uniform(120, 600), 0, board.idle
    while True:
        draw = max(board.limit * share, board.idle * 1.45)
        yield random.uniform(60, 3000), random.uniform(96, 100), draw * random.uniform(1, 1.05)
        yield random.uniform(0, 90), 0, board.idle * random.uniform(1, 1.1)


def warming_up(board: Board, random: Random) -> Iterator[Stretch]:
    """Weights are read, kernels compiled and tried, and ranks wait in their first collective; then it computes."""
    yield random.uniform(30, 1200), 0, board.idle
    yield random.uniform(10, 900), 100, board.spin
    yield from steady(board, random)


def with_evaluation(board: Board, random: Random) -> Iterator[Stretch]:
    """Rank 0 evaluates alone, for up to an hour: `rank_1_of_evaluation` spins meanwhile."""
    while True:
        yield random.uniform(600, 1800), 99, work(board, random)
        yield 3000, random.uniform(60, 100), work(board, random) * 0.8


def rank_1_of_evaluation(board: Board, random: Random) -> Iterator[Stretch]:
    while True:
        yield random.uniform(600, 1800), 99, work(board, random)
        yield 3000, 100, board.spin


NORMAL: dict[str, Sequence[Callable[[Board, Random], Iterator[Stretch]]]] = {
    "steady": [steady],
    "loader stalls": [with_stalls, with_stalls],
    "checkpoints": [with_checkpoints, with_checkpoints],
    "memory-bound inference": [memory_bound],
    "warm-up": [warming_up, warming_up, warming_up],
    "evaluation on one rank": [with_evaluation, rank_1_of_evaluation],
}


class Series:
    """One GPU's stretches, as samples of it."""

    def __init__(self, stretches: Iterator[Stretch], board: Board) -> None:
        self._stretches = stretches
        self._limit = board.limit
        self._spans: list[tuple[float, float, float]] = []
        self._until = 0.0

    def cut(self, at: float, then: Stretch) -> None:
        """From this moment on it does nothing else."""
        self.at(at)
        self._spans = [span for span in self._spans if span[0] <= at]
        self._stretches, self._until = iter([then]), at

    def at(self, moment: float) -> tuple[float, float]:
        """Its use and draw at a moment."""
        while self._until <= moment:
            seconds, percent, watts = next(self._stretches)
            self._spans.append((self._until, percent, watts))
            self._until += seconds
        _, percent, watts = next(span for span in reversed(self._spans) if span[0] <= moment)
        return percent, watts

    def reading(self, moment: float) -> Reading:
        percent, _ = self.at(moment)
        watts = [self.at(max(0.0, moment - back / 10))[1] for back in range(10)]
        return Reading(percent=percent, memory_mib=1.0, power_w=sum(watts) / 10, limit_w=self._limit)


def found_at(ranks: Sequence[Sequence[Series]], *, begins: float, until: float) -> float | None:
    """Return when the rule ends it, by samples of one rank after another; None if it does not."""
    spinning, turn, at = Spinning(EVERY), 0, begins
    while at < until:
        for nth in range(spinning.pods_to_ask(len(ranks), WINDOW)):
            rank, moment = turn % len(ranks), at + nth
            turn += 1
            spinning.take(rank, Sample(tuple(gpu.reading(moment) for gpu in ranks[rank])), at)
        if spinning.lasts(WINDOW, range(len(ranks))):
            return at
        at += EVERY
    return None


def drawn(board: Board, kind: str, gpus: int, seed: int) -> list[list[Series]]:
    return [
        [Series(stretches(board, Random(f"{seed} {rank} {gpu}")), board) for gpu in range(gpus)]
        for rank, stretches in enumerate(NORMAL[kind])
    ]


ANY = {"board": st.sampled_from(sorted(BOARDS)), "gpus": st.integers(1, 2), "seed": st.integers(0, 2**32)}


@settings(max_examples=200, deadline=None)
@given(kind=st.sampled_from(sorted(NORMAL)), begins=st.floats(1, EVERY), **ANY)
def test_no_normal_training_is_ended(board: str, kind: str, gpus: int, begins: float, seed: int) -> None:
    ranks = drawn(BOARDS[board], kind, gpus, seed)
    assert found_at(ranks, begins=begins, until=HOURS) is None


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(["steady", "checkpoints", "warm-up"]),
    hung=st.floats(1800, 7200),
    begins=st.floats(1, EVERY),
    nodes=st.sampled_from([1, 2, 8]),
    **ANY,
)
def test_each_hang_is_found_within_the_window(
    board: str, kind: str, hung: float, begins: float, nodes: int, gpus: int, seed: int
) -> None:
    """On small boards, whose spinning draw is above a third of the limit, by the idle draw before the work began."""
    of, random = BOARDS[board], Random(seed)

    def loads_then_computes() -> Iterator[Stretch]:
        yield 240 * nodes, 0, of.idle * random.uniform(0.97, 1.03)
        yield from NORMAL[kind][0](of, random)

    hung += 240 * nodes  # ranks are sampled in turn
    ranks = [[Series(loads_then_computes(), of) for _ in range(gpus)] for _ in range(nodes)]
    for series in (gpu for rank in ranks for gpu in rank):
        series.cut(hung, (9e9, 100, of.spin * random.uniform(0.97, 1.03)))
    found = found_at(ranks, begins=begins, until=hung + 2 * WINDOW)
    assert found is not None
    assert found <= hung + WINDOW + LAG
    if kind == "steady":
        assert found >= hung


def busy(power_w: float | None, limit_w: float | None = 400, percent: float | None = 100) -> Sample:
    return Sample((Reading(percent=percent, memory_mib=1, power_w=power_w, limit_w=limit_w),))


def test_never_by_one_reading_however_short_the_window_is() -> None:
    spinning = Spinning(EVERY)
    for nth in range(1, LEAST_SAMPLES + 1):
        assert not spinning.lasts(1, [0])
        spinning.take(0, busy(60), nth * EVERY)
    assert spinning.lasts(1, [0])
    assert not spinning.lasts(None, [0])
    assert not spinning.lasts(1, [0, 1]), "of the other rank nothing is known"


@pytest.mark.parametrize("sample", [busy(300), busy(60, percent=94), busy(None), None])
def test_one_sample_that_says_otherwise_begins_it_again(sample: Sample | None) -> None:
    spinning = Spinning(EVERY)
    for nth in range(30):
        spinning.take(0, sample if nth == 15 else busy(60), nth * EVERY)
    assert spinning.seconds == 14 * EVERY
    assert spinning.pods_to_ask(64, WINDOW) == 10
    spinning.take(0, sample, 1800)
    assert spinning.pods_to_ask(64, WINDOW) == 1


@pytest.mark.parametrize(
    ("sample", "is_unknown"),
    [
        (busy(None), True),
        (busy(60, percent=None), True),
        (busy(60, limit_w=None), True),
        (busy(60), False),
        (None, False),
    ],
)
def test_gpus_that_do_not_report_it_turn_the_rule_off(sample: Sample | None, is_unknown: bool) -> None:
    spinning = Spinning(EVERY)
    spinning.take(0, sample, 0)
    assert spinning.is_unknown == is_unknown


def test_a_gpu_without_a_limit_is_judged_by_its_idle_draw() -> None:
    spinning = Spinning(EVERY)
    for nth in range(3):
        spinning.take(0, busy(50, None, percent=0), nth * EVERY)
    spinning.take(0, busy(64, None), 3 * EVERY)
    assert spinning.seconds == EVERY
    spinning.take(0, busy(66, None), 4 * EVERY)
    assert spinning.seconds == 0


def test_what_an_error_says_of_it() -> None:
    spinning = Spinning(EVERY)
    for nth in range(20):
        spinning.take(nth % 2, busy(60 + nth % 2 * 10), nth * EVERY)
    assert spinning.in_words == "busy for 20 min 0 s at a draw near that of idle ones (60 to 70 W of 400 W each)"
    assert spinning.details == [
        {"rank": 0, "gpu": 0, "percent": 100, "power_w": 60, "power_limit_w": 400},
        {"rank": 1, "gpu": 0, "percent": 100, "power_w": 70, "power_limit_w": 400},
    ]

"""Which rank's error is the gang's, in whichever order their ends are heard of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.errors import EndUnknown, GpuError, PodFailed, PodOutOfMemory, PodPreempted
from airflow_gpu_provider.training.wait.end import end_of
from airflow_gpu_provider.training.wait.object_wait import RankEnd, first_failure, of_rank
from tests.unit.training.test_pod_end import disrupted, ended, pod


def failed(code: int, at: int = 60) -> RankEnd:
    state = pod(ended(code, at=at), phase="Failed")
    end = end_of(state)
    assert end is not None
    assert end.error is not None
    return RankEnd(error=end.error, pod=state)


def taken(at: int, *, finished: int | None = None) -> RankEnd:
    state = pod(ended(143, at=finished or at), phase="Failed", conditions=(disrupted(at=at),))
    return RankEnd(error=PodPreempted("It was preempted."), pod=state)


def test_who_ended_first_counts() -> None:
    assert first_failure({0: failed(1, at=62), 1: failed(3, at=60), 2: failed(1, at=61)}) == 1


def test_a_rank_that_was_told_to_go_comes_before_what_that_did_to_the_others() -> None:
    assert first_failure({0: failed(1, at=61), 1: taken(60, finished=90)}) == 1


def test_in_one_second_the_loss_of_a_pod_is_the_cause_and_a_kill_is_not() -> None:
    assert first_failure({0: failed(1), 1: failed(143), 2: taken(60)}) == 2
    assert first_failure({0: failed(143), 1: failed(137), 2: failed(1)}) == 2
    memory = RankEnd(error=PodOutOfMemory("It was killed."), pod=failed(137).pod)
    assert first_failure({0: failed(1), 1: memory}) == 1


def test_in_one_second_a_failure_is_the_cause_of_what_its_controller_deletes() -> None:
    state = pod(ended(143, at=60), phase="Failed", deleted_at=60)
    deleted = RankEnd(error=PodPreempted("It was deleted."), pod=state)
    assert first_failure({0: deleted, 1: failed(3)}) == 1
    assert first_failure({0: failed(143), 1: deleted}) == 1


def test_an_end_that_nobody_saw_explains_nothing() -> None:
    unseen = RankEnd(error=EndUnknown("Nobody saw it."), pod=failed(137).pod)
    assert first_failure({0: unseen, 1: failed(143), 2: failed(1, at=61)}) == 1


def test_an_end_without_a_time_is_the_last() -> None:
    assert first_failure({0: RankEnd(error=PodFailed("No pod.")), 1: failed(1)}) == 1


@given(
    st.permutations(range(5)), st.lists(st.tuples(st.sampled_from([1, 3, 137, 143]), st.integers(50, 53)), min_size=5)
)
def test_order_of_news_makes_no_difference(order: list[int], ends: list[tuple[int, int]]) -> None:
    by_rank = {rank: failed(code, at=at) for rank, (code, at) in enumerate(ends[:5])}
    first = first_failure(by_rank)
    assert first_failure({rank: by_rank[rank] for rank in order}) == first
    assert ends[first][1] == min(at for _, at in ends[:5])


def test_error_names_its_rank_and_keeps_its_type() -> None:
    error = of_rank(PodOutOfMemory("Pod x was killed.", "Raise it.", pod="x"), 2)
    assert type(error) is PodOutOfMemory
    assert (str(error), error.details) == ("Rank 2: Pod x was killed. Raise it.", {"pod": "x", "rank": 2})
    assert of_rank(error, 2) is error
    assert isinstance(error, GpuError)

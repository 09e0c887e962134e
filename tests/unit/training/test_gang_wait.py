"""GangWait, step by step, from plain data: admission, the ranks' ends in any order, deadlines, silence."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.cluster.model.events import PodEvent
from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.errors import EndUnknown, GangHung, OutOfStock, PodDeadline, PodFailed, PodPreempted
from airflow_gpu_provider.scaling.wait.records import Progress
from airflow_gpu_provider.training.place.kinds import WorkloadEnd
from airflow_gpu_provider.training.wait.attempt_wait import Silence
from airflow_gpu_provider.training.wait.gang_wait import GangSnapshot, GangWait, ranks_in_words
from airflow_gpu_provider.training.wait.object_wait import ENDS_REPORTED_WITHIN, WorkloadState
from airflow_gpu_provider.training.wait.pod_wait import PodSnapshot
from tests.unit.training.test_pod_end import START, disrupted, ended, pod, running, waiting

WAIT = GangWait(
    namespace="ml",
    name="train",
    uid="j1",
    nodes=3,
    base_container="base",
    started=START,
    schedule_seconds=600,
    start_seconds=300,
    deadline=START + timedelta(hours=2),
)
JOB = WorkloadState(
    kind="Job", name="train", uid="j1", created_at=START, is_suspended=False, admitted_at=START, is_deleting=False
)
SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": START.isoformat()}
RUNS = pod(running(), conditions=(SCHEDULED,))
WELL = pod(ended(0), phase="Succeeded", conditions=(SCHEDULED,))
TAKEN = pod(ended(143, at=60), phase="Failed", conditions=(SCHEDULED, disrupted(at=50)))


def at(seconds: float) -> Any:
    return START + timedelta(seconds=seconds)


def failed(code: int = 3, when: float = 60) -> PodState:
    return pod(ended(code, at=when), phase="Failed", conditions=(SCHEDULED,))


def snapshot(*pods: PodState | None, job: WorkloadState = JOB, **changes: Any) -> GangSnapshot:
    ranks = {rank: PodSnapshot(pod=one) for rank, one in enumerate(pods) if one is not None}
    return GangSnapshot(object=job, pods=ranks, **changes)


def step(*pods: PodState | None, now: float = 100, wait: GangWait = WAIT, **changes: Any) -> Progress:
    return wait.step(snapshot(*pods, **changes), at(now))


def waits_for_a_node(number: int, *events: PodEvent) -> PodSnapshot:
    said = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity."
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    return PodSnapshot(pod=pod(phase="Pending", conditions=(unschedulable,), spec={"nodeName": None}), events=events)


def of_karpenter(reason: str, message: str, seconds: float) -> PodEvent:
    about = {"uid": message, "pod": "train-0", "pod_uid": "u1", "by": "karpenter"}
    return PodEvent(**about, type="Normal", reason=reason, message=message, at=at(seconds))


def test_ranks_without_a_node_hear_who_brings_nodes_after_the_scheduler() -> None:
    failed_first = of_karpenter("FailedScheduling", "Failed to schedule pod, all available types exceed limits", 10)
    ranks = {
        number: waits_for_a_node(
            number, failed_first, of_karpenter("Nominated", f"Pod should schedule on: nodeclaim/gpu-{number}", 20)
        )
        for number in (0, 1)
    }
    ranks[2] = waits_for_a_node(2, failed_first)
    (line,) = WAIT.step(GangSnapshot(object=JOB, pods=ranks), at(30)).lines
    assert "ranks 0-1 wait for their node: 0/2 nodes are available: 1 Insufficient nvidia.com/gpu" in line
    assert "node affinity; Karpenter has asked for a machine; rank 2" in line
    assert line.endswith("node affinity; Karpenter brings no node: all available types exceed limits")


def test_what_would_bring_more_machines_is_said_in_the_pool_s_own_words() -> None:
    suspended = replace(JOB, is_suspended=True, admitted_at=None)
    error = step(job=suspended, now=600, to_widen="Add nodes to the pool").error
    assert error is not None
    assert error.fix == "Add nodes to the pool, or raise schedule_timeout_seconds."


def test_done_when_all_ranks_have_ended_well() -> None:
    assert not step(WELL, WELL, RUNS).done
    assert step(WELL, WELL, WELL).done
    assert step(WELL, WELL, WELL, job=replace(JOB, is_deleting=True)).done


def test_rank_whose_end_nobody_saw_has_ended_as_the_job_says() -> None:
    counted = replace(JOB, completed=frozenset({0, 1, 2}))
    assert step(job=counted).done
    assert step(WELL, None, WELL, job=counted).done
    unseen = {0: PodSnapshot(pod=WELL), 1: PodSnapshot(pod=WELL), 2: PodSnapshot(pod=RUNS, gone=True)}
    assert WAIT.step(GangSnapshot(object=counted, pods=unseen), at(100)).done
    assert type(WAIT.step(GangSnapshot(object=JOB, pods=unseen), at(100)).error) is PodPreempted
    deleted = {**unseen, 2: PodSnapshot(pod=pod(running(), deleted_at=90, conditions=(SCHEDULED,)), gone=True)}
    assert type(WAIT.step(GangSnapshot(object=counted, pods=deleted), at(100)).error) is PodPreempted


def test_rank_that_was_deleted_and_answered_with_exit_0_has_not_ended_well() -> None:
    cut = pod(ended(0, at=60), phase="Succeeded", deleted_at=61, grace=0, finalizers=True, conditions=(SCHEDULED,))
    error = step(WELL, cut, WELL, job=replace(JOB, completed=frozenset({0, 1, 2}))).error
    assert type(error) is PodPreempted
    assert error.details["rank"] == 1


def test_gang_that_kueue_has_evicted_is_preempted_in_its_words() -> None:
    queued = replace(WAIT, queue="team-a")
    going = pod(running(), deleted_at=90, conditions=(SCHEDULED,))
    suspended = replace(JOB, is_suspended=True, admitted_at=None)
    error = step(going, going, going, wait=queued, job=suspended, evicted="Preempted: for a higher priority").error
    assert type(error) is PodPreempted
    assert "was evicted from queue team-a: Preempted: for a higher priority" in str(error)
    assert step(WELL, WELL, WELL, wait=queued, evicted="Preempted: too late").done


def test_job_that_failed_without_a_pod_to_show() -> None:
    assert (
        type(
            step(
                job=replace(
                    JOB, end=WorkloadEnd(succeeded=False, reason="DeadlineExceeded", message="Job was active longer")
                )
            ).error
        )
        is PodDeadline
    )
    assert (
        type(
            step(
                job=replace(
                    JOB, end=WorkloadEnd(succeeded=False, reason="BackoffLimitExceeded", message="Job has reached")
                )
            ).error
        )
        is PodFailed
    )


def test_first_failure_ends_it_once_no_earlier_one_can_come() -> None:
    early = step(RUNS, failed(), RUNS, now=60 + ENDS_REPORTED_WITHIN.total_seconds() - 0.1)
    assert (early.done, early.error) == (False, None)
    late = step(RUNS, failed(), RUNS, now=60 + ENDS_REPORTED_WITHIN.total_seconds())
    assert type(late.error) is PodFailed
    assert late.error.details["rank"] == 1
    assert str(late.error).startswith("Rank 1: ")


@given(st.permutations([failed(3, 60), failed(1, 61), RUNS]))
def test_order_of_ranks_makes_no_difference(pods: list[PodState]) -> None:
    error = step(*pods).error
    assert error is not None
    assert error.details["exit_code"] == 3
    assert pods[error.details["rank"]].base.exit_code == 3  # type: ignore[union-attr]


def test_rank_that_was_taken_away_is_the_cause_of_what_the_others_died_of() -> None:
    error = step(failed(1, 55), TAKEN, RUNS).error
    assert type(error) is PodPreempted
    assert error.details["rank"] == 1


def test_rank_whose_pod_was_deleted_while_nobody_watched_is_lost() -> None:
    """A triggerer dies, a rank's pod is evicted and goes, and the next triggerer sees the others wait for it."""
    counted = replace(JOB, failed_ranks=frozenset({1}))
    error = step(RUNS, None, RUNS, job=counted).error
    assert type(error) is PodPreempted
    assert error.details["rank"] == 1
    assert error.what == "Rank 1: Its pod of Job train was deleted before it had finished."
    assert type(step(RUNS, failed(), RUNS, job=counted).error) is PodFailed, "what is still there says more"
    assert step(None, None, None, job=replace(counted, is_suspended=True)).error is None


def test_pods_of_a_gang_that_is_suspended_again_are_no_loss() -> None:
    going = pod(running(), deleted_at=90, conditions=(SCHEDULED,))
    suspended = replace(JOB, is_suspended=True)
    assert step(going, going, None, job=suspended).error is None
    gone = {0: PodSnapshot(pod=going, gone=True), 1: PodSnapshot(pod=going, gone=True)}
    assert WAIT.step(GangSnapshot(object=suspended, pods=gone), at(100)).error is None
    assert type(WAIT.step(GangSnapshot(object=JOB, pods=gone), at(100)).error) is PodPreempted
    again = replace(JOB, admitted_at=at(95))
    assert WAIT.step(GangSnapshot(object=again, pods=gone), at(100)).error is None


def test_job_that_somebody_deletes_is_a_preemption() -> None:
    assert type(step(gone=True).error) is PodPreempted
    error = step(gone=True, is_unseen=True).error
    assert type(error) is EndUnknown
    assert "Job train is gone, and its end was not seen" in error.what
    assert type(step(gone=True, is_unseen=True, job=replace(JOB, is_deleting=True)).error) is PodPreempted
    assert type(step(RUNS, RUNS, RUNS, job=replace(JOB, is_deleting=True)).error) is PodPreempted


def test_time_in_the_queue_does_not_count_and_time_without_nodes_does() -> None:
    suspended = replace(JOB, is_suspended=True)
    assert step(job=suspended, now=599).error is None
    assert type(step(job=suspended, now=600).error) is PodDeadline
    assert step(job=suspended, now=6000, is_queued=True).error is None
    assert step(job=suspended, now=700, queued_at=at(200)).error is None
    assert type(step(job=suspended, now=800, queued_at=at(200)).error) is PodDeadline
    why = OutOfStock("No machine.", tried=["a"])
    error = step(job=suspended, now=600, no_capacity=why).error
    assert type(error) is OutOfStock
    assert error.details["tried"] == ["a"]


def test_rank_that_does_not_start_in_time_is_named() -> None:
    slow = pod(waiting("ContainerCreating"), phase="Pending", conditions=(SCHEDULED,))
    error = step(RUNS, slow, RUNS, now=400).error
    assert type(error) is PodDeadline
    assert error.details["rank"] == 1


def test_deadline_is_the_gangs() -> None:
    assert type(step(RUNS, RUNS, RUNS, now=7200).error) is PodDeadline


def test_deadline_of_a_gang_that_waits_says_for_what() -> None:
    queued = "LocalQueue no-such-queue doesn't exist"
    error = step(job=replace(JOB, is_suspended=True), queued=queued, is_queued=True, now=7200).error
    assert type(error) is PodDeadline
    assert error.what.endswith(f"after it was created (the gang of 3 waits to be admitted: {queued}).")


@pytest.mark.parametrize(("lasts", "hangs"), [(59, False), (60, True)])
def test_silence_of_all_ranks(lasts: float, hangs: bool) -> None:
    silence = Silence(lasts=timedelta(seconds=lasts), last_lines={0: "step 7", 2: "loading"})
    wait = replace(WAIT, hang_seconds=60)
    error = step(RUNS, RUNS, RUNS, wait=wait, silence=silence).error
    assert (type(error) is GangHung) is hangs
    assert step(RUNS, RUNS, RUNS, silence=silence).error is None
    assert step(RUNS, RUNS, None, wait=wait, silence=silence).error is None
    if error is not None:
        assert error.details["last_lines"] == {"0": "step 7", "2": "loading"}


def test_silence_is_counted_from_the_last_ranks_start() -> None:
    """A gang may have waited for hours to be admitted, in which nobody printed anything."""
    wait, silence = replace(WAIT, hang_seconds=60), Silence(lasts=timedelta(hours=3), last_lines={0: "begins"})
    late = pod(running(at=90), conditions=(SCHEDULED,))
    assert step(RUNS, late, RUNS, wait=wait, silence=silence, now=149).error is None
    assert wait.next_deadline(snapshot(RUNS, late, RUNS, silence=silence), at(149)) == at(150)
    error = step(RUNS, late, RUNS, wait=wait, silence=silence, now=150).error
    assert type(error) is GangHung
    assert "for 1 min" in error.what


def test_one_line_for_the_whole_gang() -> None:
    slow = pod(waiting("ContainerCreating"), phase="Pending", conditions=(SCHEDULED,))
    assert step(RUNS, RUNS, slow, now=20).lines == ("2 of 3 ranks run; rank 2 starts on node n1",)
    assert step(RUNS, RUNS, None, now=20).lines == ("2 of 3 ranks run; rank 2 has no pod yet",)
    assert step(RUNS, RUNS, WELL, now=20).lines == ("2 of 3 ranks run, 1 has finished",)
    assert step(RUNS, slow, slow, now=20).lines == ("1 of 3 ranks run; ranks 1-2 start on node n1",)
    assert step(RUNS, None, None, now=20).lines == ("1 of 3 ranks run; ranks 1-2 have no pod yet",)
    queued = step(job=replace(JOB, is_suspended=True), queued="2nd of 3 gangs in the queue", now=20)
    assert queued.lines == ("the gang of 3 waits to be admitted: 2nd of 3 gangs in the queue",)


@given(st.sets(st.integers(0, 70), min_size=1))
def test_ranks_in_words_name_each_rank_once(ranks: set[int]) -> None:
    words = ranks_in_words(ranks).removeprefix("ranks ").removeprefix("rank ")
    spans = [tuple(map(int, span.split("-"))) for span in words.split(", ")]
    assert [rank for span in spans for rank in range(span[0], span[-1] + 1)] == sorted(ranks)


def test_wait_travels() -> None:
    wait = replace(WAIT, hang_seconds=60)
    assert GangWait.from_record(wait.to_record()) == wait


@given(st.lists(st.sampled_from([RUNS, WELL, TAKEN, failed(), None]), min_size=3, max_size=3), st.integers(0, 7300))
def test_something_is_always_due(pods: list[PodState | None], now: int) -> None:
    seen = snapshot(*pods)
    progress = WAIT.step(seen, at(now))
    if not (progress.done or progress.error):
        assert WAIT.next_deadline(seen, at(now)) > at(now)

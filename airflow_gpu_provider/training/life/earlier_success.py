"""Finds the success of an earlier try that this one collects instead of training again."""

from __future__ import annotations

from dataclasses import replace

from airflow_gpu_provider.cluster.model.pod_state import OWNER_ANNOTATION
from airflow_gpu_provider.scaling.wait.retry import call_with_retries
from airflow_gpu_provider.training.life.host import Host
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.run import AttemptRecord, Run
from airflow_gpu_provider.training.life.store import attempt_of
from airflow_gpu_provider.training.life.task_attempt import CREATE_WITHIN, TaskAttempt
from airflow_gpu_provider.training.wait.attempt_wait import WaitOutcome
from airflow_gpu_provider.training.wait.end import unseen_end


def earlier_success(run: Run, host: Host, first: TaskAttempt, owner: Ownership) -> TaskAttempt | None:
    """Return the attempt of an earlier try that has succeeded, and that nobody has collected; None if there is none.

    `first` is this try's own first attempt, which has created nothing yet, and `owner` its owner.

    Raises:
        GpuError: The cluster could not be asked, for some minutes.
    """
    if not (run.asked.has_earlier and run.settings.reattaches and first.record.number == 1):
        return None

    def once() -> TaskAttempt | None:
        found = run.asked.newest_of_earlier(first.of_all_tries(first.namespace), try_id=owner.try_id)
        if found is None:
            return None
        of_earlier = replace(owner, try_id=found["metadata"]["annotations"][OWNER_ANNOTATION])
        earlier = host.new_attempt(run, lambda: of_earlier, AttemptRecord(number=attempt_of(found)))
        earlier.there = found
        return earlier if earlier.has_succeeded() else None

    return call_with_retries(once, within=CREATE_WITHIN, report=run.log.warning)


def as_it_ended(earlier: TaskAttempt) -> WaitOutcome:
    """Return the outcome of a wait that nobody has seen to its end: what is there says how that was."""
    assert earlier.there is not None
    meta = earlier.there["metadata"]
    return WaitOutcome(
        name=meta["name"],
        namespace=meta["namespace"],
        uid=meta["uid"],
        saw_end=False,
        error=unseen_end(earlier.what),
    )

"""How a pod ended, by the pod itself and by those who watched it: a success stands, whoever failed."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.errors import ClusterUnreachable, EndUnknown, GpuError, PodDeadline, PodFailed, PodPreempted
from airflow_gpu_provider.training.wait.attempt_wait import WaitOutcome
from tests.unit.training.test_pod_end import START, disrupted, ended, pod, running

LATER = START + timedelta(minutes=10)
AWAY = ClusterUnreachable("The API server was away.")
STATES = {
    "gone": None,
    "runs": pod(running()),
    "ended well": pod(ended(0), phase="Succeeded"),
    "ended well, its node taken later": pod(ended(0), phase="Failed", reason="Terminated"),
    "failed": pod(ended(3), phase="Failed"),
    "killed": pod(ended(137), phase="Failed"),
    "evicted": pod(ended(143, at=55), phase="Failed", conditions=(disrupted(at=50),)),
}


def watched(status: str, error: GpuError | None = None, **more: Any) -> WaitOutcome:
    """Return the outcome of a wait, as an event carries it: "success", "failed", "timeout", or "error" in watching."""
    if error is None and status != "success":
        error = GpuError("The wait for pod train-x failed: boom.", "See the log above.")
    outcome = WaitOutcome(
        namespace="ml",
        name="train-x",
        uid="u1",
        saw_end=status != "error",
        container_ended=status in ("success", "failed"),
        error=error,
        **more,
    )
    return WaitOutcome.from_record(json.loads(json.dumps(outcome.to_record())))


@pytest.mark.parametrize(
    ("event", "state", "error_type"),
    [
        (watched("error", AWAY), "ended well", None),
        (watched("error", AWAY), "failed", PodFailed),
        (watched("error", AWAY), "evicted", PodPreempted),
        (watched("error", AWAY), "gone", EndUnknown),
        (watched("success"), "ended well, its node taken later", None),
        (watched("success"), "gone", None),
        (watched("timeout", PodDeadline("Late.")), "ended well", None),
        (watched("timeout", PodDeadline("Late.")), "failed", PodFailed),
        (watched("timeout", PodDeadline("Late.")), "runs", PodDeadline),
        (watched("timeout", PodPreempted("Its node left.")), "killed", PodPreempted),
        (watched("timeout", PodPreempted("Its node left.")), "ended well", None),
        (watched("failed", PodPreempted("Its node is being removed.")), "killed", PodPreempted),
    ],
)
def test_end(event: WaitOutcome, state: str, error_type: type[GpuError] | None) -> None:
    end = event.end(STATES[state], LATER)
    assert end is not None
    assert type(end.error) is (error_type or type(None))


def test_pod_that_was_told_to_stop_before_it_ended_well_was_cut_short_also_where_only_the_wait_saw_that() -> None:
    """Its kubelet's last delete has moved its deletionTimestamp, and its finalizer keeps it."""
    kept = pod(ended(0, at=41), phase="Succeeded", deleted_at=72, grace=0, finalizers=True)
    seen = watched("failed", PodPreempted("Evicted."), deletion_asked_at=START + timedelta(seconds=40))
    end = seen.end(kept, LATER)
    assert end is not None
    assert type(end.error) is PodPreempted


def test_pod_that_runs_is_not_over_because_nobody_could_watch_it() -> None:
    assert watched("error", AWAY).end(STATES["runs"], LATER) is None
    assert watched("error").end(STATES["runs"], LATER) is None


def test_end_that_the_kubelet_may_still_explain_is_waited_for() -> None:
    just_ended = pod(ended(0, at=60))
    assert watched("error", AWAY).end(just_ended, START + timedelta(seconds=61)) is None
    assert watched("error", AWAY).end(just_ended, LATER) is not None


@given(
    st.sampled_from(["success", "failed", "timeout", "error"]),
    st.sampled_from([AWAY, PodDeadline("Late."), PodPreempted("Gone."), PodFailed("Exit code 1.")]),
    st.sampled_from(sorted(STATES)),
)
def test_what_ended_well_is_a_success_and_what_runs_is_none(status: str, error: GpuError, name: str) -> None:
    state: PodState | None = STATES[name]
    end = watched(status, None if status == "success" else error).end(state, LATER)
    if name == "ended well" or status == "success":
        assert end is not None
        assert end.error is None
    elif end is not None:
        assert end.error is not None
    else:
        assert status == "error"
        assert name == "runs"

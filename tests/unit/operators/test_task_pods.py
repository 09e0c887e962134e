"""Whether a deleted pod may still run, so that the task's next one has to wait."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.operators.task_pods import may_still_run
from tests.unit.cluster.test_pod_end import START, ended, pod, running

DELETED = pod(running(), deleted_at=100, grace=30)


@pytest.mark.parametrize(
    ("node_is_ready", "seconds", "may_run"),
    [
        (True, 101, True),
        (True, 135, True),
        (True, 130 + 599, True),
        (True, 130 + 601, False),
        (False, 130 + 29, True),
        (False, 130 + 31, False),
        (None, 101, False),
    ],
)
def test_deleted_pod(node_is_ready: bool | None, seconds: float, may_run: bool) -> None:
    now = START + timedelta(seconds=seconds)
    assert may_still_run(DELETED, node_is_ready=node_is_ready, now=now) is may_run


@given(st.sampled_from([True, False, None]), st.integers(min_value=0, max_value=10_000))
def test_nothing_is_waited_for_without_end(node_is_ready: bool | None, seconds: int) -> None:
    now = START + timedelta(seconds=seconds)
    if may_still_run(DELETED, node_is_ready=node_is_ready, now=now):
        assert seconds < 130 + 600
    assert not may_still_run(pod(ended(0), phase="Failed", deleted_at=100), node_is_ready=node_is_ready, now=now)
    unbound = pod(phase="Pending", spec={"nodeName": None}, deleted_at=100)
    assert not may_still_run(unbound, node_is_ready=node_is_ready, now=now)

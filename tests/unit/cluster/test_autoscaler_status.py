"""What is read from cluster-autoscaler's status ConfigMap."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.model.autoscaler_status import FRESH, LAST_UPDATED, AutoscalerStatus

WRITTEN = "2026-03-01 02:00:00.182741904 +0000 UTC"
AT = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
REPORT = """
autoscalerStatus: Running
clusterWide: {health: {status: Healthy}, scaleDown: {status: NoCandidates}, scaleUp: {status: NoActivity}}
nodeGroups:
- {name: eks-train-a, health: {cloudProviderTarget: 0, minSize: 0, maxSize: 3},
   scaleUp: {status: NoActivity, backoffInfo: {}}}
- {name: eks-train-b, scaleUp: {status: Backoff,
   backoffInfo: {errorCode: placeholder-cannot-be-fulfilled, errorMessage: AWS cannot provision any more instances}}}
- {name: eks-train-c, scaleUp: {status: Backoff}}
"""


def config_map(status: str = REPORT, written: str | None = WRITTEN) -> dict[str, Any]:
    annotations = {} if written is None else {LAST_UPDATED: written}
    return {"metadata": {"name": "cluster-autoscaler-status", "annotations": annotations}, "data": {"status": status}}


def test_says_when_it_was_written_and_which_groups_are_avoided() -> None:
    status = AutoscalerStatus.parse(config_map())
    assert (status.updated_at, status.state) == (AT, "Running")
    assert status.groups == ("eks-train-a", "eks-train-b", "eks-train-c")
    assert status.backoff == {
        "eks-train-b": "placeholder-cannot-be-fulfilled: AWS cannot provision any more instances",
        "eks-train-c": "no reason given",
    }


@pytest.mark.parametrize(
    ("written", "at"),
    [
        ("2026-03-01 02:00:00 +0000 UTC", AT),
        ("2026-03-01 03:00:00.5 +0100 CET", AT),
        ("2026-03-01 02:00:00.185954244 +0000 UTC m=+43.664545435", AT),
        ("yesterday", None),
        (None, None),
    ],
)
def test_reads_go_s_times(written: str | None, at: datetime | None) -> None:
    assert AutoscalerStatus.parse(config_map(written=written)).updated_at == at


def test_is_fresh_for_a_few_minutes_and_never_without_a_time() -> None:
    status = AutoscalerStatus.parse(config_map())
    assert status.is_fresh(AT + FRESH - timedelta(seconds=1))
    assert not status.is_fresh(AT + FRESH)
    assert not AutoscalerStatus.parse(config_map(written=None)).is_fresh(AT)


@pytest.mark.parametrize("text", ["", "Cluster-autoscaler status at 2026: {", "- a\n- b", "nodeGroups: null"])
def test_a_report_that_cannot_be_read_still_has_its_time(text: str) -> None:
    status = AutoscalerStatus.parse(config_map(text))
    assert (status.updated_at, status.state, status.backoff) == (AT, "", {})
    assert status.groups is None, "nobody knows which groups it scales"

"""What is recorded for bills: at once, or not at all, and never at the cost of the task that records it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.model.pool_pod import RUN_LABEL
from airflow_gpu_provider.errors import ClusterUnreachable
from airflow_gpu_provider.ledger.ledger import record_pods
from airflow_gpu_provider.ledger.usage import read_runs
from airflow_gpu_provider.money.run_usage import Computed
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient

NOW = datetime(2026, 3, 1, 4, tzinfo=UTC)
BEGAN = NOW - timedelta(hours=1)
KEY = DemandKey(installation="airflow", dag_id="dag", run_id="run", pool="train")
POD: dict[str, Any] = {
    "metadata": {
        "namespace": "ml",
        "name": "train",
        "uid": "u1",
        "creationTimestamp": "2026-03-01T02:00:00Z",
        "labels": {POOL_LABEL: "train", RUN_LABEL: KEY.hash},
        "annotations": KEY.annotations,
    },
    "spec": {
        "nodeName": "n1",
        "containers": [{"name": "base", "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
    },
    "status": {
        "phase": "Running",
        "containerStatuses": [{"name": "base", "state": {"running": {"startedAt": "2026-03-01T03:00:00Z"}}}],
    },
}


def test_when_a_pod_ran_and_what_its_gpus_computed_is_one_write() -> None:
    server = ApiServer()
    api: Any = FakeApiClient(server)
    record_pods(lambda: api, [POD], pytest.fail, now=lambda: NOW, computed=0.25, sampled=timedelta(minutes=30))
    record_pods(lambda: api, [POD], pytest.fail, now=lambda: NOW, computed=0.25, sampled=timedelta(minutes=30))
    assert [each.verb for each in server.requests].count("get") == 2, "each reads once, and the second writes nothing"
    assert "update" not in [each.verb for each in server.requests]
    (run,) = read_runs(api, "train")
    assert run.worked == {"n1": ((BEGAN, NOW),)}
    assert run.computed == {"u1": Computed(node="n1", span=(BEGAN, BEGAN + timedelta(minutes=30)), gpus=2, share=0.25)}


def test_what_a_delete_that_completes_at_once_returns_is_no_pod() -> None:
    record_pods(pytest.fail, [{"kind": "Status", "status": "Success"}], pytest.fail)


def test_a_cluster_that_is_away_makes_the_bill_too_low_and_fails_nobody() -> None:
    def away() -> Any:
        raise ClusterUnreachable("Away.")

    said: list[str] = []
    record_pods(away, [POD], said.append)
    (line,) = said
    assert "the reported cost of nodes will be too low" in line
    assert "Away." in line

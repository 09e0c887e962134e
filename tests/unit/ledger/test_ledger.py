"""What is recorded for bills: at once, or not at all, and never at the cost of the task that records it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.cluster.model.lease import LEASES
from airflow_gpu_provider.cluster.model.pool_pod import RUN_LABEL
from airflow_gpu_provider.errors import ClusterUnreachable
from airflow_gpu_provider.ledger.ledger import record_pods
from airflow_gpu_provider.ledger.usage import read_runs
from airflow_gpu_provider.money.bill import bill
from airflow_gpu_provider.money.run_usage import Computed
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient

NOW = datetime(2026, 3, 1, 4, tzinfo=UTC)
BEGAN = NOW - timedelta(hours=1)
KEY = DemandKey(installation="airflow", dag_id="dag", run_id="run", pool="train")
POOL = EksGpuPool(name="train", cluster_name="ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1)
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


def test_a_container_that_never_started_worked_at_no_time() -> None:
    """A kubelet gives a StartError the start of 1970, which made the run's whole record unreadable."""
    api: Any = FakeApiClient(ApiServer())
    record_pods(lambda: api, [POD], pytest.fail, now=lambda: NOW)
    never = {"reason": "StartError", "startedAt": "1970-01-01T00:00:00Z", "finishedAt": BEGAN.isoformat()}
    status = {"phase": "Failed", "containerStatuses": [{"name": "base", "state": {"terminated": never}}]}
    record_pods(lambda: api, [{**POD, "status": status}], pytest.fail, now=lambda: NOW)
    (run,) = read_runs(api, "train")
    assert run.worked == {"n1": ((BEGAN, NOW),)}


def test_a_record_that_could_not_be_read_stays_too_low() -> None:
    server = ApiServer()
    api: Any = FakeApiClient(server)
    record_pods(lambda: api, [POD], pytest.fail, now=lambda: NOW)
    edited = {"metadata": {"annotations": {"airflow-gpu-provider/usage": "no record"}}}
    server.patch(f"{LEASES}/usage-{KEY.hash}", edited)
    record_pods(lambda: api, [POD], pytest.fail, now=lambda: NOW)
    (run,) = read_runs(api, "train")
    assert (run.worked, run.is_lost) == ({"n1": ((BEGAN, NOW),)}, True)
    found = bill(POOL, KEY, [run], [])
    assert found.at_least == "what had been recorded of the run could not be read"

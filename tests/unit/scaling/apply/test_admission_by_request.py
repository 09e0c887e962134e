"""Admission where nodes come only by ProvisioningRequests: each gang by its own, none by its turn or by free nodes."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.cluster.autoscaler_status import ProvisioningRequest
from airflow_gpu_provider.cluster.pods import GANG_LABEL
from airflow_gpu_provider.errors import GpuError, OutOfStock, PermissionDenied, QuotaExceeded
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.apply.admission import WHOLE_WITHIN, GangQueue, admission
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient
from tests.unit.clouds.google.test_gke_pool import FLEX_START
from tests.unit.clouds.google.test_gke_pool import pool as gke_pool
from tests.unit.cluster.test_provisioning_requests import EXPIRED, FAILED, PATH, QUEUED, REVOKED, THERE, WAITS, raw
from tests.unit.scaling.apply.test_admission import admitted, job, raw_job, there
from tests.unit.scaling.pools import NOW, A, key, lease, pod

POOL = gke_pool(**FLEX_START, queued_provisioning=True)


def state(*where: str, **how: Any) -> PoolSnapshot:
    return there(*where, spec=POOL, **how)


def asked(*conditions: Any, of: str = "one") -> dict[str, ProvisioningRequest]:
    return {of: ProvisioningRequest.parse(raw(*conditions, job=of))}


def test_free_nodes_admit_no_gang_and_its_request_does() -> None:
    """The nodes of one request are not another's: GKE lets no other pod run there."""
    assert admission(state(A, A), [job()], requests=asked(QUEUED, WAITS)).is_empty
    assert admitted(admission(state(), [job()], requests=asked(QUEUED, THERE))) == {"one": ""}


def test_a_gang_whose_nodes_are_there_does_not_wait_for_older_ones() -> None:
    older, younger = job(), job("two", minutes=1)
    found = admission(state(A, A), [older, younger], requests=asked(QUEUED, WAITS) | asked(QUEUED, THERE, of="two"))
    assert admitted(found) == {"two": ""}
    words = "ProvisioningRequest train: Provisioned=False, ResourcePoolExhausted: Waiting for resources"
    assert found.why == {"default/one": words}
    short = found.short["default/one"]
    assert (type(short), short.what) == (OutOfStock, f"Pool train-gpu: {words}.")


def test_a_quota_is_told_from_a_stock_out() -> None:
    quota = ("Provisioned", "False", "QuotaExceeded", "Quota 'NVIDIA_L4_GPUS' exceeded. Limit: 1.0.")
    short = admission(state(), [job()], requests=asked(QUEUED, quota)).short["default/one"]
    assert type(short) is QuotaExceeded
    assert "Quota 'NVIDIA_L4_GPUS' exceeded. Limit: 1.0" in short.what


@pytest.mark.parametrize("end", [FAILED, EXPIRED, REVOKED])
def test_a_request_that_is_over_ends_the_wait(end: Any) -> None:
    found = admission(state(A, A), [job()], requests=asked(QUEUED, THERE, end))
    assert found.is_empty
    lost = found.lost["default/one"]
    assert type(lost) is OutOfStock
    assert lost.fix.startswith("Retry the task: the next try requests its nodes again.")
    running = job(suspended=False, admitted_at=NOW, active=2)
    assert not admission(state(A, A), [running], requests=asked(QUEUED, THERE, end)).lost, "its pods have the nodes"


def test_without_its_request_or_its_demand_a_gang_waits() -> None:
    assert "its ProvisioningRequest is not there" in admission(state(), [job()], requests={}).why["default/one"]
    left = admission(state(), [job(run=key("gone").hash)], requests=asked(QUEUED, THERE))
    assert left.why == {"default/one": "its run wants no nodes any more, and it does not start"}
    assert left.is_empty


def test_it_is_suspended_again_if_its_pods_find_no_nodes_in_time_as_elsewhere() -> None:
    gang = job(suspended=False, admitted_at=NOW - 20 * WHOLE_WITHIN, active=2)
    found = admission(state(pods=(pod("one-0", job="one"),)), [gang], requests=asked(QUEUED, THERE))
    assert found.suspend == (gang,)
    assert not admission(state(), [job(active=1)], requests=asked(QUEUED, THERE)).admit, "its pods are still going"


def cluster(*conditions: Any) -> ApiServer:
    server = ApiServer()
    labels = {POOL_LABEL: POOL.name, GANG_LABEL: "2"}
    waiting = raw_job()
    waiting["metadata"] |= {"labels": {**waiting["metadata"]["labels"], **labels}, "uid": "j1"}
    server.put("apis/batch/v1/namespaces/ml/jobs/train", waiting)
    request = raw(*conditions)
    request["metadata"]["labels"] = labels
    server.put(PATH, request)
    return server


def queue_of(server: ApiServer) -> GangQueue:
    wants = state(leases=(lease(nodes=2),))
    return GangQueue(FakeApiClient(server), wants, decide(wants))  # type: ignore[arg-type]


def test_each_check_reads_the_requests_and_tells_what_they_say() -> None:
    short, gone = queue_of(cluster(QUEUED, WAITS)).update, queue_of(cluster(FAILED)).update
    assert [type(each) for each in short.short.values()] == [OutOfStock]
    assert short.errors == {}
    assert {name: type(error) for name, error in gone.errors.items()} == {"ml/train": OutOfStock}


def test_requests_that_may_not_be_read_are_everybodys_error() -> None:
    server = cluster(QUEUED, THERE)
    server.refuse(path="apis/autoscaling.x-k8s.io/v1/provisioningrequests")
    found: GpuError = queue_of(server).update.errors[""]
    assert type(found) is PermissionDenied
    assert "provisioningrequests" in str(found)

"""What is said of an object for whose nodes Kueue makes ProvisioningRequests: why it waits, and how that ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.api.informer import Change
from airflow_gpu_provider.cluster.api.watched import provisioning_requests
from airflow_gpu_provider.errors import GpuError, OutOfStock, PermissionDenied, PoolSpecError, QuotaExceeded
from airflow_gpu_provider.training.watch.kueue_queue import KueueQueue
from tests.unit.clouds.google.test_gke_pool import FLEX_START, pool
from tests.unit.training.test_kueue import a_queue, change, condition, workload
from tests.unit.training.test_pod_end import START

POOL = pool(**FLEX_START, queued_provisioning=True)
RETRIED = (
    condition("QuotaReserved", "False", "At least one admission check is false", "Pending"),
    condition("Evicted", "True", "At least one admission check is false", "AdmissionCheck"),
)
FULL = ("Failed", "True", "NodepoolSizeReached", "Max nodepool size reached, affected nodepools: train-gpu-a.")


def request(*conditions: tuple[str, str, str, str], attempt: int = 1, owner: str = "w-mine") -> Change:
    keys = ("type", "status", "reason", "message")
    meta = {"name": f"job-mine-dws-{attempt}", "uid": f"r{attempt}", "namespace": "ml"}
    raw = {
        "metadata": {**meta, "ownerReferences": [{"kind": "Workload", "uid": owner}]},
        "status": {"conditions": [dict(zip(keys, each, strict=True)) for each in conditions]},
    }
    return Change(resource=provisioning_requests("ml"), kind="present", raw=raw)


def seen(*changes: Change, active: bool = True, check: str = "", again_at: str = "", **wait: Any) -> KueueQueue:
    mine = workload("mine", *RETRIED)
    mine["spec"]["active"] = active
    mine["status"]["admissionChecks"] = [{"name": "dws", "state": "Pending", "message": check}]
    mine["status"]["requeueState"] = {"requeueAt": again_at} if again_at else {}
    queue = a_queue("team-a", POOL, **wait)
    queue.take([change("present", mine), change("synced"), *changes])
    return queue


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ((), "is pending"),
        (
            (("Accepted", "False", "NotAccepted", "It wasn't accepted."),),
            ": Accepted=False, NotAccepted: It wasn",
        ),
        (
            (("Accepted", "True", "x", ""), ("Provisioned", "False", "ResourcePoolExhausted", "Waiting.")),
            ": Provisioned=False, ResourcePoolExhausted: Waiting",
        ),
        ((FULL, ("Accepted", "False", "NotAccepted", "")), ": Failed=True, NodepoolSizeReached: Max nodepool size"),
    ],
)
def test_the_newest_request_says_why_there_are_no_nodes(conditions: Any, said: str) -> None:
    queue = seen(request(FULL), request(*conditions, attempt=2), request(FULL, attempt=9, owner="w-other"))
    assert f"; ProvisioningRequest job-mine-dws-2 {said}".replace(" :", ":") in queue.in_words
    assert provisioning_requests("ml") in queue.wants()


def test_a_check_that_is_tried_again_is_a_wait_in_kueue_s_words() -> None:
    queue = seen(check="Retrying after failure: Max nodepool size reached.", again_at="2026-01-01T00:05:00Z")
    words = "dws: Retrying after failure: Max nodepool size reached; tried again at 00:05:00Z"
    assert queue.in_words.endswith(words)
    taken_back = workload("mine", *RETRIED)
    taken_back["status"]["admissionChecks"] = [
        {"name": "dws", "state": "Pending", "message": "Reset to Pending after eviction. Previously: Retry"}
    ]
    queue.take([change("present", taken_back)])
    assert queue.in_words.endswith("dws: Retrying after failure: Max nodepool size reached")
    assert queue.barred("Job train", START) is None
    assert not queue.has_admitted


REASONS: list[tuple[str, type[GpuError]]] = [
    ("NodepoolSizeReached", OutOfStock),
    ("NodepoolInBackoff", OutOfStock),
    ("ResourcePoolExhausted", OutOfStock),
    ("QuotaExceeded", QuotaExceeded),
    ("ProvisioningRequestNotSchedulableInNodepool", PoolSpecError),
    ("NoQueuedNodepoolAvailable", PoolSpecError),
    ("InvalidMachineType", PoolSpecError),
    ("ZoneNotSupported", PoolSpecError),
    ("IPSpaceExhausted", PoolSpecError),
    ("PermissionDenied", PermissionDenied),
    ("PermissionsError", PermissionDenied),
]


@pytest.mark.parametrize(("reason", "error"), REASONS)
def test_why_a_request_has_failed_decides_how_the_try_ends(reason: str, error: type[GpuError]) -> None:
    failed = ("Failed", "True", reason, "It failed.")
    found = seen(request(failed), active=False).barred("Job train", START)
    assert type(found) is error
    assert f"{reason}: It failed" in str(found)
    assert found.details["pool"] == POOL.name
    is_for_good = error in (PoolSpecError, PermissionDenied)
    assert seen(request(failed)).barred("Job train", START) is None, "the first one is made again"
    second = seen(request(failed, attempt=2)).barred("Job train", START)
    assert type(second) is (error if is_for_good else type(None))


def test_where_requests_may_not_be_read_the_check_s_words_decide() -> None:
    for message, error in (("Max nodepool size reached.", OutOfStock), ("Quota 'L4' exceeded.", QuotaExceeded)):
        found = seen(active=False, check=message).barred("Job train", START)
        assert type(found) is error
        assert f"dws: {message}".rstrip(".") in str(found)


def test_a_wait_that_has_lasted_for_as_long_as_it_may_ends_in_the_request_s_words() -> None:
    waits = ("Provisioned", "False", "ResourcePoolExhausted", "Waiting.")
    queue = seen(request(waits), queued_until=START + timedelta(days=3))
    assert queue.barred("Job train", START + timedelta(days=2)) is None
    found = queue.barred("Job train", START + timedelta(days=3))
    assert type(found) is OutOfStock
    assert "it has waited until 2026-01-04 02:00Z (1st of 1 in queue team-a" in found.what
    assert "ResourcePoolExhausted: Waiting" in found.what
    assert "raise give_up_after" in found.fix

"""ProvisioningRequests as the API server has them, and which of their conditions counts."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.cluster.autoscaler_status import ProvisioningRequest, list_provisioning_requests
from airflow_gpu_provider.errors import ObjectRejected
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient

PATH = "apis/autoscaling.x-k8s.io/v1/namespaces/ml/provisioningrequests/train"
QUEUED = ("Accepted", "True", "SuccessfullyQueued", "Provisioning Request was successfully queued.")
WAITS = ("Provisioned", "False", "ResourcePoolExhausted", "Waiting for resources.")
THERE = ("Provisioned", "True", "Provisioned", "Provisioning Request was successfully provisioned.")
EXPIRED = ("BookingExpired", "True", "BookingExpired", "Capacity booking has expired.")
REVOKED = ("CapacityRevoked", "True", "Revoked", "")
FAILED = ("Failed", "True", "NoMatchingNodePool", "No node pool.")
LIFTED = ("Failed", "False", "Retried", "")


def raw(*conditions: tuple[str, str, str, str], job: str = "j1") -> dict[str, Any]:
    keys = ("type", "status", "reason", "message")
    return {
        "metadata": {
            "namespace": "ml",
            "name": "train",
            "labels": {"gpu": "yes"},
            "ownerReferences": [{"kind": "Job", "name": "train", "uid": job}],
        },
        "spec": {},
        "status": {"conditions": [dict(zip(keys, each, strict=True)) for each in conditions]},
    }


@pytest.mark.parametrize(
    ("conditions", "is_provisioned", "is_over", "in_words"),
    [
        ((), False, False, "is pending"),
        (
            (QUEUED,),
            False,
            False,
            "Accepted=True, SuccessfullyQueued: Provisioning Request was successfully queued",
        ),
        (
            (QUEUED, WAITS, LIFTED),
            False,
            False,
            "Provisioned=False, ResourcePoolExhausted: Waiting for resources",
        ),
        (
            (QUEUED, THERE),
            True,
            False,
            "Provisioned=True, Provisioned: Provisioning Request was successfully provisioned",
        ),
        (
            (QUEUED, THERE, EXPIRED),
            False,
            True,
            "BookingExpired=True, BookingExpired: Capacity booking has expired",
        ),
        ((QUEUED, THERE, EXPIRED, REVOKED), False, True, "CapacityRevoked=True, Revoked"),
        ((FAILED,), False, True, "Failed=True, NoMatchingNodePool: No node pool"),
    ],
)
def test_the_condition_that_counts(conditions: Any, is_provisioned: bool, is_over: bool, in_words: str) -> None:
    found = ProvisioningRequest.parse(raw(*conditions))
    words = f"ProvisioningRequest train{' ' if not conditions else ': '}{in_words}"
    assert (found.is_provisioned, found.is_over, found.in_words) == (is_provisioned, is_over, words)


def test_requests_are_found_by_the_uids_of_their_jobs() -> None:
    server = ApiServer()
    server.put(PATH, raw(QUEUED))
    others = {"metadata": {"namespace": "ml", "name": "kueues", "labels": {"gpu": "yes"}}, "spec": {}}
    server.put(PATH.replace("train", "kueues"), others)
    api: Any = FakeApiClient(server)
    assert {uid: each.name for uid, each in list_provisioning_requests(api, "gpu=yes").items()} == {"j1": "train"}
    assert list_provisioning_requests(api, "gpu=no") == {}


def test_a_cluster_that_does_not_know_them_is_told_what_it_lacks() -> None:
    server = ApiServer()
    server.refuse(path="apis/autoscaling.x-k8s.io/v1/provisioningrequests", status=404)
    with pytest.raises(
        ObjectRejected, match=r"no autoscaling.x-k8s.io/v1 ProvisioningRequest.*Upgrade it to GKE 1\.32"
    ):
        list_provisioning_requests(FakeApiClient(server), "gpu=yes")  # type: ignore[arg-type]

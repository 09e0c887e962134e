"""What the doctor finds of a queue for a pool whose nodes come by ProvisioningRequests: the documented one is right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_gpu_provider.reports.kueue_queues import KueueQueues
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient
from tests.unit.clouds.google.test_gke_pool import FLEX_START, pool

FILE = Path(__file__).parents[3] / "docs/kueue/queued-provisioning.yaml"
POOL = pool(**FLEX_START, queued_provisioning=True, machine_types=["a3-highgpu-8g"], max_nodes=4)
PLURALS = {
    "ResourceFlavor": "resourceflavors",
    "ProvisioningRequestConfig": "provisioningrequestconfigs",
    "AdmissionCheck": "admissionchecks",
    "ClusterQueue": "clusterqueues",
    "LocalQueue": "namespaces/default/localqueues",
}
ACTIVE = {"conditions": [{"type": "Active", "status": "True", "reason": "Active", "message": "It is active"}]}

Objects = dict[str, dict[str, Any]]


def documented() -> Objects:
    """Return the file's objects by kind, as the API server has them."""
    found = {each["kind"]: copy.deepcopy(each) for each in yaml.safe_load_all(FILE.read_text())}
    found["AdmissionCheck"]["status"] = ACTIVE
    return found


def found_in(objects: Objects, version: str = "v1beta2") -> list[tuple[str, str]]:
    server = ApiServer()
    server.put("api/v1/namespaces/default", {"metadata": {"name": "default"}})
    for each in objects.values():
        path = f"apis/kueue.x-k8s.io/{version}/{PLURALS[each['kind']]}/{each['metadata']['name']}"
        server.put(path, each)
    if version != "v1beta2":
        server.refuse(path="apis/kueue.x-k8s.io/v1beta2/namespaces/default/localqueues", status=404)
    queues = KueueQueues.read(FakeApiClient(server), "default")  # type: ignore[arg-type]
    return [(result, message) for result, message, _ in queues.examine(POOL)]


def test_the_documented_queue_is_right() -> None:
    assert found_in(documented()) == [("ok", "queue team-a makes the ProvisioningRequests of the pool's nodes")]


def gpu_quota(objects: Objects) -> dict[str, Any]:
    return next(
        each
        for each in objects["ClusterQueue"]["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
        if each["name"] == "nvidia.com/gpu"
    )


WRONG: dict[str, tuple[Callable[[Objects], Any], str, str]] = {
    "no LocalQueue": (lambda o: o.pop("LocalQueue"), "problem", "no LocalQueue of namespace default makes"),
    "no ClusterQueue": (lambda o: o.pop("ClusterQueue"), "problem", "the ClusterQueue of team-a does not exist"),
    "no check": (
        lambda o: o["ClusterQueue"]["spec"].pop("admissionChecksStrategy"),
        "problem",
        "team-a has no admission check by ProvisioningRequests",
    ),
    "inactive": (lambda o: o["AdmissionCheck"].pop("status"), "problem", "admission check train-gpu is not active"),
    "no config": (lambda o: o.pop("ProvisioningRequestConfig"), "problem", "train-gpu does not exist"),
    "another class": (
        lambda o: o["ProvisioningRequestConfig"]["spec"].update(provisioningClassName="check-capacity.x"),
        "problem",
        "has provisioningClassName check-capacity.x, and the pool needs queued-provisioning.gke.io",
    ),
    "no managed resources": (
        lambda o: o["ProvisioningRequestConfig"]["spec"].pop("managedResources"),
        "problem",
        "lacks nvidia.com/gpu in managedResources",
    ),
    "no node selector": (
        lambda o: o["ProvisioningRequestConfig"]["spec"].pop("podSetUpdates"),
        "problem",
        "lacks autoscaling.gke.io/provisioning-request from ResizeRequestName",
    ),
    "nodes that end too early": (
        lambda o: o["ProvisioningRequestConfig"]["spec"]["parameters"].update(maxRunDurationSeconds="3600"),
        "problem",
        ", before max_runtime=",
    ),
    "Kueue's default retries": (
        lambda o: o["ProvisioningRequestConfig"]["spec"].pop("retryStrategy"),
        "warning",
        "retries for 7 min",
    ),
    "too much quota": (lambda o: gpu_quota(o).update(nominalQuota="1k"), "warning", "its quota is 1000 "),
    "too little quota": (lambda o: gpu_quota(o).update(nominalQuota=8), "warning", "max_nodes=4 has 32: not all"),
}


@pytest.mark.parametrize(("change", "result", "says"), WRONG.values(), ids=WRONG)
def test_each_thing_that_a_queue_lacks_is_named(change: Callable[[Objects], Any], result: str, says: str) -> None:
    objects = documented()
    change(objects)
    ((found, message),) = found_in(objects)
    assert found == result
    assert says in message


def test_a_queue_of_another_pool_is_no_business_of_this_one() -> None:
    objects = documented()
    objects["ResourceFlavor"]["spec"]["nodeLabels"] = {"airflow-gpu-provider/pool": "other"}
    assert [message for _, message in found_in(objects)] == [
        "no LocalQueue of namespace default makes ProvisioningRequests for the pool"
    ]


def test_an_older_api_names_the_checks_in_a_list() -> None:
    objects = documented()
    del objects["ClusterQueue"]["spec"]["admissionChecksStrategy"]
    objects["ClusterQueue"]["spec"]["admissionChecks"] = ["train-gpu"]
    assert [result for result, _ in found_in(objects, "v1beta1")] == ["ok"]

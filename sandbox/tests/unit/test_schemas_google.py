"""The judge of Google's calls, by the discovery documents that it is on with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_sandbox.schemas.google import (
    Method,
    discovery,
    wrong_in_answer,
    wrong_in_error,
    wrong_in_request,
)

CLUSTER = "/v1/projects/p/locations/us-central1/clusters/k8s-ml"
GROUP = "/compute/v1/projects/pro-ject/zones/us-central1-a/instanceGroupManagers/gke-gpu"
POOL = {"name": "gpu", "initialNodeCount": 1, "config": {"machineType": "g2-standard-4", "labels": {"team": "ml"}}}


def method(verb: str, path: str) -> Method:
    found = discovery().find(verb, path)
    assert found is not None
    return found


def wrong_with_request(verb: str, path: str, body: Any = None, query: str = "") -> list[str]:
    content = b"" if body is None else json.dumps(body).encode()
    return list(wrong_in_request(method(verb, path), path, query, content))


def test_a_call_is_known_by_its_verb_and_path() -> None:
    assert method("POST", f"{CLUSTER}/nodePools/gpu:setSize").id.endswith("nodePools.setSize")
    assert method("POST", f"{GROUP}/deleteInstances").id == "compute.instanceGroupManagers.deleteInstances"
    assert discovery().find("PUT", f"{GROUP}/deleteInstances") is None
    assert discovery().find("GET", "/v1/projects/p/locations/l/clusterz") is None


def test_right_calls_have_nothing_wrong() -> None:
    assert wrong_with_request("POST", f"{CLUSTER}/nodePools", {"nodePool": POOL}) == []
    assert wrong_with_request("POST", f"{GROUP}/resize", query="size=3&alt=json") == []
    assert wrong_with_request("GET", CLUSTER, query="%24alt=json") == []
    assert list(wrong_in_answer(method("GET", f"{CLUSTER}/nodePools/gpu"), {**POOL, "status": "RUNNING"})) == []


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"machineTyp": "n1"}, "body.nodePool.machineTyp is unknown"),
        ({"initial_node_count": 1}, "body.nodePool.initial_node_count is unknown"),
        ({"initialNodeCount": "1"}, "body.nodePool.initialNodeCount is '1', no int32 integer"),
        ({"initialNodeCount": True}, "body.nodePool.initialNodeCount is True, no int32 integer"),
        ({"config": {"labels": {"team": 1}}}, "body.nodePool.config.labels.team is 1, no string"),
        ({"config": {"spot": "true"}}, "body.nodePool.config.spot is 'true', no boolean"),
        ({"config": []}, "body.nodePool.config is [], no object"),
        ({"locations": "us-central1-a"}, "body.nodePool.locations is 'us-central1-a', no array"),
        (
            {"config": {"taints": [{"key": "k", "effect": "NoSchedule"}]}},
            "body.nodePool.config.taints[0].effect is 'NoSchedule', which is none of its values",
        ),
        (
            {"config": {"maxRunDuration": "1h"}},
            "body.nodePool.config.maxRunDuration is '1h', no google-duration string",
        ),
    ],
)
def test_what_is_wrong_in_a_body(change: dict[str, Any], wrong: str) -> None:
    assert wrong_with_request("POST", f"{CLUSTER}/nodePools", {"nodePool": POOL | change}) == [wrong]


def test_a_request_may_have_numbers_where_a_parser_takes_them() -> None:
    def wrong(effect: int) -> list[str]:
        taint = {"key": "k", "effect": effect}
        return wrong_with_request("POST", f"{CLUSTER}/nodePools", {"nodePool": {"config": {"taints": [taint]}}})

    assert wrong(1) == []
    assert wrong(99) == ["body.nodePool.config.taints[0].effect is 99, no string"]
    numbers = {"nodePool": {"placementPolicy": {"type": 1}, "maxPodsConstraint": {"maxPodsPerNode": 110}}}
    assert wrong_with_request("POST", f"{CLUSTER}/nodePools", numbers) == []
    shown = {"config": {"taints": [{"key": "k", "effect": 1}]}, "maxPodsConstraint": {"maxPodsPerNode": 110}}
    assert list(wrong_in_answer(method("GET", f"{CLUSTER}/nodePools/gpu"), shown)) == [
        "answer.config.taints[0].effect is 1, no string",
        "answer.maxPodsConstraint.maxPodsPerNode is 110, no int64 string",
    ]


def test_what_is_wrong_in_parameters() -> None:
    assert wrong_with_request("POST", f"{GROUP}/resize") == ["query parameter size is missing"]
    assert wrong_with_request("POST", f"{GROUP}/resize", query="size=many") == [
        "query parameter size is 'many', no integer that it takes"
    ]
    assert wrong_with_request("GET", GROUP, query="sizes=1") == ["query parameter sizes is unknown"]
    assert wrong_with_request("POST", f"{GROUP}/listManagedInstances", {"filter": "x"}) == ["the method takes no body"]
    elsewhere = "/compute/v1/projects/pro-ject/zones/US-Central1/instances/gke-gpu"
    assert [wrong.split(",")[0] for wrong in wrong_with_request("GET", elsewhere)] == [
        "path parameter zone is 'US-Central1'"
    ]


def test_what_is_wrong_in_an_answer() -> None:
    def wrong(**answer: Any) -> list[str]:
        return list(wrong_in_answer(method("GET", GROUP), answer))

    assert wrong(id="12", targetSize=0, status={"isStable": True}) == []
    assert wrong(id=12) == ["answer.id is 12, no uint64 string"]
    assert wrong(target_size=0) == ["answer.target_size is unknown"]
    assert wrong(currentActions={"deletings": 1}) == ["answer.currentActions.deletings is unknown"]
    assert wrong(fingerprint="?") == ["answer.fingerprint is '?', no byte string"]


def test_what_a_method_requires_of_a_body_is_missed_in_requests_only() -> None:
    path = "/compute/v1/projects/pro-ject/zones/us-central1-a/instanceGroupManagers"
    assert "body.name is missing" in wrong_with_request("POST", path, {"targetSize": 1})
    assert list(wrong_in_answer(method("GET", GROUP), {"targetSize": 1})) == []


def test_what_is_wrong_in_an_error() -> None:
    error = {"code": 404, "message": "Not found.", "status": "NOT_FOUND", "errors": []}
    assert list(wrong_in_error(404, {"error": error})) == []
    assert list(wrong_in_error(403, {"error": error})) == ["error.code is 404, HTTP's status 403"]
    assert list(wrong_in_error(404, {"error": error | {"status": "GONE"}})) == [
        "error.status is 'GONE', no name of google.rpc.Code"
    ]
    assert list(wrong_in_error(404, {"error": error | {"reason": "x"}})) == ["error.reason is unknown"]
    assert list(wrong_in_error(404, {"message": "x"})) == ["no object is named error"]

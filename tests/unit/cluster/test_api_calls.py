"""Calls are told by the API's own names for them, with no name of anybody's in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider.cluster.api_calls import (
    ApiCall,
    report_call,
    report_calls_to_aws,
    report_calls_to_google,
    report_kubernetes_call,
    reported_to,
)


@pytest.fixture
def told() -> Any:
    calls: list[ApiCall] = []
    with reported_to(calls.append):
        yield calls


def test_nobody_is_told_after_the_block() -> None:
    calls: list[ApiCall] = []
    with reported_to(calls.append):
        report_call("eks", "DescribeCluster")
    report_call("eks", "DescribeCluster")
    assert calls == [ApiCall(api="eks", operation="DescribeCluster")]


def test_each_try_of_a_client_of_aws_is_told(told: list[ApiCall]) -> None:
    import boto3
    from botocore.config import Config

    session = boto3.session.Session("AKIAEXAMPLE", "secret", region_name="us-west-2")
    report_calls_to_aws(session.events)
    twice = Config(retries={"mode": "standard", "total_max_attempts": 2}, connect_timeout=1)
    client = session.client("eks", endpoint_url="http://127.0.0.1:9", config=twice)
    with pytest.raises(Exception, match="Could not connect"):
        client.describe_cluster(name="k8s-ml")
    assert told == [ApiCall(api="eks", operation="DescribeCluster", error="EndpointConnectionError")] * 2


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/compute/v1/projects/acme/zones/us-central1-a/instances/gke-1", "/compute/v1/projects/-/zones/-/instances/-"),
        (
            "/compute/v1/projects/acme/zones/z/instanceGroupManagers/g/resize?size=1",
            "/compute/v1/projects/-/zones/-/instanceGroupManagers/-/resize",
        ),
        (
            "/v1/projects/acme/locations/l/clusters/c/nodePools/p:setSize",
            "/v1/projects/-/locations/-/clusters/-/nodePools/-:setSize",
        ),
        ("/v1/projects/acme:testIamPermissions", "/v1/projects/-:testIamPermissions"),
    ],
)
def test_a_call_of_google_is_its_path_without_names(told: list[ApiCall], path: str, operation: str) -> None:
    session = SimpleNamespace(hooks={"response": []})
    report_calls_to_google(session)
    answer = {"error": {"status": "PERMISSION_DENIED"}}
    request = SimpleNamespace(method="GET", path_url=path)
    session.hooks["response"][0](SimpleNamespace(request=request, ok=False, status_code=403, json=lambda: answer))
    (call,) = told
    assert (call.operation, call.error) == (f"GET {operation}", "403 PERMISSION_DENIED")


@pytest.mark.parametrize(
    ("status", "answer", "error"),
    [
        (403, {"errors": [{"reason": "rateLimitExceeded"}], "status": "PERMISSION_DENIED"}, "403 rateLimitExceeded"),
        (403, {"details": [{}, {"reason": "RATE_LIMIT_EXCEEDED"}]}, "403 RATE_LIMIT_EXCEEDED"),
        (403, {"errors": [{"reason": "forbidden"}], "status": "PERMISSION_DENIED"}, "403 forbidden"),
        (404, {"errors": [{"reason": "notFound"}], "status": "NOT_FOUND"}, "404 NOT_FOUND"),
        (404, {"errors": [{"reason": "notFound"}]}, "404 notFound"),
        (500, {}, "500"),
    ],
)
def test_a_403_of_google_is_told_by_its_reason(
    told: list[ApiCall], status: int, answer: dict[str, Any], error: str
) -> None:
    session = SimpleNamespace(hooks={"response": []})
    report_calls_to_google(session)
    request = SimpleNamespace(method="GET", path_url="/compute/v1/projects/acme")
    response = SimpleNamespace(request=request, ok=False, status_code=status, json=lambda: {"error": answer})
    session.hooks["response"][0](response)
    assert [call.error for call in told] == [error]


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/api/v1/namespaces/default/pods/train-1/log?container=base", "/api/v1/pods/-/log"),
        ("api/v1/namespaces/default/pods/train-1", "/api/v1/pods/-"),
        ("/api/v1/namespaces/{namespace}/pods/{name}", "/api/v1/pods/-"),
        ("/api/v1/namespaces/acme", "/api/v1/namespaces/-"),
        ("/api/v1/nodes", "/api/v1/nodes"),
        ("/apis/coordination.k8s.io/v1/namespaces/n/leases/demand-1", "/apis/coordination.k8s.io/v1/leases/-"),
        ("/version", "/version"),
    ],
)
def test_a_call_of_kubernetes_is_its_collection(told: list[ApiCall], path: str, operation: str) -> None:
    report_kubernetes_call("GET", path, 200, "OK")
    report_kubernetes_call("GET", path, 403, "Forbidden")
    report_kubernetes_call("GET", path, None)
    assert [each.operation for each in told] == [f"GET {operation}"] * 3
    assert [each.error for each in told] == ["", "403 Forbidden", "no answer"]

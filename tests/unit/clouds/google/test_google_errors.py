"""Google's errors as this package's: by what the answer says, whichever library raised it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth

from airflow_gpu_provider.clouds.answers import has_code
from airflow_gpu_provider.clouds.google.errors import is_worth_a_retry, mapped_errors
from airflow_gpu_provider.clouds.google.node_pools import Operations, Step, error_of, is_busy
from airflow_gpu_provider.errors import (
    CloudError,
    CredentialsError,
    GpuError,
    OutOfStock,
    PermissionDenied,
    QuotaExceeded,
    RequestRejected,
    ServiceDisabled,
)


def answer(code: int, message: str, status: str = "", reason: str = "", info: str = "") -> Exception:
    """What google-api-core makes of an HTTP answer."""
    response = requests.Response()
    response.status_code = code
    response.request = requests.Request("GET", "https://x/y").prepare()
    error: dict[str, Any] = {"code": code, "message": message, "errors": [{"reason": reason}]}
    if info:
        error["details"] = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": info}]
    response._content = json.dumps({"error": error | ({"status": status} if status else {})}).encode()
    made: Exception = api.from_http_response(response)  # type: ignore[no-untyped-call]
    return made


def mapped(error: Exception) -> GpuError:
    with pytest.raises(GpuError) as raised, mapped_errors(call="container.clusters.get", connection="connection 'g'"):
        raise error
    return raised.value


@pytest.mark.parametrize(
    ("error", "type_", "says"),
    [
        (answer(401, "no token"), CredentialsError, "connection 'g'"),
        (auth.RefreshError("invalid_grant: no such account"), CredentialsError, "invalid_grant"),
        (auth.DefaultCredentialsError("nothing found"), CredentialsError, "nothing found"),
        (auth.OAuthError("Error code invalid_grant: stale", "{}"), CredentialsError, "that it exchanges is renewed"),
        (auth.OAuthError("Error code invalid_target: no such provider"), CredentialsError, "no such provider"),
        (auth.OAuthError("Error code temporarily_unavailable"), CloudError, "did not answer"),
        (auth.UserAccessTokenError("no account"), CredentialsError, "no account"),
        (auth.ClientCertError("no certificate"), CredentialsError, "no certificate"),
        (auth.MutualTLSChannelError("no channel"), CredentialsError, "no channel"),
        (auth.RefreshError("Unable to acquire", '{"error": {"code": 503}}'), CloudError, "did not answer"),
        (auth.RefreshError("the metadata server is busy", retryable=True), CloudError, "did not answer"),
        (auth.RefreshError("Permission iam.serviceAccounts.getAccessToken denied"), CredentialsError, "TokenCreator"),
        (auth.TimeoutError("too late"), CloudError, "did not answer"),
        (auth.TransportError("no route"), CloudError, "did not answer"),
        (requests.ConnectionError("refused"), CloudError, "did not answer"),
        (
            answer(403, "Required 'compute.instances.get' permission for 'projects/p'"),
            PermissionDenied,
            "refused compute.instances.get",
        ),
        (
            answer(403, 'Required "container.clusters.update" permission(s) for "projects/p".'),
            PermissionDenied,
            "refused container.clusters.update",
        ),
        (answer(403, "You shall not pass"), PermissionDenied, "refused container.clusters.get"),
        (
            answer(403, "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 1.0", reason="quotaExceeded"),
            QuotaExceeded,
            "NVIDIA_L4",
        ),
        (answer(429, "slow down", "RESOURCE_EXHAUSTED"), CloudError, "throttled"),
        (
            answer(
                429,
                'Reservation does not have enough resources for the request: specific reservation "h100"'
                ' is insufficient for node pool "a": required 1 and short of 1 VM count.',
                "RESOURCE_EXHAUSTED",
            ),
            OutOfStock,
            "name another one",
        ),
        (answer(429, 'reservation "a" is fully used', "RESOURCE_EXHAUSTED"), OutOfStock, "in the reservation"),
        (answer(404, 'Google Compute Engine: reservation "h100" not found for node pool "a"'), RequestRejected, "h100"),
        (
            answer(404, "Google Compute Engine: The resource 'projects/p/global/networks/x' was not found"),
            RequestRejected,
            "what it names is not there",
        ),
        (answer(404, "Not found: projects/p/locations/us-central1/clusters/ml."), CloudError, "failed"),
        (
            answer(403, "Quota exceeded for quota group 'ReadGroup'", reason="rateLimitExceeded"),
            CloudError,
            "throttled",
        ),
        (answer(403, "slow down", "PERMISSION_DENIED", info="RATE_LIMIT_EXCEEDED"), CloudError, "throttled"),
        (
            answer(403, "Quota exceeded", reason="CONCURRENT_OPERATIONS_QUOTA_EXCEEDED"),
            CloudError,
            "throttled",
        ),
        (
            answer(403, "Compute Engine API has not been used in project 1 before", info="SERVICE_DISABLED"),
            ServiceDisabled,
            "gcloud services enable",
        ),
        (answer(403, "Access Not Configured", reason="accessNotConfigured"), ServiceDisabled, "not enabled"),
        (answer(403, "Rate Limit Exceeded", info="CONCURRENT_OPERATIONS_QUOTA_EXCEEDED"), CloudError, "throttled"),
        (
            answer(
                403, "Quota exceeded for quota group 'ReadGroup' and limit 'Read requests per user per 100 seconds' of"
            ),
            CloudError,
            "throttled",
        ),
        (answer(403, "Daily Limit Exceeded", reason="dailyLimitExceeded"), QuotaExceeded, "over a quota"),
        (
            answer(403, "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: x1y2"),
            PermissionDenied,
            "VPC Service Controls",
        ),
        (answer(403, "No", "PERMISSION_DENIED", info="SECURITY_POLICY_VIOLATED"), PermissionDenied, "ingress rule"),
        (
            answer(403, "Request had insufficient authentication scopes.", info="ACCESS_TOKEN_SCOPE_INSUFFICIENT"),
            PermissionDenied,
            "auth/cloud-platform",
        ),
        (
            answer(403, "Kubernetes Engine API has not been used in project 1 before or it is disabled. Enable it by"),
            ServiceDisabled,
            "not enabled",
        ),
        (answer(403, "No", info="BILLING_DISABLED"), ServiceDisabled, "no billing account"),
        (answer(400, "Invalid value for field 'x'", "INVALID_ARGUMENT"), RequestRejected, "field 'x'"),
        (answer(409, "it is there", "ALREADY_EXISTS"), CloudError, "ALREADY_EXISTS"),
        (answer(404, "no such cluster"), CloudError, "NOT_FOUND: no such cluster"),
        (answer(503, "later"), CloudError, "HTTP_503"),
        (api.RetryError("too long", answer(503, "later")), CloudError, "HTTP_503: later"),
    ],
)
def test_each_answer_has_its_type(error: Exception, type_: type[GpuError], says: str) -> None:
    found = mapped(error)
    assert type(found) is type_
    assert says in str(found)
    assert GpuError.from_record(found.to_record()).details == found.details


@pytest.mark.parametrize(
    ("error", "is_tried_again"),
    [
        (answer(403, "Rate Limit Exceeded", reason="rateLimitExceeded"), True),
        (answer(403, "Rate Limit Exceeded", info="CONCURRENT_OPERATIONS_QUOTA_EXCEEDED"), True),
        (answer(403, "Required 'compute.instances.get' permission for 'projects/p'", reason="forbidden"), False),
        (answer(403, "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 1.0", reason="quotaExceeded"), False),
        (answer(429, "slow down", "RESOURCE_EXHAUSTED"), True),
        (answer(503, "later"), True),
        (answer(404, "no such cluster"), False),
        (requests.ConnectionError("refused"), True),
    ],
)
def test_what_passes_is_tried_again(error: Exception, is_tried_again: bool) -> None:
    assert is_worth_a_retry(error) is is_tried_again


def test_a_refusal_that_no_permission_changes_says_to_grant_none() -> None:
    for info in ("SECURITY_POLICY_VIOLATED", "ACCESS_TOKEN_SCOPE_INSUFFICIENT", "SERVICE_DISABLED", "BILLING_DISABLED"):
        found = mapped(answer(403, "No", "PERMISSION_DENIED", info=info))
        assert not found.retryable
        assert "Grant" not in str(found)


def test_an_operation_in_the_way_is_told_from_other_refusals() -> None:
    busy = "Cluster is running incompatible operation operation-1."
    assert is_busy(mapped(answer(400, busy, "FAILED_PRECONDITION")))
    assert is_busy(mapped(answer(400, busy, reason="failedPrecondition")))
    state = "Cluster is currently being created, deleted, updated or repaired and cannot be updated."
    assert is_busy(mapped(answer(400, state, "FAILED_PRECONDITION", reason="failedPrecondition")))
    assert is_busy(mapped(answer(400, "Try again", "FAILED_PRECONDITION", info="CLUSTER_ALREADY_HAS_OPERATION")))
    deleting = "Operation operation-1-2f is currently deleting a node pool for cluster c. Please wait and try again."
    assert is_busy(mapped(answer(400, deleting, reason="failedPrecondition")))
    many = 'Too many operations: cluster "c" hits the concurrent operations quota 5, please try again later.'
    assert is_busy(mapped(answer(429, many, "RESOURCE_EXHAUSTED")))
    assert not is_busy(mapped(answer(429, "slow down", "RESOURCE_EXHAUSTED")))
    assert not is_busy(mapped(answer(400, "Node pool is in ERROR", "FAILED_PRECONDITION")))
    final = "The operation is not allowed: the node pool is managed by Config Controller."
    assert not is_busy(mapped(answer(400, final, "FAILED_PRECONDITION")))
    assert not is_busy(mapped(answer(400, "Node pool has no such field", "INVALID_ARGUMENT")))
    assert has_code(mapped(answer(400, "bad")), "INVALID_ARGUMENT")


def test_a_group_that_is_refused_leaves_the_others_theirs() -> None:
    def refused() -> None:
        raise CloudError("Node pool a cannot be changed.", status="FAILED_PRECONDITION", message="It is in ERROR")

    taken: list[str] = []
    steps = [
        Step(group="a", doing="update a", start=refused),
        Step(group="a", doing="update a again", start=lambda: taken.append("a again")),
        Step(group="b", doing="update b", start=lambda: taken.append("b")),
    ]
    gke: Any = None
    failed = Operations(gke, "projects/p/locations/l", "c").run(steps, print)
    assert {group: str(error) for group, error in failed.items()} == {"a": "Node pool a cannot be changed."}
    assert taken == ["b"]


class _Gke:
    """Answers list_operations with these, or refuses it."""

    def __init__(self, *operations: dict[str, Any]) -> None:
        self.operations = operations

    def call(self, method: str, *, permission: str, **_: Any) -> dict[str, Any]:
        assert method == "list_operations"
        if not self.operations:
            raise PermissionDenied("No.", "Grant it.", permission=permission)
        return {"operations": self.operations}


def _under_way(name: str, kind: str, target: str) -> dict[str, Any]:
    link = f"https://container.googleapis.com/v1/projects/p/locations/l/clusters/{target}"
    return {
        "name": name,
        "operation_type": kind,
        "status": "RUNNING",
        "target_link": link,
        "start_time": "2026-03-01T02:00:00Z",
    }


UPGRADE = _under_way("operation-1", "UPGRADE_MASTER", "c")
NODES = _under_way("operation-2", "UPGRADE_NODES", "c/nodePools/other")
RUNNING = "Cluster is running incompatible operation operation-2."
STATE = "Cluster is currently being created, deleted, updated or repaired and cannot be updated."


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (STATE, "operation-1, UPGRADE_MASTER since 2026-03-01 02:00Z"),
        (RUNNING, "operation-2, UPGRADE_NODES since 2026-03-01 02:00Z"),
    ],
)
def test_a_wait_for_others_operations_says_which_it_is(
    refusal: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_gpu_provider.clouds.google.node_pools.PATIENCE", -1)

    def busy() -> None:
        raise CloudError(f"It failed ({refusal}).", status="FAILED_PRECONDITION", message=refusal)

    def run(*operations: dict[str, Any]) -> tuple[str, str]:
        gke: Any = _Gke(*operations)
        lines: list[str] = []
        steps = [Step(group="a", doing="create a", start=busy)]
        failed = Operations(gke, "projects/p/locations/l", "c").run(steps, lines.append)
        return lines[0], str(failed["a"])

    elsewhere = _under_way("operation-3", "UPGRADE_MASTER", "d")
    said, error = run(UPGRADE, NODES, elsewhere)
    assert said == f"create a waits: {refusal} ({told})"
    assert f"create a. It waited for {told}." in error
    said, error = run()
    assert said == f"create a waits: {refusal}"
    assert "It waited for" not in error


@pytest.mark.parametrize(
    ("operation", "type_"),
    [
        ({"status": "DONE", "error": {"code": 0, "message": ""}, "nodepool_conditions": []}, None),
        ({"status": "DONE"}, None),
        (
            {
                "status": "DONE",
                "error": {"code": 8, "message": "Not all instances running"},
                "nodepool_conditions": [{"code": "GCE_STOCKOUT", "message": "Not all instances running"}],
            },
            OutOfStock,
        ),
        ({"status": "DONE", "nodepool_conditions": [{"code": "GCE_QUOTA_EXCEEDED", "message": "m"}]}, QuotaExceeded),
        (
            {"status": "DONE", "nodepool_conditions": [{"code": "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED"}]},
            CloudError,
        ),
        ({"status": "DONE", "error": {"code": 3, "message": "Bad subnet"}}, CloudError),
    ],
)
def test_an_operation_that_is_done_may_have_failed(operation: dict[str, Any], type_: type[GpuError] | None) -> None:
    error = error_of(operation, doing="create train-a")
    assert (type(error) if error else None) is type_
    assert error is None or "create train-a" in str(error)

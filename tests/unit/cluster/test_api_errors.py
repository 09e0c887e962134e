"""Every error of the Kubernetes client becomes one of this package's."""

from __future__ import annotations

import json

import pytest
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError, MaxRetryError, ProtocolError, ReadTimeoutError

from airflow_gpu_provider.cluster.api_errors import ObjectChanged, ObjectNotFound, mapped
from airflow_gpu_provider.errors import CloudError, ClusterUnreachable, CredentialsError, GpuError, PermissionDenied


def answer(status: int | None, message: str = "the server's words") -> ApiException:
    error = ApiException(status=status, reason="reason")
    error.body = json.dumps({"kind": "Status", "message": message})
    return error


def what(error: Exception) -> GpuError:
    with pytest.raises(GpuError) as raised, mapped("patch", "nodes"):
        raise error
    assert raised.value.__cause__ is error
    return raised.value


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, CloudError),
        (401, CredentialsError),
        (403, PermissionDenied),
        (404, ObjectNotFound),
        (409, ObjectChanged),
        (422, CloudError),
        (429, ClusterUnreachable),
        (500, ClusterUnreachable),
        (503, ClusterUnreachable),
        (0, ClusterUnreachable),
        (None, ClusterUnreachable),
    ],
)
def test_statuses(status: int | None, kind: type[GpuError]) -> None:
    error = what(answer(status))
    assert type(error) is kind
    assert "the server's words" in str(error)


def test_a_refusal_names_what_to_grant() -> None:
    assert 'resources ["nodes"], verbs ["patch"]' in what(answer(403)).fix


@pytest.mark.parametrize(
    "error",
    [
        MaxRetryError(None, "/api"),  # type: ignore[arg-type]
        ProtocolError("aborted"),
        ReadTimeoutError(None, "/api", "timed out"),  # type: ignore[arg-type]
        HTTPError("other"),
        ConnectionResetError("reset"),
        TimeoutError("slow"),
    ],
)
def test_a_server_that_cannot_be_reached(error: Exception) -> None:
    assert type(what(error)) is ClusterUnreachable
    assert "(patch nodes)" in str(what(error))


@pytest.mark.parametrize("body", ["not json", b'{"message": "bytes"}', "", None])
def test_bodies_that_are_not_a_status(body: str | bytes | None) -> None:
    error = answer(500)
    error.body = body
    assert "500" in str(what(error))


def test_what_is_no_error_of_the_api_is_left_alone() -> None:
    with pytest.raises(ZeroDivisionError), mapped("get", "pods"):
        raise ZeroDivisionError

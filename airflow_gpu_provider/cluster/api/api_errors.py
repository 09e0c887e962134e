"""The errors that Kubernetes clients raise, as this package's own (`refusals`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.cluster.api.connection_errors import failure_in_words
from airflow_gpu_provider.cluster.model.refusals import refusal
from airflow_gpu_provider.errors import (
    ClusterUnreachable,
    GpuError,
)

if TYPE_CHECKING:
    from kubernetes.client.exceptions import ApiException


@contextmanager
def mapped(verb: str, resource: str) -> Iterator[None]:
    """Turn what a Kubernetes client raises into this package's errors.

    `verb` and `resource` are RBAC's words ("patch", "nodes"): they are what a missing permission is called. What the
    server has answered is in the error's words: the client's own error, with its headers and frames, is not in a log.
    """
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        raise from_status(error, verb, resource) from (None if error.status else error)
    except (HTTPError, OSError) as error:
        raise ClusterUnreachable(
            f"The Kubernetes API server did not answer ({verb} {resource}): {failure_in_words(error)}.",
            "Check that the worker can reach the cluster's endpoint; the next try may find it back.",
        ) from error


def from_status(error: ApiException, verb: str, resource: str) -> GpuError:
    """Return the error that a client's exception means; the server's own words are kept in the message."""
    return refusal(error.status or 0, _status_of(error.body, error.reason), verb, resource)


def _status_of(body: Any, reason: str | None) -> Mapping[str, Any]:
    """Return an answer's body as a Status, whatever it is."""
    if isinstance(body, bytes):
        body = body.decode(errors="replace")
    try:
        status = json.loads(body or "{}")
    except ValueError:
        return {"message": body}
    status = status if isinstance(status, dict) else {"message": body}
    return status if status.get("message") else {**status, "message": reason}

"""What a Kubernetes client's errors become: one of `errors.py`'s types, mapped in this one place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import CloudError, ClusterUnreachable, CredentialsError, GpuError, PermissionDenied

if TYPE_CHECKING:
    from kubernetes.client.exceptions import ApiException


class ObjectNotFound(CloudError):
    """The object that a request names does not exist (404)."""


class ObjectChanged(CloudError):
    """Somebody else created or changed the object first (409): read it again and decide anew."""


@contextmanager
def mapped(verb: str, resource: str) -> Iterator[None]:
    """Turn what a Kubernetes client raises into this package's errors.

    `verb` and `resource` are RBAC's words ("patch", "nodes"): they are what a missing permission is called.
    """
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        raise from_status(error, verb, resource) from error
    except (HTTPError, OSError) as error:
        raise ClusterUnreachable(
            f"The Kubernetes API server did not answer ({verb} {resource}): {error}.",
            "Check that the worker can reach the cluster's endpoint; the next try may find it back.",
        ) from error


def from_status(error: ApiException, verb: str, resource: str) -> GpuError:
    """Return the error that an HTTP status means; the server's own words are kept in the message."""
    said = _message(error)
    details = {"status": error.status, "verb": verb, "resource": resource}
    if error.status == 401:
        return CredentialsError(
            f"The cluster does not accept the credentials of the Airflow connection ({verb} {resource}): {said}",
            "Check the connection, and that its identity has an access entry in the cluster.",
            **details,
        )
    if error.status == 403:
        return PermissionDenied(
            f"The cluster does not allow to {verb} {resource}: {said}",
            f'Grant it: resources ["{resource}"], verbs ["{verb}"]; docs/rbac/ has all roles that are needed.',
            **details,
        )
    if error.status == 404:
        return ObjectNotFound(f"Cannot {verb} {resource}: {said}", **details)
    if error.status == 409:
        return ObjectChanged(f"Cannot {verb} {resource}: {said}", **details)
    if error.status is None or error.status == 0 or error.status == 429 or error.status >= 500:
        return ClusterUnreachable(
            f"The Kubernetes API server could not {verb} {resource} ({error.status}): {said}",
            "Nothing was decided on it; try again.",
            **details,
        )
    return CloudError(f"The Kubernetes API server refused to {verb} {resource} ({error.status}): {said}", **details)


def _message(error: ApiException) -> str:
    body: Any = error.body
    if isinstance(body, bytes):
        body = body.decode(errors="replace")
    try:
        text = json.loads(body or "{}").get("message") or error.reason
    except ValueError:
        text = body
    return f"{str(text).rstrip('.')}."

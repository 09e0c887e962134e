"""What the credentials may do in a cluster: the API server is asked, as by `kubectl auth can-i`.

Every identity may ask about itself. The answer is that of the authorizers: an admission policy may still refuse.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.rest import call

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_EXEC_IS_CREATE = (1, 35)
"""The release from which an exec by a WebSocket needs the verb create besides get (kubernetes/kubernetes#134577)."""


def is_allowed(
    api: ApiClient, verb: str, resource: str, *, group: str = "", namespace: str = "", name: str = ""
) -> bool:
    """Return whether the credentials may do this; `resource` may have a subresource: "pods/exec".

    Raises:
        GpuError: The API server does not say.
    """
    resource, _, subresource = resource.partition("/")
    asked = {
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "verb": verb,
        "namespace": namespace,
        "name": name,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: value for key, value in asked.items() if value}},
    }
    answer = call(api, "create", _REVIEWS, resource="selfsubjectaccessreviews", body=body)
    return bool(answer["status"]["allowed"])


def verbs_missing_for_exec(api: ApiClient, namespace: str) -> tuple[str, ...]:
    """Return the verbs on pods/exec that are not allowed, and that running a command in a pod there needs.

    Raises:
        GpuError: The API server does not say.
    """
    refused = [verb for verb in ("get", "create") if not is_allowed(api, verb, "pods/exec", namespace=namespace)]
    if refused == ["create"] and _version(api) < _EXEC_IS_CREATE:
        return ()
    return tuple(refused)


def _version(api: ApiClient) -> tuple[int, ...]:
    version = call(api, "get", "/version", resource="version")
    numbers = [re.match(r"\d*", version.get(part) or "") for part in ("major", "minor")]  # GKE's and EKS' minor: "35+"
    return tuple(int(number[0] or 0) if number else 0 for number in numbers)

"""What the credentials may do in a cluster: the API server is asked, as by `kubectl auth can-i`.

Every identity may ask about itself. The answer is that of the authorizers: an admission policy may still refuse.
Whether pods may be created in a namespace, a dry run tells, which changes nothing: the permission to create pods there
is enough for that; to read the namespace would be one more, in all of the cluster.
"""

from __future__ import annotations

import re

from airflow_gpu_provider.cluster.api.code_requests import CODE_VERBS
from airflow_gpu_provider.cluster.api.rest import ApiClient, call
from airflow_gpu_provider.errors import GpuError, NamespaceTerminating, PermissionDenied, ReferenceNotFound

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_EXEC_IS_CREATE = (1, 35)
"""The release from which an exec by a WebSocket needs the verb create besides get (kubernetes/kubernetes#134577)."""

_NUMBER = re.compile(r"\d*")


def is_allowed(
    api: ApiClient, verb: str, resource: str, *, group: str = "", namespace: str = "", name: str = ""
) -> bool:
    """Return whether the credentials may do this; `resource` may have a subresource: "pods/exec"."""
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
    """Return the verbs on pods/exec that are not allowed, and that running a command in a pod there needs."""
    refused = [verb for verb in ("get", "create") if not is_allowed(api, verb, "pods/exec", namespace=namespace)]
    if refused == ["create"] and _version(api) < _EXEC_IS_CREATE:
        return ()
    return tuple(refused)


def check_code_is_writable(api: ApiClient, namespace: str) -> None:
    """Raise PermissionDenied if the ConfigMaps with a task's code may not be read, created and deleted there."""
    verbs = [verb for verb in CODE_VERBS if not is_allowed(api, verb, "configmaps", namespace=namespace)]
    if verbs:
        raise PermissionDenied(
            f"The cluster denies permission to {' and '.join(verbs)} configmaps in namespace {namespace}, in which the"
            " code of a training would be.",
            "Bind docs/rbac/code.yaml there, or leave out code=.",
            resource="configmaps",
            namespace=namespace,
        )


def _version(api: ApiClient) -> tuple[int, ...]:
    version = call(api, "get", "/version", resource="version")
    numbers = [_NUMBER.match(version.get(part) or "") for part in ("major", "minor")]  # GKE's and EKS' minor: "35+"
    return tuple(int(number[0] or 0) if number else 0 for number in numbers)


_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "airflow-gpu-provider-dry-run"},
    "spec": {"containers": [{"name": "none", "image": "none"}]},
}


def check_namespace(api: ApiClient, name: str, *, creates_pods: bool) -> None:
    """Raise if no pod can be created there, whatever the pod: what else is refused is this one's own.

    Args:
        creates_pods: Whether the caller is going to create pods, and not a Job, say, whose controller does.

    Raises:
        ReferenceNotFound: There is no such namespace.
        NamespaceTerminating: It is being deleted.
        PermissionDenied: The caller may not create its pods there. Where permissions are given for single namespaces,
            one that does not exist is refused so, too: Kubernetes asks for the permission first.
    """
    path = f"/api/v1/namespaces/{name}/pods"
    try:
        call(api, "create", path, resource="pods", query={"dryRun": "All"}, body=_POD)
    except NamespaceTerminating:
        raise
    except GpuError as error:
        is_missing = isinstance(error, ReferenceNotFound) and error.details.get("missing") == "namespace"
        if is_missing or (creates_pods and isinstance(error, PermissionDenied)):
            raise

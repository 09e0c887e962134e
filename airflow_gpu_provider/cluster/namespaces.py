"""Whether pods may be created in a namespace: the API server is asked by a dry run, which changes nothing.

The permission to create pods there is enough for that; to read the namespace would be one more, in all of the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.rest import call
from airflow_gpu_provider.errors import GpuError, NamespaceTerminating, PermissionDenied, ReferenceNotFound

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "airflow-gpu-provider-dry-run"},
    "spec": {"containers": [{"name": "none", "image": "none"}]},
}


def check_namespace(api: ApiClient, name: str, *, creates_pods: bool) -> None:
    """Raise if no pod can be created there, whatever the pod: what else is refused is this one's own.

    Args:
        api: The cluster.
        name: The namespace.
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

"""Server-side apply: say what should be there, and learn whether anything changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.rest import APPLY_PATCH, call

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

Applied = Literal["created", "configured", "unchanged"]

_CLUSTER_WIDE = {"Namespace", "ClusterRole", "ClusterRoleBinding", "RuntimeClass", "PriorityClass", "Node"}


def server_side_apply(
    api: ApiClient, manifest: dict[str, Any], *, dry_run: bool = False, force: bool = True
) -> Applied:
    """Apply one object, and return kubectl's word for what happened.

    Args:
        dry_run: The server validates and answers, and stores nothing.
        force: Take over fields that another manager set; without it such a field is an ObjectChanged error.
    """
    path, resource = object_path(manifest), _plural(manifest)
    try:
        before = call(api, "get", path, resource=resource)["metadata"]["resourceVersion"]
    except ObjectNotFound:
        before = None
    query = {"fieldManager": "airflow-gpu-provider", "force": str(force).lower()}
    if dry_run:
        query["dryRun"] = "All"
    after = call(api, "patch", path, resource=resource, query=query, body=manifest, content_type=APPLY_PATCH)
    if before is None:
        return "created"
    return "unchanged" if after["metadata"]["resourceVersion"] == before else "configured"


def object_path(manifest: dict[str, Any]) -> str:
    """Return the URL path of the object that a manifest describes."""
    version, meta = manifest["apiVersion"], manifest["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    scope = "" if manifest["kind"] in _CLUSTER_WIDE else f"/namespaces/{meta.get('namespace', 'default')}"
    return f"{root}{scope}/{_plural(manifest)}/{meta['name']}"


def _plural(manifest: dict[str, Any]) -> str:
    kind: str = manifest["kind"].lower()
    if kind.endswith("s"):
        return f"{kind}es"
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"

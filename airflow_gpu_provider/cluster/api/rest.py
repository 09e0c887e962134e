"""One request to a Kubernetes API server: raw JSON in, raw JSON out, errors mapped.

The generated client's models cost milliseconds an object; lists of pods and nodes are read as plain JSON instead.
No request sets resourceVersion on a read: every read is a quorum read, for decisions are made on it.

`server_side_apply` writes what should be there, and tells whether anything changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

from airflow_gpu_provider import __version__
from airflow_gpu_provider.cluster.api.api_errors import mapped
from airflow_gpu_provider.cluster.model.refusals import ObjectChanged, ObjectNotFound

if TYPE_CHECKING:
    from kubernetes.client import ApiClient as ApiClient
else:  # the client takes a second to import, which an annotation is not worth
    ApiClient = Any

TIMEOUT = (5.0, 30.0)
"""Seconds to connect, and between two bytes of the answer."""

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

STRICT = {"fieldValidation": "Strict"}
"""The query of a write, by which a server refuses unknown and duplicate fields instead of dropping them.

Kubernetes 1.27 and newer does; older ones pass over it (kubernetes.io/docs/reference/using-api/api-concepts).
"""

USER_AGENT = f"airflow-gpu-provider/{__version__}"
"""What an API server's audit log calls this package."""

_METHODS = {"get": "GET", "list": "GET", "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
_PAGE = 500


def query_of(http_method: str) -> dict[str, str]:
    """Return what every request of this HTTP method has in its query."""
    return STRICT if http_method in ("POST", "PUT", "PATCH") else {}


@cache
def as_json() -> dict[str, Any]:
    """Return the argument of `call_api` that asks for plain JSON, which has another name before version 36."""
    from kubernetes.client import ApiClient as Client

    if "response_type" in inspect.signature(Client.call_api).parameters:
        return {"response_type": "object"}
    return {"response_types_map": dict.fromkeys((200, 201, 202), "object")}


def call(
    api: ApiClient,
    verb: str,
    path: str,
    *,
    resource: str,
    query: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
    content_type: str = "",
) -> dict[str, Any]:
    """Make one request; `verb` and `resource` are RBAC's words. A patch is a merge patch, unless its type is given.

    Raises:
        GpuError: One of the types that `api_errors` maps to; ObjectNotFound for 404, ObjectChanged for 409.
    """
    content_type = content_type or (MERGE_PATCH if verb == "patch" else "application/json")
    with mapped(verb, resource):
        answer = api.call_api(
            path,
            _METHODS[verb],
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            **as_json(),
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            _request_timeout=TIMEOUT,
        )
    return cast("dict[str, Any]", answer)


def find(api: ApiClient, path: str, *, resource: str) -> dict[str, Any] | None:
    """Return one object; None where there is none, or its kind is not known."""
    try:
        return call(api, "get", path, resource=resource)
    except ObjectNotFound:
        return None


def delete(api: ApiClient, path: str, *, resource: str, uid: str = "", with_dependents: bool = False) -> bool:
    """Delete one object, with what it owns or not; False where it is gone, or another one than `uid` has its name."""
    body: dict[str, Any] = {"preconditions": {"uid": uid}} if uid else {}
    if with_dependents:
        body["propagationPolicy"] = "Background"
    try:
        call(api, "delete", path, resource=resource, body=body or None)
    except (ObjectNotFound, ObjectChanged):
        return False
    return True


def label_selector(labels: Mapping[str, str]) -> str:
    """Return the selector of objects that carry every one of these labels."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def list_items(api: ApiClient, path: str, *, resource: str, **selectors: str) -> list[dict[str, Any]]:
    """Return all items of a list; all show the moment of the first page."""
    return [item for page in list_pages(api, path, resource=resource, **selectors) for item in page]


def list_pages(api: ApiClient, path: str, *, resource: str, **selectors: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the items of a list, page by page, as they come; all pages show the moment of the first."""
    query = {**selectors, "limit": str(_PAGE)}
    while True:
        page = call(api, "list", path, resource=resource, query=query)
        yield page.get("items") or []
        token = page.get("metadata", {}).get("continue")
        if not token:
            return
        query["continue"] = token


def count_items(api: ApiClient, path: str, *, resource: str) -> int | None:
    """Return how many objects there are, in one small answer; None where the server does not say."""
    page = call(api, "list", path, resource=resource, query={"limit": "1"})
    metadata, seen = page.get("metadata", {}), len(page.get("items") or [])
    if not metadata.get("continue"):
        return seen
    left = metadata.get("remainingItemCount")
    return None if left is None else seen + int(left)


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
    before = find(api, path, resource=resource)
    query = {"fieldManager": "airflow-gpu-provider", "force": str(force).lower()}
    if dry_run:
        query["dryRun"] = "All"
    after = call(api, "patch", path, resource=resource, query=query, body=manifest, content_type=APPLY_PATCH)
    if before is None:
        return "created"
    is_same = after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    return "unchanged" if is_same else "configured"


def object_path(manifest: dict[str, Any]) -> str:
    version, meta = manifest["apiVersion"], manifest["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    scope = "" if manifest["kind"] in _CLUSTER_WIDE else f"/namespaces/{meta.get('namespace', 'default')}"
    return f"{root}{scope}/{_plural(manifest)}/{meta['name']}"


def _plural(manifest: dict[str, Any]) -> str:
    kind: str = manifest["kind"].lower()
    if kind.endswith("s"):
        return f"{kind}es"
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"

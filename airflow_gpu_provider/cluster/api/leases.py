"""Requests about the Leases of this package (`lease`): they are read, written if unchanged, deleted.

By compare-and-swap any Kubernetes object is written as it was read, and read again where somebody else was first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random

from airflow_gpu_provider.cluster.api.rest import ApiClient, call, find
from airflow_gpu_provider.cluster.api.shared_lists import Wanted, has_labels, shared_items
from airflow_gpu_provider.cluster.model.lease import DEMAND_NAMESPACE, KIND_LABEL, LEASES, PART_OF
from airflow_gpu_provider.cluster.model.refusals import ObjectChanged, ObjectNotFound
from airflow_gpu_provider.errors import ReferenceNotFound
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL

_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
"""Only prefetches have pods there; who may write DaemonSets there gets no node by that ("Pod Security Standards")."""


def list_leases(api: ApiClient, kind: str, pool_name: str | None = None, *, shared: str = "") -> list[dict[str, Any]]:
    """Return the Leases of one kind, of a pool or of all; `shared` as in `shared_items`."""
    all_pools = f"{KIND_LABEL}={kind}"
    own = f"{all_pools},{POOL_LABEL}={pool_name}" if pool_name else all_pools
    wanted = Wanted(
        path=LEASES,
        resource="leases",
        own={"labelSelector": own},
        wide={"labelSelector": all_pools},
        is_own=lambda raw: not pool_name or has_labels(raw, {POOL_LABEL: pool_name}),
    )
    return shared_items(shared, api, wanted)


def read_lease(api: ApiClient, name: str) -> dict[str, Any] | None:
    return find(api, f"{LEASES}/{name}", resource="leases")


def put_lease(api: ApiClient, manifest: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
    """Create a Lease, or replace it if it is as it was read; raises ObjectChanged if somebody else was first."""
    if before is None:
        return create_lease(api, manifest)
    metadata = {**manifest["metadata"], "resourceVersion": before["metadata"]["resourceVersion"]}
    path = f"{LEASES}/{metadata['name']}"
    try:
        return call(api, "update", path, resource="leases", body={**manifest, "metadata": metadata})
    except ObjectNotFound as error:
        raise ObjectChanged(f"Lease {DEMAND_NAMESPACE}/{metadata['name']} was deleted meanwhile.") from error


def delete_lease(api: ApiClient, name: str) -> bool:
    """Delete a Lease; False where there is none."""
    try:
        call(api, "delete", f"{LEASES}/{name}", resource="leases")
    except ObjectNotFound:
        return False
    return True


def create_lease(api: ApiClient, manifest: dict[str, Any]) -> dict[str, Any]:
    """Create a Lease, and its namespace where that is missing; raises ObjectChanged if the Lease exists."""
    try:
        return call(api, "create", LEASES, resource="leases", body=manifest)
    except ReferenceNotFound:
        namespace = {"metadata": {"name": DEMAND_NAMESPACE, "labels": {**PART_OF, **_RESTRICTED}}}
        call(api, "create", "/api/v1/namespaces", resource="namespaces", body=namespace)
    return call(api, "create", LEASES, resource="leases", body=manifest)


# A node's status is written every few seconds while it boots, and each write is a conflict.
_TRIES = 8
_PAUSE = wait_random(0.05, 0.4)  # seconds; random, for those who conflicted not to meet again

_R = TypeVar("_R")
_T = TypeVar("_T")


def update(
    read: Callable[[], _R],
    write: Callable[[_R], _T],
    *,
    known: _R | None = None,
) -> _T:
    """Write what follows from an object as it is now, and return what `write` returns.

    Args:
        write: Decides by what was read, and writes with its resourceVersion, or nothing; raises ObjectChanged where
            somebody else was first.
        known: The object as the caller has read it; the first try spares its own read.

    Raises:
        ObjectChanged: Somebody else was first each time; it is the last try's error.
    """
    first = [] if known is None else [known]
    is_conflict = retry_if_exception_type(ObjectChanged)
    retrying = Retrying(retry=is_conflict, stop=stop_after_attempt(_TRIES), wait=_PAUSE, reraise=True)
    return retrying(lambda: write(first.pop() if first else read()))

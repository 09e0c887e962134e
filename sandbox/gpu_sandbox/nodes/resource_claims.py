"""ResourceClaims of a pod: no DRA driver runs on a process node, so what one would have to prepare cannot be prepared.

As the kubelet's pkg/kubelet/cm/dra does before it makes a pod's sandbox, in the same words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpu_sandbox.nodes.api import Api
from gpu_sandbox.nodes.errors import ApiError, NodeAgentError


class ClaimNotPrepared(NodeAgentError):
    """The devices of a pod's ResourceClaim cannot be had on this node; the message is the kubelet's."""


async def prepare(api: Api, pod: Mapping[str, Any]) -> None:
    """Return if no claim of the pod needs a driver. Raises ClaimNotPrepared."""
    for name in _names(pod):
        claim = await _read(api, pod, name)
        _check_reserved(claim, pod)
        allocation = (claim.get("status") or {}).get("allocation")
        if allocation is None:
            raise _not_prepared(f"ResourceClaim {name}: not allocated")
        for result in (allocation.get("devices") or {}).get("results") or ():
            raise _not_prepared(f"DRA driver {result['driver']} is not registered")


def _names(pod: Mapping[str, Any]) -> Iterator[str]:
    status = pod.get("status") or {}
    made = {one["name"]: one.get("resourceClaimName") for one in status.get("resourceClaimStatuses") or ()}
    for claim in pod["spec"].get("resourceClaims") or ():
        if named := claim.get("resourceClaimName"):
            yield named
        elif claim["name"] not in made:
            title = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            raise _not_prepared(f'pod "{title}": ResourceClaim not created yet')
        elif generated := made[claim["name"]]:
            yield generated
    # What a pod asks for as an extended resource, and a DeviceClass offers under its name.
    if extended := status.get("extendedResourceClaimStatus"):
        yield extended["resourceClaimName"]


async def _read(api: Api, pod: Mapping[str, Any], name: str) -> dict[str, Any]:
    namespace = pod["metadata"]["namespace"]
    try:
        return await api.get(f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}")
    except ApiError as error:
        raise _not_prepared(f"fetch ResourceClaim {name}: {error}") from error


def _check_reserved(claim: Mapping[str, Any], pod: Mapping[str, Any]) -> None:
    metadata = pod["metadata"]
    reserved = (claim.get("status") or {}).get("reservedFor") or ()
    if not any(one["uid"] == metadata["uid"] for one in reserved):
        mine = f"{claim['metadata']['name']} ({claim['metadata']['uid']})"
        raise _not_prepared(f"pod {metadata['name']} ({metadata['uid']}) is not allowed to use ResourceClaim {mine}")


def _not_prepared(problem: str) -> ClaimNotPrepared:
    return ClaimNotPrepared(f"Failed to prepare dynamic resources: prepare dynamic resources: {problem}")

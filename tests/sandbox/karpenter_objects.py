"""Karpenter's own kinds of object in the sandbox's cluster, and those of them that its users make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import eventually

GROUP, EC2_GROUP = "karpenter.sh", "karpenter.k8s.aws"
MERGE = {"_content_type": "application/merge-patch+json"}  # custom resources know no strategic merge patch
READY = {"type": "Ready", "status": "True", "reason": "Ready", "message": ""}

_ANYTHING: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_REQUIREMENTS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["key", "operator"],
        "properties": {
            "key": {"type": "string"},
            "operator": {"enum": ["Gte", "Lte", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"], "type": "string"},
            "values": {"type": "array", "items": {"type": "string"}},
            "minValues": {"type": "integer"},
        },
    },
}
_MACHINE = {**_ANYTHING, "required": ["nodeClassRef", "requirements"], "properties": {"requirements": _REQUIREMENTS}}
_TEMPLATE = {**_ANYTHING, "required": ["spec"], "properties": {"spec": _MACHINE}}
_POOL = {**_ANYTHING, "required": ["template"], "properties": {"template": _TEMPLATE}}
# By pkg/apis/crds of kubernetes-sigs/karpenter, as far as this package reads it; status is a resource of its own.
_KINDS = (
    ("NodePool", GROUP, "nodepools", _POOL),
    ("NodeClaim", GROUP, "nodeclaims", _MACHINE),
    ("EC2NodeClass", EC2_GROUP, "ec2nodeclasses", _ANYTHING),
)


def install_karpenter(sandbox: Sandbox) -> None:
    """Teach the cluster what NodePools and NodeClaims are."""
    api = client.ApiextensionsV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
    for kind, group, plural, spec in _KINDS:
        schema = {"type": "object", "properties": {"spec": spec, "status": _ANYTHING}}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        api.create_custom_resource_definition(
            {
                "metadata": {"name": f"{plural}.{group}"},
                "spec": {
                    "group": group,
                    "scope": "Cluster",
                    "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
                    "versions": [{**version, "subresources": {"status": {}}}],
                },
            }
        )
    eventually(lambda: all(_served(sandbox, group, plural) for _, group, plural, _ in _KINDS))


def uninstall_karpenter(sandbox: Sandbox) -> None:
    """Let the cluster forget them, with their objects."""
    api = client.ApiextensionsV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
    for _, group, plural, _ in _KINDS:
        api.delete_custom_resource_definition(f"{plural}.{group}")
    eventually(lambda: not any(_served(sandbox, group, plural) for _, group, plural, _ in _KINDS))


def node_pool(
    sandbox: Sandbox,
    name: str,
    *,
    group: str,
    conditions: Sequence[Mapping[str, str]] = (READY,),
    spec: Mapping[str, Any] | None = None,
    **template: Any,
) -> None:
    """Make a NodePool.

    Args:
        sandbox: Where.
        name: What it is called.
        group: Its node class's API group.
        conditions: What Karpenter's controllers have found; nothing where none has looked at it.
        spec: More of its spec: limits, disruption, replicas.
        template: More of its template's spec.
    """
    objects = client.CustomObjectsApi(config.new_client_from_config(str(sandbox.kubeconfig)))
    node_class = {"group": group, "kind": "NodeClass", "name": "default"}
    machine = {"nodeClassRef": node_class, "requirements": [], **template}
    body = {"apiVersion": f"{GROUP}/v1", "kind": "NodePool", "metadata": {"name": name}}
    body["spec"] = {"template": {"spec": machine}, **(spec or {})}
    objects.create_cluster_custom_object(GROUP, "v1", "nodepools", body)
    if conditions:
        status = {"status": {"conditions": [dict(each) for each in conditions]}}
        objects.patch_cluster_custom_object_status(GROUP, "v1", "nodepools", name, status, **MERGE)


def ec2_node_class(sandbox: Sandbox, name: str, *, alias: str) -> None:
    """Make an EC2NodeClass; `alias` says which images its machines run."""
    objects = client.CustomObjectsApi(config.new_client_from_config(str(sandbox.kubeconfig)))
    body: dict[str, Any] = {"apiVersion": f"{EC2_GROUP}/v1", "kind": "EC2NodeClass", "metadata": {"name": name}}
    body["spec"] = {"amiSelectorTerms": [{"alias": alias}]}
    objects.create_cluster_custom_object(EC2_GROUP, "v1", "ec2nodeclasses", body)


def failed_before(sandbox: Sandbox, claim: str, message: str, *, ago: timedelta) -> None:
    """Leave the event of a launch that failed so long ago: those of the last hour stay in the cluster."""
    core = client.CoreV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
    at = rfc3339(datetime.now(UTC) - ago)
    about = {"apiVersion": f"{GROUP}/v1", "kind": "NodeClaim", "name": claim}
    said = f"NodeClaim {claim} event: {message}"
    core.create_namespaced_event("default", event(about, "Warning", "InsufficientCapacityError", said, at=at))


def event(
    about: Mapping[str, str], type: str, reason: str, message: str, *, at: str, by: str = "karpenter"
) -> dict[str, Any]:
    """Return an event of core/v1 as client-go's recorders write it."""
    return {
        "metadata": {"generateName": f"{about['name'] or 'gone'}.", "namespace": about.get("namespace", "default")},
        "involvedObject": dict(about),
        "type": type,
        "reason": reason,
        "message": message,
        "source": {"component": by},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def rfc3339(at: datetime) -> str:
    """Return a time as Kubernetes writes it, in whole seconds."""
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _served(sandbox: Sandbox, group: str, plural: str) -> bool:
    objects = client.CustomObjectsApi(config.new_client_from_config(str(sandbox.kubeconfig)))
    try:
        objects.list_cluster_custom_object(group, "v1", plural)
    except ApiException as error:
        if error.status == 404:
            return False
        raise
    return True

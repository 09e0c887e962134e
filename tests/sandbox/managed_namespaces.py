"""What GKE Autopilot refuses users: writes to kube-system, folders of nodes, pods that select nodes by own labels."""

from __future__ import annotations

from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import eventually

_WARDEN = "gke-warden"
_OF_PODS = "gke-warden-pods"
_OF_FOLDERS = "gke-warden-folders"
# From its own refusals (rancher/dashboard#10564); cloud.google.com/gke-nodepool and others are left out.
_SELECTABLE = (
    "cloud.google.com/compute-class",
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-os-distribution",
    "cloud.google.com/gke-spot",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
)
_REQUIRED = "object.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"


def manage_namespaces(sandbox: Sandbox) -> None:
    """Refuse these, in GKE Warden's words; returns when it is so.

    Pods and events stay as they are: the sandbox's kubelets write them, as the administrator that users are, too.
    """
    message = '\'GKE Warden authz [denied by managed-namespaces-limitation]: the namespace "kube-system" is managed and'
    writes = ["CREATE", "UPDATE", "DELETE"]
    # A namespaceSelector matches what is in no namespace, too: Nodes.
    everything = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "scope": "Namespaced"}
    policy = {
        "metadata": {"name": _WARDEN},
        "spec": {
            "matchConstraints": {
                "resourceRules": [{**everything, "operations": writes}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            },
            "matchConditions": [
                {"name": "users", "expression": "!request.userInfo.username.startsWith('system:')"},
                {"name": "writes-of-users", "expression": "!(request.resource.resource in ['pods', 'events'])"},
            ],
            "validations": [
                {
                    "expression": "false",
                    "messageExpression": message
                    + """ the request\\'s verb "' + request.operation.lowerAscii() + '" is denied'""",
                    "reason": "Forbidden",
                }
            ],
        },
    }
    api = client.AdmissionregistrationV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
    for each in (policy, _of_pods(), _of_folders()):
        name = each["metadata"]["name"]
        api.create_validating_admission_policy(each)
        binding = {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
        api.create_validating_admission_policy_binding(binding)
    eventually(lambda: _is_managed(sandbox))


def _of_pods() -> dict[str, Any]:
    """What its autogke-node-affinity-selector-limitation refuses, as far as node affinity goes."""
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    allowed = ", ".join(f"'{key}'" for key in _SELECTABLE)
    each = f"!has(term.matchExpressions) || term.matchExpressions.all(one, one.key in [{allowed}])"
    has_none = (
        "!has(object.spec.affinity) || !has(object.spec.affinity.nodeAffinity)"
        " || !has(object.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution)"
    )
    refused = "GKE Warden rejected the request: [denied by autogke-node-affinity-selector-limitation]"
    validation = {
        "expression": f"{has_none} || {_REQUIRED}.nodeSelectorTerms.all(term, {each})",
        "message": refused,
        "reason": "Forbidden",
    }
    spec = {"matchConstraints": {"resourceRules": [pods]}, "validations": [validation]}
    return {"metadata": {"name": _OF_PODS}, "spec": spec}


def _of_folders() -> dict[str, Any]:
    """Its autogke-no-write-mode-hostpath, for DaemonSets: seen at sourcegraph/sourcegraph-public-snapshot#52900."""
    sets = {"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["daemonsets"], "operations": ["CREATE"]}
    volumes = "object.spec.template.spec.volumes"
    allowed = f"!has({volumes}) || {volumes}.all(one, !has(one.hostPath) || one.hostPath.path.startsWith('/var/log/'))"
    refused = "GKE Warden rejected the request: [denied by autogke-no-write-mode-hostpath]"
    spec = {
        "matchConstraints": {"resourceRules": [sets]},
        "validations": [{"expression": allowed, "message": refused, "reason": "Forbidden"}],
    }
    return {"metadata": {"name": _OF_FOLDERS}, "spec": spec}


def release_namespaces(sandbox: Sandbox) -> None:
    """Let users write what they want again."""
    api = client.AdmissionregistrationV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
    for name in (_WARDEN, _OF_PODS, _OF_FOLDERS):
        api.delete_validating_admission_policy_binding(name)
        api.delete_validating_admission_policy(name)
    eventually(lambda: not _is_managed(sandbox))


def _is_managed(sandbox: Sandbox) -> bool:
    core = client.CoreV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
    try:
        core.create_namespaced_config_map("kube-system", {"metadata": {"generateName": "probe-"}}, dry_run="All")
    except ApiException as error:
        if error.status != 403:
            raise
        return True
    return False

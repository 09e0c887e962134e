"""kube-system as on GKE Autopilot: managed, and closed to its users' writes."""

from __future__ import annotations

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import eventually

_WARDEN = "gke-warden"


def manage_namespaces(sandbox: Sandbox) -> None:
    """Refuse users' writes to kube-system, in GKE Warden's words; returns when it is so.

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
    binding = {"metadata": {"name": _WARDEN}, "spec": {"policyName": _WARDEN, "validationActions": ["Deny"]}}
    api = client.AdmissionregistrationV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
    api.create_validating_admission_policy(policy)
    api.create_validating_admission_policy_binding(binding)
    eventually(lambda: _is_managed(sandbox))


def release_namespaces(sandbox: Sandbox) -> None:
    """Let users write to kube-system again."""
    api = client.AdmissionregistrationV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
    api.delete_validating_admission_policy_binding(_WARDEN)
    api.delete_validating_admission_policy(_WARDEN)
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

"""What a Kubernetes API server's refusals become: one of `errors.py`'s types, mapped in this one place.

A 403 alone says little: RBAC, a ResourceQuota, a policy and a namespace that is being deleted all answer with it. They
are told apart by the server's own words: its packages apiserver/pkg/endpoints/handlers/responsewriters (RBAC),
plugin/pkg/admission and apiserver/pkg/admission/plugin (all others). GKE Autopilot's authorizer answers in RBAC's form.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

from airflow_gpu_provider.errors import (
    AdmissionDenied,
    CloudError,
    ClusterUnreachable,
    CredentialsError,
    GpuError,
    NamespaceTerminating,
    ObjectRejected,
    PermissionDenied,
    ReferenceNotFound,
    RequestRejected,
    ResourceQuotaExceeded,
)

_WRITES = frozenset({"create", "update", "patch", "delete"})
_CREATES = frozenset({"create", "patch"})  # patch: what applies an object creates it
_IN_NAMESPACE = re.compile(r'in the namespace "(?P<name>[^"]+)"')
_BY_RBAC = re.compile(r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)"')
_QUOTA = re.compile(r"exceeded quota: (?P<quota>[^,]{1,253}), (?P<numbers>requested: .+)")
_QUOTA_NOT_READY = "status unknown for quota"
_MISSING = (  # what an object may name: its kind, the server's words, and what to do
    (
        "namespace",
        re.compile(r'namespaces "(?P<name>[^"]+)" not found'),
        "Create it, or give another one as namespace.",
    ),
    (
        "service account",
        re.compile(r"error looking up service account (?P<name>[^\s:]+)(?=: .{0,300}\bnot found)"),
        "Create it, or name another one: the task's service_account_name, a manifest's serviceAccountName.",
    ),
    (
        "PriorityClass",
        re.compile(r"no PriorityClass with name (?P<name>\S{1,253}) was found"),
        "Create it, or name another one, the task's priority_class_name, a manifest's priorityClassName: kubectl get"
        " priorityclasses.",
    ),
    (
        "RuntimeClass",
        re.compile(r'RuntimeClass "(?P<name>[^"]+)" not found'),
        "Leave out the task's runtime_class_name, a manifest's runtimeClassName: on EKS' and GKE's nodes GPU pods need"
        " none. On others create it: NVIDIA's GPU Operator creates nvidia.",
    ),
)
_TOO_LARGE = "request is too large"
_TERMINATING = "because it is being terminated"
_MANAGED = "is managed and the request's verb"
_HOST_PATH = "autogke-no-write-mode-hostpath"
_DENIED = ("denied the request", "denied request", _MANAGED)
_LACKING = re.compile(r"must specify .+")
_LIMIT_RANGE = re.compile(r"(?:maximum|minimum) \S+ usage per (?:Container|Pod) is|max limit to request ratio per")
_NOBODY = 'User "system:anonymous"'
# pod-security-admission: (containers "base", "side" must set ...)
_VIOLATING = re.compile(r"\(containers? ([^()]{1,500}) must")
_QUOTED = re.compile(r'"([^"]+)"')
XCOM_SIDECAR = "airflow-xcom-sidecar"
"""KubernetesPodOperator's name for the container that keeps a pod's result (`PodDefaults.SIDECAR_CONTAINER_NAME`)."""
SIDECAR_SETTINGS = (
    "in the extra of the Kubernetes connection: the KubernetesGpuPool's, or the task's kubernetes_conn_id"
)
"""Where its image, resources and security context are set."""

_WEBHOOK_AWAY = re.compile(r'failed calling webhook "(?P<name>[^"]+)"')
_CONFLICT = re.compile(r'^Operation cannot be fulfilled on (?P<kind>[a-z0-9]{1,63})[a-z0-9.-]{0,253} "')
# A plugin whose own reads have failed refuses, too: apiserver/pkg/admission/initializer, plugin/pkg/admission.
_UNDECIDED = re.compile(r"is forbidden: (?:not yet ready to handle request|error looking up service account)")
_INTERNAL = re.compile(r"^Internal error occurred: ")
_INVALID = re.compile(r'" is invalid: |cannot be handled as an? \w+: ')


class ObjectNotFound(CloudError):
    """The object that a request names does not exist (404)."""

    # It may have been created, or deleted, a moment ago.
    tolerated_for: ClassVar[timedelta | None] = RequestRejected.tolerated_for


class ObjectChanged(CloudError):
    """Somebody else created, changed or replaced the object first (409): read it and decide again."""


class ThirdObjectChanged(ObjectChanged):
    """Nothing was written, since an object that the request does not name has changed meanwhile (409).

    Such as the namespace's ResourceQuota, which counts the new object: the same request works a moment later.
    """


def refusal_by_words(message: str, verb: str, resource: str) -> GpuError:
    """Return the error that an answer of the API server means whose text alone is known: an event quotes no status.

    Only the words of a refusal make it one. All else (a webhook, etcd, a lost connection, an object that has changed
    meanwhile) decides nothing, and a controller tries again: k8s.io/apimachinery/pkg/api/errors has both kinds.
    """
    return refusal(_status_by_words(message), {"message": message}, verb, resource)


def _status_by_words(message: str) -> int:
    """Return the HTTP status that goes with such words; 0 where they are those of no refusal."""
    if _INTERNAL.match(message):
        return 0
    if _INVALID.search(message):
        return 422
    if "is forbidden: " in message or _BY_RBAC.search(message) or any(words in message for words in _DENIED):
        return 403
    return 404 if any(words.search(message) for _, words, _ in _MISSING) else 0


def refusal(status: int, body: Mapping[str, Any], verb: str, resource: str) -> GpuError:
    """Return the error that an answer of the API server means, a Status; `status` is 0 where there was none."""
    message = f"{str(body.get('message') or status).rstrip('.')}."
    details: dict[str, Any] = {"status": status, "verb": verb, "resource": resource}
    cannot = f"Cannot {verb} {resource}: {message}"
    if status == 401:
        return CredentialsError(
            f"The cluster does not accept the credentials of the Airflow connection ({verb} {resource}): {message}",
            "Correct the connection, which is read again; its identity needs an access entry or a role in the cluster.",
            **details,
        )
    if status in (403, 404) and verb in _CREATES and (missing := _missing(message, verb, resource, details)):
        return missing
    if status == 404:
        return ObjectNotFound(cannot, **details)
    if _TOO_LARGE in message:  # etcd's words, which come as a 500
        return ObjectRejected(
            f"The Kubernetes API server cannot store the {resource} that it should {verb}: {message}",
            "Make it smaller than 1.5 MiB: pass paths or URLs of data, instead of the data.",
            **details,
        )
    if status == 0 or status == 429 or status >= 500 or _UNDECIDED.search(message):
        return _no_answer(status, message, verb, resource, details)
    if 400 <= status < 500 and any(words in message for words in _DENIED):
        return _denied(message, verb, resource, details)
    if status == 409:
        is_third = _is_of_third(message, body, resource)
        return (ThirdObjectChanged if is_third else ObjectChanged)(cannot, **details)
    if status == 403:
        return _forbidden(message, verb, resource, details)
    if status in (400, 413, 415, 422) and verb in _WRITES:
        return _invalid(message, body, verb, resource, details)
    return CloudError(
        f"The Kubernetes API server rejected the request to {verb} {resource} ({status}): {message}", **details
    )


def _is_of_third(message: str, body: Mapping[str, Any], resource: str) -> bool:
    """Return True for a conflict with an object of another resource: its `details.kind` is a resource's plural."""
    if body.get("reason") == "AlreadyExists":
        return False
    named = _CONFLICT.search(message)
    kind = named["kind"] if named else str((body.get("details") or {}).get("kind") or "")
    return kind not in ("", resource.partition("/")[0].partition(".")[0])


def _invalid(
    message: str, body: Mapping[str, Any], verb: str, resource: str, details: dict[str, Any]
) -> ObjectChanged | ObjectRejected:
    fields = [str(each["field"]) for each in (body.get("details") or {}).get("causes") or () if each.get("field")]
    # A patch with another object's uid is invalid, for a uid is immutable; an update with one is a conflict.
    if {*fields} == {"metadata.uid"}:
        return ObjectChanged(f"Cannot {verb} {resource}: {message}", **details)
    return ObjectRejected(
        f"The Kubernetes API server rejected the request to {verb} {resource} as invalid: {message}",
        f"Correct {', '.join(dict.fromkeys(fields)) or 'what the message names'}.",
        **details,
        fields=fields,
    )


def _no_answer(status: int, message: str, verb: str, resource: str, details: dict[str, Any]) -> ClusterUnreachable:
    webhook = _WEBHOOK_AWAY.search(message)
    fix = f"See to the admission webhook {webhook['name']}, which did not answer." if webhook else ""
    return ClusterUnreachable(
        f"The Kubernetes API server could not {verb} {resource}{f' ({status})' if status else ''}: {message}",
        fix or "Nothing was decided on it; try again.",
        **details,
    )


def _forbidden(message: str, verb: str, resource: str, details: dict[str, Any]) -> GpuError:
    if verb not in _WRITES or _BY_RBAC.search(message) or "is forbidden: " not in message:
        return _by_rbac(message, verb, resource, details)
    cannot = f"Cannot {verb} {resource}: {message}"
    if over := _QUOTA.search(message):
        return ResourceQuotaExceeded(
            f"The namespace's ResourceQuota {over['quota']} is exhausted, so the request to {verb} {resource} was"
            f" refused: {over['numbers']}",
            "Wait until what counts there has ended, or raise the quota.",
            **details,
            quota=over["quota"],
        )
    if _QUOTA_NOT_READY in message:
        return ResourceQuotaExceeded(
            cannot, "The quota has just been created and has no status yet; try again.", **details
        )
    if _TERMINATING in message:
        return NamespaceTerminating(cannot, "Give another namespace, or recreate it once it is gone.", **details)
    return _denied(message, verb, resource, details)


def _missing(message: str, verb: str, resource: str, details: dict[str, Any]) -> CloudError | None:
    """Return the error for what the object to be created names, and is not there; None if the server says otherwise."""
    for kind, words, fix in _MISSING:
        if found := words.search(message):
            name = found["name"]
            what = f"Cannot {verb} {resource}: there is no {kind} {name}. The API server's message: {message}"
            # A namespace's own account comes a moment after the namespace.
            comes = kind == "service account" and name.endswith("/default")
            cls: type[CloudError] = ObjectNotFound if comes else ReferenceNotFound
            return cls(what, fix, **details, missing=kind, name=name)
    return None


def _by_rbac(message: str, verb: str, resource: str, details: dict[str, Any]) -> PermissionDenied | CredentialsError:
    """Return the refusal of an authorizer; the server names what it asked for better than the caller knows it."""
    if _NOBODY in message:
        return CredentialsError(
            f"The Airflow connection gives no credentials that the cluster knows ({verb} {resource}): {message}",
            "Correct the connection, or log in again where a plugin of its kubeconfig does that.",
            **details,
        )
    named = _BY_RBAC.search(message)
    verb, resource = (named["verb"], named["resource"]) if named else (verb, resource)
    return PermissionDenied(
        f"The cluster denies permission to {verb} {resource}: {message}",
        f'Grant it{_where(message)}: resources ["{resource}"], verbs ["{verb}"]; docs/rbac/ has all roles that are'
        " needed.",
        **{**details, "verb": verb, "resource": resource},
    )


def _where(message: str) -> str:
    """Return in which namespace a permission is missing; one that does not exist is refused in the same words."""
    found = _IN_NAMESPACE.search(message)
    return f" in namespace {found['name']}, if there is one of that name" if found else ""


def _denied(message: str, verb: str, resource: str, details: dict[str, Any]) -> AdmissionDenied:
    return AdmissionDenied(
        f"A policy of the cluster refuses to {verb} {resource}: {message}", _fix_of(message), **details
    )


def _fix_of(message: str) -> str:
    if lacking := _LACKING.search(message):
        return _fix_of_quota(lacking[0])
    if _LIMIT_RANGE.search(message):
        return "Ask for what a LimitRange of the namespace allows in container_resources, or have it changed."
    if "violates PodSecurity" in message:
        named = {name for each in _VIOLATING.findall(message) for name in _QUOTED.findall(each)}
        own = f"xcom_sidecar_container_security_context, an argument or {SIDECAR_SETTINGS}"
        if named == {XCOM_SIDECAR}:
            return f"Set what the policy asks of the XCom sidecar by {own}."
        fix = "Set what the policy asks for by security_context and container_security_context, or another namespace"
        return f"{fix}; for the XCom sidecar by {own}." if XCOM_SIDECAR in named else f"{fix}."
    if XCOM_SIDECAR in message:
        settings = "xcom_sidecar_container_image, _resources or _security_context"
        return f"Change the XCom sidecar to what the policy asks for by {settings} {SIDECAR_SETTINGS}."
    # GKE's own authorizer, which comes before the cluster's roles: cert-manager#3713, rancher/rancher#40845.
    if _MANAGED in message:
        return (
            "No role allows it: GKE Autopilot manages that namespace. Give another one, or for the device plugin a pool"
            ' with provisioner="autopilot", for which nothing is installed.'
        )
    # vectordotdev/helm-charts#269, sourcegraph/sourcegraph-public-snapshot#52900
    if _HOST_PATH in message:
        return (
            "GKE Autopilot lets pods have no folder of the node but /var/log: take the hostPath volume out, or for the"
            ' device plugin give a pool with provisioner="autopilot", for which nothing is installed.'
        )
    return "Change it to what the policy asks for, or ask for an exception from it."


def _fix_of_quota(lacking: str) -> str:
    """Return how to give the resources that a ResourceQuota counts: "must specify limits.cpu for: base,proxy; ..."."""
    names = {name.strip(" .") for each in lacking.split(" for: ")[1:] for name in each.partition(";")[0].split(",")}
    others = ", ".join(sorted(names - {XCOM_SIDECAR}))
    fixes = []
    if others or not names:
        fixes.append(f"those of {others or 'the container'} in container_resources, or in full_pod_spec's containers")
    if XCOM_SIDECAR in names:
        fixes.append(f"the XCom sidecar's in xcom_sidecar_container_resources {SIDECAR_SETTINGS}")
    return f"Give {', and '.join(fixes)}: a ResourceQuota of the namespace counts them."

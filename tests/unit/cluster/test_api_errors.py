"""Every error of the Kubernetes client becomes one of this package's."""

from __future__ import annotations

import json

import pytest
from airflow.providers.cncf.kubernetes.utils.xcom_sidecar import PodDefaults
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError, MaxRetryError, ProtocolError, ReadTimeoutError

from airflow_gpu_provider.cluster.api.api_errors import mapped
from airflow_gpu_provider.cluster.api.async_api import resource_of
from airflow_gpu_provider.cluster.model.refusals import XCOM_SIDECAR, ObjectChanged, ObjectNotFound, refusal
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
    ResourceQuotaExceeded,
)


def answer(status: int | None, message: str = "the server's words") -> ApiException:
    error = ApiException(status=status, reason="reason")
    error.body = json.dumps({"kind": "Status", "message": message})
    return error


def what(error: Exception) -> GpuError:
    with pytest.raises(GpuError) as raised, mapped("patch", "nodes"):
        raise error
    is_answer = isinstance(error, ApiException) and error.status
    assert raised.value.__cause__ is (None if is_answer else error)
    assert raised.value.__suppress_context__
    return raised.value


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ObjectRejected),
        (401, CredentialsError),
        (403, PermissionDenied),
        (404, ObjectNotFound),
        (409, ObjectChanged),
        (405, CloudError),
        (422, ObjectRejected),
        (429, ClusterUnreachable),
        (500, ClusterUnreachable),
        (503, ClusterUnreachable),
        (0, ClusterUnreachable),
        (None, ClusterUnreachable),
    ],
)
def test_statuses(status: int | None, kind: type[GpuError]) -> None:
    error = what(answer(status))
    assert type(error) is kind
    assert "the server's words" in str(error)


# Answers of Kubernetes 1.36 (and Gatekeeper, Kyverno) to the creation of a pod.
REFUSALS: list[tuple[int, str, type[GpuError], str]] = [
    (
        403,
        'pods is forbidden: User "airflow" cannot create resource "pods" in API group "" in the namespace "ml"',
        PermissionDenied,
        'resources ["pods"], verbs ["create"]',
    ),
    (
        403,
        'pods is forbidden: User "a" cannot create resource "pods" in API group "" in the namespace "ml": requires one'
        ' of ["container.pods.create"] permission(s)',
        PermissionDenied,
        'resources ["pods"], verbs ["create"]',
    ),
    # GKE Autopilot's authorizer; no role gives what it refuses (rancher/rancher#40845).
    (
        403,
        'daemonsets.apps is forbidden: User "a" cannot create resource "daemonsets" in API group "apps" in the'
        ' namespace "kube-system": GKE Warden authz [denied by managed-namespaces-limitation]: the namespace'
        ' "kube-system" is managed and the request\'s verb "create" is denied',
        AdmissionDenied,
        "GKE Autopilot manages that namespace",
    ),
    (
        400,
        'admission webhook "warden-validating.common-webhooks.networking.gke.io" denied the request: GKE Warden'
        ' rejected the request because it violates one or more constraints. Violations details: {"[denied by'
        ' autogke-no-write-mode-hostpath]":["hostPath volume device-plugins used in container nvidia-device-plugin uses'
        ' path /var/lib/kubelet/device-plugins which is not allowed in Autopilot."]}',
        AdmissionDenied,
        'provisioner="autopilot"',
    ),
    (403, "Forbidden", PermissionDenied, 'verbs ["create"]'),
    (
        403,
        'pods "train-abc" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used:'
        " requests.nvidia.com/gpu=1, limited: requests.nvidia.com/gpu=1",
        ResourceQuotaExceeded,
        "ResourceQuota gpus is exhausted, so the request to create pods was refused: requested:"
        " requests.nvidia.com/gpu=1, used:",
    ),
    (
        403,
        'pods "train-abc" is forbidden: status unknown for quota: gpus, resources: requests.nvidia.com/gpu',
        ResourceQuotaExceeded,
        "just been created",
    ),
    (
        403,
        'pods "train-abc" is forbidden: failed quota: cpus: must specify limits.cpu for: base',
        AdmissionDenied,
        "container_resources",
    ),
    (
        403,
        'pods "train-abc" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
        AdmissionDenied,
        "container_security_context",
    ),
    (
        403,
        'pods "train-abc" is forbidden: maximum cpu usage per Container is 1, but limit is 2',
        AdmissionDenied,
        "maximum cpu usage",
    ),
    (
        403,
        'pods "train-abc" is forbidden: unable to create new content in namespace ml because it is being terminated',
        NamespaceTerminating,
        "another namespace",
    ),
    (
        403,
        'pods "train-abc" is forbidden: error looking up service account ml/trainer:'
        ' serviceaccount "trainer" not found',
        ReferenceNotFound,
        "there is no service account ml/trainer.",
    ),
    (
        403,  # which comes a moment after its namespace
        'pods "train-abc" is forbidden: error looking up service account ml/default:'
        ' serviceaccount "default" not found',
        ObjectNotFound,
        "there is no service account ml/default.",
    ),
    (
        403,
        'pods "train-abc" is forbidden: no PriorityClass with name night was found',
        ReferenceNotFound,
        "priorityClassName: kubectl get priorityclasses",
    ),
    (
        403,
        'pods "train-abc" is forbidden: pod rejected: RuntimeClass "nvidia" not found',
        ReferenceNotFound,
        "there is no RuntimeClass nvidia.",
    ),
    (
        403,
        'admission webhook "validation.gatekeeper.sh" denied the request: [repos] container <base> has an invalid repo',
        AdmissionDenied,
        "gatekeeper",
    ),
    (
        400,
        'admission webhook "validate.kyverno.svc-fail" denied the request: resource Pod was blocked',
        AdmissionDenied,
        "was blocked",
    ),
    (
        422,
        "pods \"train-abc\" is forbidden: ValidatingAdmissionPolicy 'images' with binding 'images' denied request: no",
        AdmissionDenied,
        "'images'",
    ),
    (
        500,
        'Internal error occurred: failed calling webhook "pods.example.com": failed to call webhook: Post'
        ' "https://hook.ml.svc:443/?timeout=10s": dial tcp 10.0.0.1:443: connect: connection refused',
        ClusterUnreachable,
        "webhook pods.example.com",
    ),
    (404, 'namespaces "ml" not found', ReferenceNotFound, "there is no namespace ml."),
    (
        403,
        'pods "t" is forbidden: [maximum memory usage per Container is 200Mi, but limit is 8Gi]',
        AdmissionDenied,
        "a LimitRange of the namespace allows in container_resources",
    ),
    (
        403,
        'pods "t" is forbidden: User "system:anonymous" cannot create resource "pods" in the namespace "ml"',
        CredentialsError,
        "log in again",
    ),
    (404, "the server could not find the requested resource", ObjectNotFound, "requested resource"),
    (500, "etcdserver: request is too large", ObjectRejected, "smaller than 1.5 MiB"),
    (409, 'pods "train-abc" already exists', ObjectChanged, "already exists"),
    (429, "too many requests, please try again later", ClusterUnreachable, "429"),
    (
        400,
        'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal number into Go struct field'
        " EnvVar.spec.containers.env.value of type string",
        ObjectRejected,
        "EnvVar.spec.containers.env.value",
    ),
]


@pytest.mark.parametrize(("status", "message", "kind", "says"), REFUSALS)
def test_refusals_are_told_apart_by_the_server_s_words(
    status: int, message: str, kind: type[GpuError], says: str
) -> None:
    error = refusal(status, {"message": message}, "create", "pods")
    assert type(error) is kind
    assert says in str(error)


LACKING = 'pods "train" is forbidden: failed quota: team: must specify'
INSECURE = 'pods "train" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false'


@pytest.mark.parametrize(
    ("message", "named", "not_named"),
    [
        (f"{LACKING} limits.cpu for: airflow-xcom-sidecar; limits.memory for: airflow-xcom-sidecar",
         ["xcom_sidecar_container_resources"], [" container_resources"]),
        (f"{LACKING} limits.cpu for: airflow-xcom-sidecar,base; limits.memory for: base",
         ["xcom_sidecar_container_resources", "those of base in container_resources"], []),
        (f"{LACKING} limits.cpu for: base,proxy", ["those of base, proxy in", "full_pod_spec"], ["xcom_sidecar"]),
        (f"{LACKING} limits.cpu", [" container_resources"], ["xcom_sidecar"]),
        (f'{INSECURE} (container "airflow-xcom-sidecar" must set securityContext.allowPrivilegeEscalation=false)',
         ["xcom_sidecar_container_security_context"], [" container_security_context"]),
        (f'{INSECURE} (containers "base", "airflow-xcom-sidecar" must set securityContext...)',
         ["xcom_sidecar_container_security_context", " container_security_context"], []),
        (f'{INSECURE} (container "base" must set securityContext...)', [" container_security_context"], ["xcom_"]),
        ('admission webhook "v.gatekeeper.sh" denied the request: container <airflow-xcom-sidecar> has an invalid image'
         " repo <alpine:3>", ["xcom_sidecar_container_image"], []),
    ],
)  # fmt: skip
def test_the_advice_is_about_the_container_that_the_refusal_names(
    message: str, named: list[str], not_named: list[str]
) -> None:
    fix = refusal(403, {"message": message}, "create", "pods").fix
    assert all(words in fix for words in named)
    assert not any(words in fix for words in not_named)


def test_the_sidecar_is_named_as_its_provider_names_it() -> None:
    assert PodDefaults.SIDECAR_CONTAINER_NAME == XCOM_SIDECAR


def test_an_invalid_object_names_its_fields() -> None:
    causes = [
        {"reason": "FieldValueInvalid", "field": "metadata.labels"},
        {"reason": "FieldValueInvalid", "field": "metadata.labels"},
        {"reason": "FieldValueRequired", "field": "spec.containers[0].image"},
    ]
    error = refusal(422, {"message": 'Pod "x" is invalid', "details": {"causes": causes}}, "create", "pods")
    assert error.fix == "Correct metadata.labels, spec.containers[0].image."


def test_a_patch_that_names_another_object_s_uid_is_invalid_to_a_server_and_a_change_to_us() -> None:
    why = 'metadata.uid: Invalid value: "other": field is immutable'
    causes = [{"reason": "FieldValueInvalid", "field": "metadata.uid", "message": why}] * 2
    error = refusal(422, {"message": f'Pod "x" is invalid: {why}', "details": {"causes": causes}}, "patch", "pods")
    assert type(error) is ObjectChanged
    assert "field is immutable" in str(error)


def test_a_read_is_never_an_invalid_object_nor_denied_by_a_policy() -> None:
    assert type(refusal(400, {"message": "bad"}, "list", "pods")) is CloudError
    assert type(refusal(403, {"message": "pods is forbidden: no"}, "get", "pods")) is PermissionDenied


def test_the_permission_that_is_missing_is_the_one_that_the_server_names() -> None:
    said = 'pods is forbidden: User "a" cannot watch resource "pods" in API group "" in the namespace "ml"'
    assert 'resources ["pods"], verbs ["watch"]' in refusal(403, {"message": said}, "get", "x").fix


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("api/v1/nodes", "nodes"),
        ("api/v1/nodes/a", "nodes"),
        ("api/v1/namespaces/ml/pods", "pods"),
        ("api/v1/namespaces/ml/pods/x/log?container=base", "pods/log"),
        ("apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x", "leases"),
        ("version", "version"),
    ],
)
def test_the_resource_of_a_path(path: str, resource: str) -> None:
    assert resource_of(path) == resource


def test_a_missing_permission_may_be_a_missing_namespace() -> None:
    said = 'pods is forbidden: User "a" cannot create resource "pods" in API group "" in the namespace "ml"'
    assert (
        "Grant it in namespace ml, if there is one of that name"
        in refusal(403, {"message": said}, "create", "pods").fix
    )


def test_a_read_of_what_is_not_there_names_no_reference() -> None:
    error = refusal(404, {"message": 'namespaces "ml" not found'}, "get", "namespaces")
    assert type(error) is ObjectNotFound


def test_a_refusal_names_what_to_grant() -> None:
    assert 'resources ["nodes"], verbs ["patch"]' in what(answer(403)).fix


@pytest.mark.parametrize(
    "error",
    [
        MaxRetryError(None, "/api"),  # type: ignore[arg-type]
        ProtocolError("aborted"),
        ReadTimeoutError(None, "/api", "timed out"),  # type: ignore[arg-type]
        HTTPError("other"),
        ConnectionResetError("reset"),
        TimeoutError("slow"),
    ],
)
def test_a_server_that_cannot_be_reached(error: Exception) -> None:
    assert type(what(error)) is ClusterUnreachable
    assert "(patch nodes)" in str(what(error))


@pytest.mark.parametrize("body", ["not json", b'{"message": "bytes"}', "", None])
def test_bodies_that_are_not_a_status(body: str | bytes | None) -> None:
    error = answer(500)
    error.body = body
    assert "500" in str(what(error))


def test_what_is_no_error_of_the_api_is_left_alone() -> None:
    with pytest.raises(ZeroDivisionError), mapped("get", "pods"):
        raise ZeroDivisionError

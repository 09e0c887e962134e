"""Refusals of the real API server, and of its admission: which are sat out, which end a task, and as what."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.cluster.api.access_review import check_namespace
from airflow_gpu_provider.errors import (
    AdmissionDenied,
    ClusterUnreachable,
    GpuError,
    NamespaceTerminating,
    ObjectRejected,
    PermissionDenied,
    PodResultLost,
    PoolNotReleased,
    ReferenceNotFound,
    ResourceQuotaExceeded,
)
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from airflow_gpu_provider.training.life.task_attempt import CREATE_WITHIN
from gpu_sandbox.sandbox import Sandbox
from tests.kubeconfig import access_of
from tests.sandbox import aws_identity
from tests.sandbox.running import context_of, eventually, line_of, may_list, run, until_allowed
from tests.sandbox.ways import DEFERRED_BY_DAY

GROUP = "refusals-airflow"
RBAC = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": GROUP},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": GROUP}],
}

Ask = Callable[..., Any]


@pytest.fixture
def ask(gpu_sandbox: Sandbox) -> Ask:
    """Make an administrator's request; fine if the object is there already, or gone."""

    def make(method: str, path: str, body: Any = None) -> Any:
        status, reply = gpu_sandbox.control_plane.request(method, path, body)
        assert status < 300 or status in (404, 409), reply
        return reply

    return make


@pytest.fixture
def identity(gpu_sandbox: Sandbox, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is an Airflow whose identity is an administrator by a binding that can be taken away."""
    key = gpu_sandbox.aws.add_identity(f"refusals-{time.monotonic_ns()}")
    gpu_sandbox.authenticator.access_entries[key.arn] = [GROUP]
    monkeypatch.setenv("AIRFLOW_CONN_REFUSALS", json.dumps(aws_identity.connection(gpu_sandbox, key)))
    ask("POST", RBAC, BINDING)


@pytest.fixture
def pool(gpu_sandbox: Sandbox, env: None, identity: None) -> EksGpuPool:
    return EksGpuPool(
        name="refused",
        cluster_name=gpu_sandbox.cluster_name,
        region=gpu_sandbox.region,
        instance_types=["g6.xlarge"],
        zones=[gpu_sandbox.zones[0]],
        max_nodes=1,
        price_per_hour=2.0,
        aws_conn_id="refusals",
    )


@pytest.fixture
def namespace(ask: Ask) -> Iterator[str]:
    name = f"refusals-{time.monotonic_ns()}"
    ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    eventually(lambda: ask("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default").get("metadata"))
    yield name
    ask("DELETE", f"/api/v1/namespaces/{name}")


@contextmanager
def meanwhile(act: Callable[[], object], *, after: float) -> Iterator[None]:
    """Do something in a while, in another thread."""
    timer = threading.Timer(after, act)
    timer.start()
    yield
    timer.join()


def ensure(pool: EksGpuPool) -> None:
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool))
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=pool))


def train(pool: EksGpuPool, **arguments: Any) -> GpuPodOperator:
    usual: dict[str, Any] = {"image": "busybox:1.36", "cmds": ["sh", "-c", "sleep 4; echo trained"]}
    usual["schedule_timeout_seconds"] = 120
    return GpuPodOperator(task_id="train", gpu_pool=pool, **{**usual, **arguments})


def said_of_a_pod(sandbox: Sandbox, namespace: str) -> str:
    """What the API server says of a plain pod; it hears of webhooks and labels a moment after they were written."""
    pod = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "c", "image": "busybox:1.36"}]}}
    _, reply = sandbox.control_plane.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
    return str(reply.get("message"))


def quota(ask: Ask, namespace: str, pods: int) -> str:
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    ask("POST", path, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": str(pods)}}})
    eventually(lambda: ask("GET", f"{path}/few").get("status", {}).get("hard"))
    return f"{path}/few"


# -- the pod's creation ------------------------------------------------------------------------------------------


def test_a_quota_that_is_lifted_after_some_seconds_costs_no_try(pool: EksGpuPool, namespace: str, ask: Ask) -> None:
    ensure(pool)
    full = quota(ask, namespace, 0)
    with meanwhile(lambda: ask("DELETE", full), after=4):
        run(train(pool, namespace=namespace, deferrable=False))


def test_a_quota_that_stays_full_is_named_and_may_be_tried_again(
    pool: EksGpuPool, namespace: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_gpu_provider.training.life.task_attempt.CREATE_WITHIN", timedelta(seconds=2))
    quota(ask, namespace, 0)
    says = (
        r"ResourceQuota few is exhausted, so the request to create pods was refused:"
        r" requested: pods=1, used: pods=0, limited: pods=0"
    )
    with pytest.raises(ResourceQuotaExceeded, match=says) as error:
        run(train(pool, namespace=namespace))
    assert error.value.retryable


def test_a_role_that_is_bound_anew_costs_no_try(pool: EksGpuPool, namespace: str, ask: Ask) -> None:
    ask("DELETE", f"{RBAC}/{GROUP}")
    with meanwhile(lambda: ask("POST", RBAC, BINDING), after=4):
        ensure(pool)
    ask("DELETE", f"{RBAC}/{GROUP}")
    with meanwhile(lambda: ask("POST", RBAC, BINDING), after=4):
        run(train(pool, namespace=namespace))


def test_a_webhook_that_is_away_for_some_seconds_costs_no_try(
    pool: EksGpuPool, namespace: str, ask: Ask, gpu_sandbox: Sandbox
) -> None:
    ensure(pool)
    hook = {
        "metadata": {"name": namespace},
        "webhooks": [
            {
                "name": "pods.example.com",
                "clientConfig": {"url": "https://127.0.0.1:9/", "caBundle": base64.b64encode(b"").decode()},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }
    ask("POST", HOOKS, hook)

    eventually(lambda: "failed calling webhook" in said_of_a_pod(gpu_sandbox, namespace))
    with meanwhile(lambda: ask("DELETE", f"{HOOKS}/{namespace}"), after=4):
        run(train(pool, namespace=namespace))


@pytest.mark.parametrize(
    ("labels", "arguments", "cls", "says"),
    [
        (
            {"pod-security.kubernetes.io/enforce": "restricted"},
            {},
            AdmissionDenied,
            "violates PodSecurity.*container_security_context",
        ),
        ({}, {"labels": {"team": "x" * 64}}, ObjectRejected, r"must be no more than 63.*Correct metadata\.labels"),
        ({}, {"namespace": "no-such"}, ReferenceNotFound, "there is no namespace no-such.*Create it"),
        ({}, {"service_account_name": "absent"}, ReferenceNotFound, "there is no service account refusals-.*/absent"),
        ({}, {"priority_class_name": "absent"}, ReferenceNotFound, "there is no PriorityClass absent"),
        ({}, {"runtime_class_name": "absent"}, ReferenceNotFound, "there is no RuntimeClass absent"),
    ],
)
def test_what_cannot_pass_ends_the_task_at_once(
    pool: EksGpuPool,
    namespace: str,
    gpu_sandbox: Sandbox,
    labels: dict[str, str],
    arguments: dict[str, Any],
    cls: type[GpuError],
    says: str,
) -> None:
    gpu_sandbox.control_plane.request(
        "PATCH",
        f"/api/v1/namespaces/{namespace}",
        {"metadata": {"labels": labels}},
        content_type="application/merge-patch+json",
    )
    eventually(lambda: not labels or "violates PodSecurity" in said_of_a_pod(gpu_sandbox, namespace))
    began = time.monotonic()
    with pytest.raises(cls, match=says) as error:
        run(train(pool, **{"namespace": namespace, **arguments}))
    assert not error.value.retryable
    assert time.monotonic() - began < CREATE_WITHIN.total_seconds()


def test_a_namespace_is_asked_for_by_a_dry_run(namespace: str, gpu_sandbox: Sandbox) -> None:
    api = access_of(gpu_sandbox.control_plane.kubeconfig).api_client()
    check_namespace(api, namespace, creates_pods=True)
    assert not gpu_sandbox.control_plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")[1]["items"]
    with pytest.raises(ReferenceNotFound, match="there is no namespace no-such"):
        check_namespace(api, "no-such", creates_pods=True)


def test_a_namespace_that_is_being_deleted_is_told(pool: EksGpuPool, namespace: str, ask: Ask) -> None:
    """A finalizer holds one of its objects, and so the namespace."""
    held = {"metadata": {"name": "held", "finalizers": ["tests/held"]}}
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    ask("POST", path, held)
    ask("DELETE", f"/api/v1/namespaces/{namespace}")
    try:
        with pytest.raises(NamespaceTerminating):
            run(train(pool, namespace=namespace))
    finally:
        ask("PUT", f"{path}/held", {"metadata": {"name": "held"}})


# -- exec, by which a result is read -----------------------------------------------------------------------------

ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
RESULT = ["sh", "-c", "echo 7 > /airflow/xcom/return.json"]


def exec_is_refused(sandbox: Sandbox, namespace: str) -> bool:
    path = f"/api/v1/namespaces/{namespace}/pods/probe/exec?command=true&stdout=true"
    _, reply = sandbox.control_plane.request("POST", path, {})
    return "denied request" in str(reply.get("message"))


def test_result_that_a_policy_keeps_is_lost_and_not_the_training_run_again(
    pool: EksGpuPool, namespace: str, ask: Ask, gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PodResultLost, "tolerated_for", timedelta(seconds=5))
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CONNECT"], "resources": ["pods/exec"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "no exec"}],
    }
    ask("POST", f"{POLICIES}ies", {"metadata": {"name": namespace}, "spec": spec})
    only = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    binding = {"policyName": namespace, "validationActions": ["Deny"], "matchResources": only}
    ask("POST", f"{POLICIES}ybindings", {"metadata": {"name": namespace}, "spec": binding})
    eventually(lambda: exec_is_refused(gpu_sandbox, namespace))
    try:
        with pytest.raises(PodResultLost, match=r"succeeded, but its result cannot be read: .*no exec") as error:
            run(train(pool, namespace=namespace, deferrable=False, do_xcom_push=True, cmds=RESULT))
    finally:
        ask("DELETE", f"{POLICIES}ybindings/{namespace}")
        ask("DELETE", f"{POLICIES}ies/{namespace}")
    assert not error.value.retryable


def test_no_pod_is_created_whose_result_a_role_keeps(
    pool: EksGpuPool, namespace: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PermissionDenied, "tolerated_for", timedelta(seconds=5))
    core = ["pods", "pods/log", "nodes", "events", "namespaces", "configmaps"]
    rules = [
        {"apiGroups": [""], "resources": core, "verbs": ["*"]},
        {"apiGroups": ["apps", "coordination.k8s.io"], "resources": ["*"], "verbs": ["*"]},
    ]
    ask("POST", ROLES, {"metadata": {"name": namespace}, "rules": rules})
    ask("DELETE", f"{RBAC}/{GROUP}")
    ask("POST", RBAC, {**BINDING, "roleRef": {**BINDING["roleRef"], "name": namespace}})
    exec_there = {"namespace": namespace, "resource": "pods", "subresource": "exec", "verb": "get"}
    review = {"spec": {"user": "airflow", "groups": [GROUP], "resourceAttributes": exec_there}}
    eventually(lambda: not ask("POST", REVIEWS, review)["status"]["allowed"])
    try:
        with pytest.raises(PermissionDenied, match=r"pods/exec in namespace .* No pod is created"):
            run(train(pool, namespace=namespace, deferrable=False, do_xcom_push=True, cmds=RESULT))
        assert not ask("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    finally:
        ask("DELETE", f"{RBAC}/{GROUP}")
        ask("POST", RBAC, BINDING)
        ask("DELETE", f"{ROLES}/{namespace}")


# -- waits -------------------------------------------------------------------------------------------------------


@DEFERRED_BY_DAY
def test_a_training_outlives_a_time_without_permission(
    pool: EksGpuPool, namespace: str, ask: Ask, gpu_sandbox: Sandbox, deferrable: bool
) -> None:
    ensure(pool)
    path = f"/api/v1/namespaces/{namespace}/pods"

    def take_away_and_give_back() -> None:
        eventually(lambda: ask("GET", path)["items"])
        ask("DELETE", f"{RBAC}/{GROUP}")
        gpu_sandbox.cut_connections()
        eventually(lambda: any("denies permission" in line_of(entry) for entry in [*told]))
        ask("POST", RBAC, BINDING)

    with capture_logs() as told, meanwhile(take_away_and_give_back, after=0):
        run(train(pool, namespace=namespace, deferrable=deferrable, cmds=["sh", "-c", "sleep 15; echo trained"]))


@DEFERRED_BY_DAY
def test_a_scale_down_outlives_a_time_without_permission(pool: EksGpuPool, ask: Ask, deferrable: bool) -> None:
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool))
    ask("DELETE", f"{RBAC}/{GROUP}")
    with meanwhile(lambda: ask("POST", RBAC, BINDING), after=10):
        result = run(ScaleDownSensor(task_id="zero", gpu_pool=pool, deferrable=deferrable, poke_interval=1))
    assert (result["nodes"], result["desired"]) == (0, 0)


def test_a_scale_down_that_fails_says_what_still_runs(
    gpu_sandbox: Sandbox, pool: EksGpuPool, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS refuses to end machines, or the cluster to be read: what is there, its price and its switch are told."""
    monkeypatch.setattr(PermissionDenied, "tolerated_for", timedelta(seconds=3))
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool))
    terminate = "airflow_gpu_provider.clouds.aws.autoscaling.AutoScaling.terminate"

    def refuses(self: Any, instance_id: str) -> None:
        raise PermissionDenied("AWS refused autoscaling:TerminateInstanceInAutoScalingGroup.", "Allow it.")

    with monkeypatch.context() as patch:
        patch.setattr(terminate, refuses)
        sensor = ScaleDownSensor(task_id="zero", gpu_pool=pool)
        with pytest.raises(PoolNotReleased) as error:
            run(sensor, context_of(sensor))
    assert error.value.retryable
    for words in (
        "Pool refused is not released: AWS refused autoscaling:TerminateInstanceInAutoScalingGroup.",
        "Still there: i-",
        "(g6.xlarge on-demand in ",
        "2.00 USD an hour each) in group refused-a-g6-xlarge",
        "Cost of the run's nodes so far: ",
        "The switch of refused-a-g6-xlarge ends them at ",
    ):
        assert words in str(error.value)
    ask("DELETE", f"{RBAC}/{GROUP}")
    administrator = access_of(gpu_sandbox.control_plane.kubeconfig).api_client()
    eventually(lambda: not may_list(administrator, groups=[GROUP]))
    with pytest.raises(PoolNotReleased) as error:
        run(ScaleDownSensor(task_id="zero", gpu_pool=pool))
    ask("POST", RBAC, BINDING)
    until_allowed(administrator, groups=[GROUP])
    for words in (
        "This is what the cloud shows; who wants the machines could not be read (",
        "Still there: i-",
        "2.00 USD an hour each) in group refused-a-g6-xlarge of size 1.",
        "Cost of these machines since their launch: ",
        "The switch of refused-a-g6-xlarge ends them at ",
    ):
        assert words in str(error.value)
    assert run(ScaleDownSensor(task_id="zero", gpu_pool=pool))["nodes"] == 0


def test_an_api_server_that_does_not_come_back_ends_a_scale_down_at_its_timeout(
    pool: EksGpuPool, gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise ClusterUnreachable("The API server is away.")

    began = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr("airflow_gpu_provider.scaling.apply.reconcile.open_pool", away)
        patch.setattr("airflow_gpu_provider.scaling.wait.pool_loop.open_pool", away)
        with pytest.raises(PoolNotReleased, match=r"The API server is away\. The remaining machines could not be read"):
            run(ScaleDownSensor(task_id="zero", gpu_pool=pool, timeout=10))
    assert time.monotonic() - began >= 10

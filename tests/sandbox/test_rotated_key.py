"""Credentials are renewed while trainings run: pod, gang and workload, deferred and not.

An access key of AWS is rotated in the pool's connection, or a kubeconfig's token file is written anew.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from structlog.testing import capture_logs

from airflow_gpu_provider import EksGpuPool, KubernetesGpuPool
from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.gpu_workload import GpuWorkloadOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.pools import GpuPool
from gpu_sandbox.aws.observer import aws_client
from gpu_sandbox.sandbox import Sandbox
from sandbox.tests.node_checks.checks import UNTIL_TOLD, end
from tests.sandbox.running import eventually, line_of, run

SCRIPT = f"echo begun; {UNTIL_TOLD}; echo trained"
PODS = 8
"""Of two single pods, two gangs of two, and two workloads."""


class Key:
    """The connection's: a second one of the administrator, whose first one takes its place."""

    def __init__(self, sandbox: Sandbox, patch: pytest.MonkeyPatch) -> None:
        self._iam = aws_client(sandbox.aws, "iam")
        self._first = sandbox.aws.access_key
        self._user = self._first.arn.rpartition("/")[2]
        self._patch = patch
        made = self._iam.create_access_key(UserName=self._user)["AccessKey"]
        self._old: str = made["AccessKeyId"]
        self._endpoint = sandbox.aws.endpoint_url
        self._put(self._old, made["SecretAccessKey"])

    def rotate(self) -> None:
        """The connection has the new key before the old one dies."""
        self._put(self._first.access_key_id, self._first.secret_access_key)
        self._iam.update_access_key(UserName=self._user, AccessKeyId=self._old, Status="Inactive")

    def delete(self) -> None:
        self._iam.delete_access_key(UserName=self._user, AccessKeyId=self._old)

    def pool(self, brings: EksGpuPool) -> EksGpuPool:
        return replace(brings, aws_conn_id="rotated")

    def _put(self, key_id: str, secret: str) -> None:
        extra = {"endpoint_url": self._endpoint}
        connection = {"conn_type": "aws", "login": key_id, "password": secret, "extra": extra}
        self._patch.setenv("AIRFLOW_CONN_ROTATED", json.dumps(connection))


class TokenFile:
    """Of a service account: each token lives as long as a Secret. It is in the file that the kubeconfig names."""

    def __init__(self, sandbox: Sandbox, patch: pytest.MonkeyPatch) -> None:
        folder = Path(tempfile.mkdtemp(dir=sandbox.kubeconfig.parent))
        self._api = config.new_client_from_config(str(sandbox.kubeconfig))
        self._core = client.CoreV1Api(self._api)
        self._core.create_namespaced_service_account("default", {"metadata": {"name": "renewed"}})
        client.RbacAuthorizationV1Api(self._api).create_cluster_role_binding(
            {
                "metadata": {"name": "renewed"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "ServiceAccount", "name": "renewed", "namespace": "default"}],
            }
        )
        self._file = folder / "token"
        self._file.write_text(self._token("renewed-first"))
        self._renewed = self._token("renewed-second")
        kubeconfig = yaml.safe_load(sandbox.kubeconfig.read_text())
        kubeconfig["users"] = [{"name": each["name"], "user": {"tokenFile": "token"}} for each in kubeconfig["users"]]
        (folder / "config").write_text(yaml.safe_dump(kubeconfig))
        connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(folder / "config")}}
        patch.setenv("AIRFLOW_CONN_RENEWED", json.dumps(connection))

    def rotate(self) -> None:
        self._file.write_text(self._renewed)
        self._core.delete_namespaced_secret("renewed-first", "default")

    def delete(self) -> None:
        self._core.delete_namespaced_secret("renewed-second", "default")
        self._core.delete_namespaced_service_account("renewed", "default")
        client.RbacAuthorizationV1Api(self._api).delete_cluster_role_binding("renewed")
        self._api.close()

    def pool(self, brings: EksGpuPool) -> KubernetesGpuPool:
        return KubernetesGpuPool(
            name="renewed",
            kubernetes_conn_id="renewed",
            provisioner="cluster-autoscaler",
            node_selector_labels={"node.kubernetes.io/instance-type": brings.instance_types[0]},
            gpus_per_node=1,
            taints=list(brings.taints),
            max_runtime=timedelta(hours=1),
        )

    def _token(self, secret: str) -> str:
        made = self._core.create_namespaced_secret("default", {"metadata": {"name": secret}})
        to = {"kind": "Secret", "apiVersion": "v1", "name": secret, "uid": made.metadata.uid}
        request = {"spec": {"expirationSeconds": 3600, "boundObjectRef": to, "audiences": []}}
        answer = self._core.create_namespaced_service_account_token("renewed", "default", request)
        token: str = answer.status.token
        return token


@pytest.fixture(params=[Key, pytest.param(TokenFile, marks=pytest.mark.nightly)], ids=["key", "token file"])
def renewed(
    gpu_sandbox: Sandbox, env: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Key | TokenFile]:
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    renewed = request.param(gpu_sandbox, monkeypatch)
    yield renewed
    renewed.delete()


@pytest.fixture
def pool(gpu_sandbox: Sandbox, renewed: Key | TokenFile) -> GpuPool:
    brings = EksGpuPool(
        name="rotated",
        cluster_name=gpu_sandbox.cluster_name,
        region=gpu_sandbox.region,
        instance_types=["g6.xlarge"],
        zones=[gpu_sandbox.zones[0]],
        node_role=gpu_sandbox.node_role_arn,
        max_nodes=PODS,
        max_runtime=timedelta(hours=1),
    )
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=brings, nodes=PODS, deferrable=False))
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=brings))
    return renewed.pool(brings)


def operators(pool: GpuPool) -> Iterator[Any]:
    for deferrable in (False, True):
        how: dict[str, Any] = {"gpu_pool": pool, "deferrable": deferrable, "utilization": False}
        name = "deferred" if deferrable else "blocking"
        pod = {"image": "busybox:1.36", "cmds": ["sh", "-c", SCRIPT], "do_xcom_push": False, **how}
        yield GpuPodOperator(task_id=f"pod-{name}", **pod)
        yield GpuPodOperator(task_id=f"gang-{name}", nodes=2, **pod)
        container = {"name": "base", "image": "busybox:1.36", "command": ["sh", "-c", SCRIPT]}
        container["resources"] = {"limits": {"nvidia.com/gpu": 1}}
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        manifest = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"backoffLimit": 0, "template": template}}
        yield GpuWorkloadOperator(task_id=f"workload-{name}", manifest=manifest, **how)


def test_no_success_is_lost_and_no_gpu_is_held(gpu_sandbox: Sandbox, renewed: Key | TokenFile, pool: GpuPool) -> None:
    with config.new_client_from_config(gpu_sandbox.env()["KUBECONFIG"]) as api:
        core = client.CoreV1Api(api)
        old = platform_for(pool).cluster_access().token
        assert old is not None
        token = old()
        with capture_logs() as told:
            succeeded: set[str] = set()
            for each in operators(pool):
                threading.Thread(target=succeed, args=(each, succeeded), daemon=True).start()
            eventually(lambda: sum("begun" in line_of(each) for each in [*told]) >= PODS)
            renewed.rotate()
            eventually(lambda: is_refused(gpu_sandbox, token))
            gpu_sandbox.cut_connections()
            for pod in core.list_namespaced_pod("default").items:
                end(core, pod.metadata.name)
            eventually(lambda: succeeded == {each.task_id for each in operators(pool)})
        lines = [line_of(each) for each in told]
        assert sum("trained" in line for line in lines) == PODS
        assert not [line for line in lines if "CredentialsError" in line]
        eventually(lambda: not core.list_namespaced_pod("default").items)


def succeed(operator: Any, succeeded: set[str]) -> None:
    run(operator)
    succeeded.add(operator.task_id)


def is_refused(sandbox: Sandbox, token: str) -> bool:
    """Whether the API server takes the token no more: it keeps for some seconds what it knows of one."""
    configuration = client.Configuration()
    config.load_kube_config(sandbox.env()["KUBECONFIG"], client_configuration=configuration)
    configuration.cert_file = configuration.key_file = None
    configuration.api_key = {"authorization": f"Bearer {token}"}
    with client.ApiClient(configuration) as api:
        try:
            client.CoreV1Api(api).list_namespace()
        except ApiException as error:
            return bool(error.status == 401)
    return False

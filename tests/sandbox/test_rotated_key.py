"""The access key of a pool's connection is rotated while trainings run: pod, gang and workload, deferred and not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from structlog.testing import capture_logs

from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.gpu_workload import GpuWorkloadOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.platforms.base import platform_for
from airflow_gpu_provider.pools import EksGpuPool
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

    def _put(self, key_id: str, secret: str) -> None:
        extra = {"endpoint_url": self._endpoint}
        connection = {"conn_type": "aws", "login": key_id, "password": secret, "extra": extra}
        self._patch.setenv("AIRFLOW_CONN_ROTATED", json.dumps(connection))


@pytest.fixture
def key(gpu_sandbox: Sandbox, env: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Key]:
    monkeypatch.setattr("airflow_gpu_provider.triggers.deferral_delay.EVENT_AFTER_SECONDS", 0)
    key = Key(gpu_sandbox, monkeypatch)
    yield key
    key.delete()


@pytest.fixture
def pool(gpu_sandbox: Sandbox, key: Key) -> EksGpuPool:
    pool = EksGpuPool(
        name="rotated",
        cluster_name=gpu_sandbox.cluster_name,
        region=gpu_sandbox.region,
        instance_types=["g6.xlarge"],
        zones=[gpu_sandbox.zones[0]],
        node_role=gpu_sandbox.node_role_arn,
        max_nodes=PODS,
        max_runtime=timedelta(hours=1),
        aws_conn_id="rotated",
    )
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=PODS, deferrable=False))
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=pool))
    return pool


def operators(pool: EksGpuPool) -> Iterator[Any]:
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


def test_no_success_is_lost_and_no_gpu_is_held(gpu_sandbox: Sandbox, key: Key, pool: EksGpuPool) -> None:
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
            key.rotate()
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

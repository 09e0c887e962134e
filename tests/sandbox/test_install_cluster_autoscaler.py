"""A cluster without cluster-autoscaler: what needs one says so, and InstallClusterAutoscalerOperator brings it.

No container of cluster-autoscaler runs here: the test is its kubelet, and writes what it would report.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.autoscaler_status import LAST_UPDATED, STATUS_NAME, STATUS_NAMESPACE
from airflow_gpu_provider.cluster.rest import MERGE_PATCH, call, list_items, object_path, server_side_apply
from airflow_gpu_provider.errors import AutoscalerConflict, AutoscalerNotRunning, PoolSpecError
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.install_cluster_autoscaler import InstallClusterAutoscalerOperator
from airflow_gpu_provider.platforms.base import platform_for
from airflow_gpu_provider.pools import EksGpuPool
from airflow_gpu_provider.scaling.apply.reconcile import open_pool
from tests.sandbox.running import eventually, run

POOL = EksGpuPool(
    name="scaled",
    cluster_name="k8s-ml",
    region="us-west-2",
    instance_types=["g6.xlarge"],
    max_nodes=1,
    scaling="autoscaler",
)
REPORT = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": STATUS_NAME, "namespace": STATUS_NAMESPACE}}
DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment"}
OURS = f"/apis/apps/v1/namespaces/{STATUS_NAMESPACE}/deployments/cluster-autoscaler"


@pytest.fixture(scope="module")
def bare(gpu_sandbox_factory: Any) -> Any:
    return gpu_sandbox_factory(autoscaler="none")


@pytest.fixture
def api(bare: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in {**bare.env(), "AIRFLOW__GPU_PROVIDER__INSTALLATION_ID": "tests"}.items():
        monkeypatch.setenv(name, value)
    api = platform_for(POOL).cluster_access().api_client()
    for node in list_items(api, "/api/v1/nodes", resource="nodes"):
        path, body = f"/api/v1/nodes/{node['metadata']['name']}", {"spec": {"unschedulable": True}}
        call(api, "patch", path, resource="nodes", body=body, content_type=MERGE_PATCH)
    yield api
    for path in (OURS, object_path(REPORT)):
        delete(api, path)


def delete(api: Any, path: str) -> None:
    from airflow_gpu_provider.cluster.api_errors import ObjectNotFound

    try:
        call(api, "delete", path, resource="objects")
    except ObjectNotFound:
        return


def reports(api: Any, at: datetime | None = None) -> None:
    """Write what cluster-autoscaler writes each ten seconds."""
    annotations = {LAST_UPDATED: f"{at or datetime.now(UTC):%Y-%m-%d %H:%M:%S}.123456789 +0000 UTC"}
    metadata = {**REPORT["metadata"], "annotations": annotations}  # type: ignore[dict-item]
    server_side_apply(api, {**REPORT, "metadata": metadata, "data": {"status": "autoscalerStatus: Running"}})


def run_its_pod(api: Any) -> None:
    """Be the kubelet of the one pod of the Deployment, and the autoscaler in it."""
    path = f"/api/v1/namespaces/{STATUS_NAMESPACE}/pods"
    label = "app.kubernetes.io/name=cluster-autoscaler"
    pod = eventually(lambda: list_items(api, path, resource="pods", labelSelector=label))[0]
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    status = f"{path}/{pod['metadata']['name']}/status"
    call(api, "patch", status, resource="pods/status", body={"status": ready}, content_type=MERGE_PATCH)
    reports(api)


def install(**arguments: Any) -> Any:
    return run(InstallClusterAutoscalerOperator(task_id="install", gpu_pool=POOL, **arguments))


def test_ensure_says_that_there_is_none_before_anything_is_created(api: Any) -> None:
    with pytest.raises(AutoscalerNotRunning, match=r"ConfigMap kube-system/cluster-autoscaler-status does not exist"):
        run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL))
    reports(api, datetime.now(UTC) - timedelta(minutes=10))
    with pytest.raises(AutoscalerNotRunning, match="was last written at"):
        run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL))
    assert platform_for(POOL).observe() == ()
    assert open_pool(POOL, owner="tests", holder="tests", report=print).snapshot().leases == ()


def test_is_installed_once_tuned_in_place_and_found_running(api: Any) -> None:
    kubelet = threading.Thread(target=run_its_pod, args=(api,))
    kubelet.start()
    result = install(service_account_role_arn="arn:aws:iam::123456789012:role/autoscaler")
    kubelet.join()
    assert result["deployment"] == "kube-system/cluster-autoscaler"
    assert result["changes"]["Deployment cluster-autoscaler"] == "created"

    again = install(service_account_role_arn="arn:aws:iam::123456789012:role/autoscaler")
    assert set(again["changes"].values()) == {"unchanged"}
    with pytest.raises(AutoscalerNotRunning, match="is not available yet"):
        install(options={"scale-down-unneeded-time": "5m"}, timeout=timedelta(seconds=0))
    (container,) = call(api, "get", OURS, resource="deployments")["spec"]["template"]["spec"]["containers"]
    assert "--scale-down-unneeded-time=5m" in container["args"]


def test_what_does_not_come_up_in_time_is_named(api: Any) -> None:
    with pytest.raises(AutoscalerNotRunning, match="Deployment kube-system/cluster-autoscaler is not available yet"):
        install(timeout=timedelta(seconds=3))


def test_its_version_is_that_of_the_cluster(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AutoscalerNotRunning, match=r"cluster-autoscaler:v1\.36\.1, in Kubernetes 1\.36\) does not run"):
        install(timeout=timedelta(seconds=0))
    monkeypatch.setattr(InstallClusterAutoscalerOperator, "_kubernetes", lambda _: "1.33")
    with pytest.raises(PoolSpecError, match=r"v1\.36\.1 never starts in a cluster with Kubernetes 1\.33.*v1\.33\.5"):
        install(version="v1.36.1")
    with pytest.raises(AutoscalerNotRunning, match=r"cluster-autoscaler:v1\.33\.5, in Kubernetes 1\.33\) does not run"):
        install(timeout=timedelta(seconds=0))
    (container,) = call(api, "get", OURS, resource="deployments")["spec"]["template"]["spec"]["containers"]
    assert container["image"].endswith(":v1.33.5")


def test_another_one_is_left_alone(api: Any) -> None:
    labels = {"app": "other"}
    container = {"name": "ca", "image": "registry.example.com/autoscaling/cluster-autoscaler:v1.35.0"}
    other = {
        **DEPLOYMENT,
        "metadata": {"name": "aws-cluster-autoscaler", "namespace": "default"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    server_side_apply(api, other)
    try:
        with pytest.raises(AutoscalerConflict, match="default/aws-cluster-autoscaler is a cluster-autoscaler already"):
            install()
    finally:
        delete(api, object_path(other))


def test_one_that_runs_elsewhere_is_left_alone(api: Any) -> None:
    reports(api)
    with pytest.raises(AutoscalerConflict, match="that is no Deployment reports in ConfigMap"):
        install()

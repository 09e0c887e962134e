"""A cluster without cluster-autoscaler: what needs one says so, and InstallClusterAutoscalerOperator brings it.

No container of cluster-autoscaler runs here: the test writes what it would report.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.cli import commands
from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.cluster.api.rest import MERGE_PATCH, call, list_items, object_path, server_side_apply
from airflow_gpu_provider.cluster.model.autoscaler_status import LAST_UPDATED, STATUS_NAME, STATUS_NAMESPACE
from airflow_gpu_provider.errors import AutoscalerConflict, AutoscalerNotRunning
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.install_cluster_autoscaler import InstallClusterAutoscalerOperator
from airflow_gpu_provider.scaling.apply.reconcile import open_pool
from tests.sandbox.running import run

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
    from airflow_gpu_provider.cluster.model.refusals import ObjectNotFound

    try:
        call(api, "delete", path, resource="objects")
    except ObjectNotFound:
        return


def reports(api: Any, at: datetime | None = None) -> None:
    """Write what cluster-autoscaler writes each ten seconds."""
    annotations = {LAST_UPDATED: f"{at or datetime.now(UTC):%Y-%m-%d %H:%M:%S}.123456789 +0000 UTC"}
    metadata = {**REPORT["metadata"], "annotations": annotations}  # type: ignore[dict-item]
    server_side_apply(api, {**REPORT, "metadata": metadata, "data": {"status": "autoscalerStatus: Running"}})


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


def args(api: Any) -> list[str]:
    (container,) = call(api, "get", OURS, resource="deployments")["spec"]["template"]["spec"]["containers"]
    return list(container["args"])


def test_is_installed_once_with_the_image_of_the_cluster_and_changed_by_another_run(api: Any) -> None:
    role = "arn:aws:iam::123456789012:role/autoscaler"
    first = install(service_account_role_arn=role)
    assert first["deployment"] == "kube-system/cluster-autoscaler"
    assert first["changes"]["Deployment cluster-autoscaler"] == "created"
    (container,) = call(api, "get", OURS, resource="deployments")["spec"]["template"]["spec"]["containers"]
    assert container["image"].endswith("cluster-autoscaler:v1.36.1")
    assert set(install(service_account_role_arn=role)["changes"].values()) == {"unchanged"}

    again = install(service_account_role_arn=role, flags=["--scale-down-unneeded-time=5m"])["changes"]
    assert {name for name, change in again.items() if change == "configured"} == {"Deployment cluster-autoscaler"}
    assert "--scale-down-unneeded-time=5m" in args(api)
    assert install(service_account_role_arn=role)["changes"]["Deployment cluster-autoscaler"] == "configured"
    assert "--scale-down-unneeded-time=5m" not in args(api)


def test_the_command_prints_what_the_task_applies(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "pool.json"
    spec.write_text(json.dumps(POOL.serialize()))
    given = {"flag": ["--v=4"], "image": None, "role_arn": None}
    commands.manifest(Namespace(pools=[], dag_id=None, spec=str(spec), verbose=False, **given))
    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    install(flags=["--v=4"])
    assert {server_side_apply(api, each) for each in printed} == {"unchanged"}


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

"""The plugin of the web UI: what it costs Airflow's processes, how it is left out, and that it ends no API server."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, KubernetesGpuPool
from airflow_gpu_provider.plugins import gpu_pools
from airflow_gpu_provider.plugins.gpu_pools import BUNDLE, STATIC, GpuPoolsPlugin, bundle_url
from airflow_gpu_provider.pools import GpuPool

EKS: dict[str, Any] = {"name": "train", "instance_types": ["g6.xlarge"], "max_nodes": 1}
GKE: dict[str, Any] = {
    "name": "train",
    "gcp_conn_id": "g",
    "project_id": "ml-project",
    "location": "us-central1",
    "cluster_name": "ml",
    "machine_types": ["g2-standard-4"],
    "max_nodes": 1,
}

AS_A_TASK_LOADS_IT = """
import json, sys
from airflow.sdk.plugins_manager import _get_plugins
plugins, errors = _get_plugins()
print(json.dumps([[each.name for each in plugins], errors, sorted(sys.modules)]))
"""


def test_a_task_that_loads_plugins_does_not_load_fastapi() -> None:
    done = subprocess.run([sys.executable, "-c", AS_A_TASK_LOADS_IT], capture_output=True, text=True, check=True)
    plugins, errors, modules = json.loads(done.stdout.splitlines()[-1])
    assert "gpu_pools" in plugins
    assert not errors
    assert not {"fastapi", "starlette", "kubernetes", "boto3"} & set(modules)


def test_airflow_finds_page_tab_and_app() -> None:
    plugin = GpuPoolsPlugin()
    assert {each["destination"] for each in plugin.react_apps} == {"nav", "dag_run"}
    assert len({each["url_route"] for each in plugin.react_apps}) == len(plugin.react_apps)
    (app,) = plugin.fastapi_apps
    assert isinstance(app["app"], FastAPI)
    assert plugin.react_apps[0]["bundle_url"].startswith(f"{app['url_prefix']}/static/".lstrip("/"))


def test_the_address_is_relative_so_that_it_holds_below_a_sub_path() -> None:
    assert not bundle_url().startswith(("/", "http"))


@pytest.mark.parametrize(
    ("pool", "cluster"),
    [
        (EksGpuPool(cluster_name="ml", region="us-west-2", **EKS), "eks/aws_default/us-west-2/ml"),
        (EksGpuPool(cluster_name="ml", region="us-west-2", aws_conn_id=None, **EKS), "eks/None/us-west-2/ml"),
        (GkeGpuPool(**GKE, impersonation_chain=["a@b", "c@d"]), "gke/g/a@b,c@d/ml-project/us-central1/ml"),
        (GkeGpuPool(**GKE, impersonation_chain="a@b"), "gke/g/a@b/ml-project/us-central1/ml"),
        (GkeGpuPool(**GKE), "gke/g//ml-project/us-central1/ml"),
        (KubernetesGpuPool(name="train", nodes=["a"], kubernetes_conn_id="k"), "kubernetes/k/"),
    ],
)
def test_a_pool_s_cluster_is_called_as_the_page_calls_it(pool: GpuPool, cluster: str) -> None:
    """The page makes the same of a task's rendered spec: ui/test/records.test.ts has these pools, too."""
    assert pool.cluster_identity == cluster


def test_other_contents_have_another_address(tmp_path: Path) -> None:
    (tmp_path / BUNDLE).write_text("one")
    one = bundle_url(tmp_path)
    assert bundle_url(tmp_path) == one
    (tmp_path / BUNDLE).write_text("two")
    assert bundle_url(tmp_path) != one


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__UI", "False")
    assert GpuPoolsPlugin().react_apps == []
    assert GpuPoolsPlugin().fastapi_apps == []


@pytest.mark.parametrize("wrong", ["bundle", "setting"])
def test_what_goes_wrong_is_logged_and_ends_no_api_server(
    wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if wrong == "bundle":
        monkeypatch.setattr(gpu_pools.bundle_url, "__defaults__", (tmp_path,))
    else:
        monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__UI", "perhaps")
    assert GpuPoolsPlugin().react_apps == []
    assert "left out of the web UI" in caplog.text


def test_it_serves_the_bundle_and_nothing_else() -> None:
    (app,) = GpuPoolsPlugin().fastapi_apps
    client = TestClient(app["app"])
    answer = client.get(f"/static/{BUNDLE}")
    assert answer.status_code == 200
    assert "javascript" in answer.headers["content-type"]
    for path in ("/", "/static/", "/docs", "/openapi.json", "/static/../gpu_pools.py", "/static/%2e%2e/gpu_pools.py"):
        assert client.get(path).status_code == 404, path
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert client.request(method, f"/static/{BUNDLE}").status_code == 405
        assert client.request(method, "/").status_code == 404


def test_the_bundle_is_small_and_is_only_this_packages_code() -> None:
    text = (STATIC / BUNDLE).read_bytes()
    assert len(gzip.compress(text)) <= 30_000
    assert b"AirflowPlugin" in text
    assert b"dangerouslySetInnerHTML" not in text
    assert b"innerHTML" not in text

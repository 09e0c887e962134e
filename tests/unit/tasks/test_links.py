"""The links on a task's page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool, KubernetesGpuPool
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from airflow_gpu_provider.tasks.links import NodeGroupsLink

EKS = EksGpuPool(name="gpu", cluster_name="ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1)
OTHERS = KubernetesGpuPool(name="gpu", nodes=["n1"])
KEY = SimpleNamespace(dag_id="nightly", run_id="scheduled__2026-03-01T02:00:00+00:00")
TAB = "/dags/nightly/runs/scheduled__2026-03-01T02%3A00%3A00%2B00%3A00/plugin/gpu_nodes"


def links(operator: Any) -> dict[str, str]:
    return {link.name: link.get_link(operator, ti_key=KEY) for link in operator.operator_extra_links}


@pytest.mark.parametrize("pool", [EKS, OTHERS], ids=lambda pool: pool.kind)
def test_each_pools_tasks_lead_to_the_runs_tab(pool: GpuPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com/team/")
    for task in (
        GpuPodOperator(task_id="train", gpu_pool=pool, image="train:1"),
        ScaleDownSensor(task_id="zero", gpu_pool=pool),
    ):
        assert links(task)["GPU nodes"] == f"https://airflow.example.com/team{TAB}"


def test_without_the_page_no_link_leads_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__UI", "False")
    assert links(ScaleDownSensor(task_id="zero", gpu_pool=EKS)) == {"GPU nodes": "", "Node groups": EKS.console_url}


def test_only_machines_of_a_cloud_have_a_console() -> None:
    assert links(ScaleDownSensor(task_id="zero", gpu_pool=EKS))["Node groups"].startswith("https://us-west-2.console")
    assert links(ScaleDownSensor(task_id="zero", gpu_pool=OTHERS))["Node groups"] == ""


@pytest.mark.parametrize(
    ("url", "arguments", "link"),
    [
        ("https://kueueviz.example.com/", {"queue_name": "team-a"}, "/local-queue/default/team-a"),
        ("https://kueueviz.example.com", {"queue_name": "gpus", "namespace": "ml"}, "/local-queue/ml/gpus"),
        ("https://kueueviz.example.com", {}, ""),
        ("", {"queue_name": "gpus"}, ""),
    ],
)
def test_a_training_in_a_queue_leads_to_it(
    url: str, arguments: dict[str, Any], link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__KUEUEVIZ_URL", url)
    task = GpuPodOperator(task_id="train", gpu_pool=EKS, image="train:1", **arguments)
    assert links(task)["Kueue queue"] == (f"{url.rstrip('/')}{link}" if link else "")


@pytest.mark.parametrize("operator", [SimpleNamespace(gpu_pool=None), SimpleNamespace()], ids=["no pool", "unmapped"])
def test_a_task_that_failed_for_want_of_a_pool_has_none(operator: Any) -> None:
    assert NodeGroupsLink().get_link(operator, ti_key=KEY) == ""

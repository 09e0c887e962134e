"""A night's lineage: what OpenLineage's own extractor finds is what the night was, and its pod knows its parent."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter
from airflow.utils.state import TaskInstanceState
from openlineage.client.serde import Serde

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from airflow_gpu_provider.tasks.telemetry import FACET
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import context_of, run

NIGHT = "scheduled__2026-01-01T02:00:00+00:00"
DUE = datetime(2026, 1, 1, 2, tzinfo=UTC)


def facet_of(operator: Any, **ti: Any) -> dict[str, Any]:
    """Run a task, and return its facet as an event has it."""
    context = context_of(operator, run_id=NIGHT, **ti)
    instance = context["ti"]
    instance.dag_run = SimpleNamespace(logical_date=DUE, clear_number=0, conf={}, run_id=NIGHT)
    instance.get_template_context = lambda: {"dag_run": instance.dag_run}
    run(operator, context)
    told = ExtractorManager().extract_metadata(instance.dag_run, operator, TaskInstanceState.SUCCESS, instance)
    facet: dict[str, Any] = Serde.to_dict(told.run_facets[FACET])
    return facet


def test_a_night_of_one_training(
    gpu_sandbox: Sandbox,
    gpu_sandbox_env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")  # what is there is enabled; nothing is emitted
    pool = EksGpuPool(
        name="lineage",
        cluster_name=gpu_sandbox.cluster_name,
        region=gpu_sandbox.region,
        instance_types=["g6.xlarge"],
        zones=[gpu_sandbox.zones[0]],
        max_nodes=1,
        price_per_hour=360.0,
    )
    brought = facet_of(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=1, deferrable=False))
    (machine,) = brought["machines"]
    assert (machine["instanceType"], machine["market"], machine["gpus"]) == ("g6.xlarge", "ON_DEMAND", 1)

    run(InstallDevicePluginOperator(task_id="plugin", gpu_pool=pool, deferrable=False), run_id=NIGHT)
    says = "import os, time; print('parent', os.environ['OPENLINEAGE_PARENT_ID']); time.sleep(3)"
    training = facet_of(
        GpuPodOperator(task_id="train", gpu_pool=pool, image="python:3.12", cmds=["python", "-c", says])
    )
    assert training["gpuHours"] * 3600 == pytest.approx(3, abs=2)
    run_id = OpenLineageAdapter.build_task_instance_run_id("nightly", "train", 1, DUE, -1)
    assert f"parent default/nightly.train/{run_id}" in capfd.readouterr().out

    bill = facet_of(ScaleDownSensor(task_id="zero", gpu_pool=pool))
    (gone,) = bill["machines"]
    assert (gone["node"], gone["machine"]) == (machine["node"], machine["machine"])
    assert bill["cost"] == pytest.approx(360.0 * bill["nodeHours"], rel=0.02)
    assert training["gpuHours"] <= bill["gpuHours"] <= bill["nodeHours"]
    assert (bill["currency"], bill["priceSource"]) == ("USD", "spec")

"""OpenLineage's facet and parent, as OpenLineage's own library emits and reads them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.utils.state import TaskInstanceState
from jsonschema import Draft202012Validator
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.common.provider.dbt.utils import get_parent_run_metadata

import airflow_gpu_provider.tasks
from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.gpu_workload import GpuWorkloadOperator
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from airflow_gpu_provider.tasks.telemetry import FACET, PARENT, ROOT_PARENT, parent_variables
from tests.browser import recorded
from tests.unit.training.manifests import JOB_SET

SCHEMA = json.loads((Path(airflow_gpu_provider.tasks.__file__).parent / "gpu_nodes_run_facet.json").read_text())
POOL = EksGpuPool(name="train-gpu", cluster_name="ml", region="us-west-2", instance_types=["g6.12xlarge"], max_nodes=2)
RUN_ID = "01938d2e-0000-7000-8000-000000000001"

NODE = {"name": "ip-10-0-1-7", "machine": "i-0abc", "group": "train-gpu-a", "zone": "us-west-2a"}
TIMELINE = [
    {"phase": "image pull", "at": "2026-03-01T02:00:00.000000Z", "seconds": 60.0},
    {"phase": "ran", "at": "2026-03-01T02:01:00.000000Z", "seconds": 1800.0},
    {"phase": "ran", "at": "2026-03-01T02:45:00.000000Z", "seconds": 5400.0, "attempt": 2},
]


def emitted(operator: Any, state: TaskInstanceState, folder: Path) -> dict[str, Any]:
    """The facet of the event that OpenLineage's client writes for a task that has ended; {} where it has none."""
    ti = SimpleNamespace(task=operator, task_id=operator.task_id)
    told = ExtractorManager().extract_metadata(SimpleNamespace(run_id="r"), operator, state, ti)
    log = folder / "events.jsonl"
    client = OpenLineageClient(transport=FileTransport(FileConfig(log_file_path=str(log), append=True)))
    event = RunEvent(
        eventType=RunState.COMPLETE if state == TaskInstanceState.SUCCESS else RunState.FAIL,
        eventTime="2026-03-01T03:00:00+00:00",
        run=Run(runId=RUN_ID, facets=told.run_facets),
        job=Job(namespace="airflow", name=f"nightly.{operator.task_id}"),
    )
    client.emit(event)
    facet: dict[str, Any] = json.loads(log.read_text())["run"]["facets"].get(FACET, {})
    if facet:
        Draft202012Validator(SCHEMA).validate(facet)
    return {name: value for name, value in facet.items() if not name.startswith("_")}


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("state", [TaskInstanceState.SUCCESS, TaskInstanceState.FAILED])
@pytest.mark.parametrize(
    ("price", "told"),
    [
        (2.0, {"cost": 2.1167, "currency": "USD", "priceSource": "spec"}),
        (None, {"currency": "USD"}),
    ],
)
def test_a_scale_down_has_the_runs_machines_and_their_cost(
    price: float | None, told: dict[str, Any], state: TaskInstanceState, tmp_path: Path
) -> None:
    operator = ScaleDownSensor(task_id="zero", gpu_pool=POOL)
    usage = recorded.usage(datetime(2026, 3, 1, 2, tzinfo=UTC), price=price)
    operator._leave({"ti": Ti()}, SimpleNamespace(to_json=lambda: usage))
    machine = {"node": "node-030102", "machine": "i-030102", "group": "train-gpu-a", "market": "spot"}
    assert emitted(operator, state, tmp_path) == {
        "pool": "train-gpu",
        "machines": [machine],
        "nodeHours": 1.0583,
        "gpuHours": 4.0,
        **told,
    }


@pytest.mark.parametrize("gpus", [4, 0], ids=["told", "before the device plugin runs"])
def test_ensure_has_the_machines_that_it_has_brought(gpus: int, tmp_path: Path) -> None:
    operator = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL)
    node = {**NODE, "instance_type": "g6.12xlarge", "capacity_type": "SPOT", "gpus": gpus}
    opened = SimpleNamespace(record_machines=lambda: None)
    operator._finish(lambda: opened, {"nodes": [node], "timeline": []}, {"ti": Ti()})
    found = emitted(operator, TaskInstanceState.SUCCESS, tmp_path)
    machine = {"node": "ip-10-0-1-7", "machine": "i-0abc", "group": "train-gpu-a", "zone": "us-west-2a"}
    machine |= {"instanceType": "g6.12xlarge", "market": "SPOT", "gpus": 4}
    assert found == {"pool": "train-gpu", "machines": [machine]}


def test_a_training_has_its_gpu_hours_over_all_attempts(tmp_path: Path) -> None:
    operator = GpuPodOperator(task_id="train", gpu_pool=POOL, image="train:1", gpus=4, nodes=2)
    operator._context = {"ti": Ti()}
    operator.push("timeline", TIMELINE)
    assert emitted(operator, TaskInstanceState.FAILED, tmp_path) == {
        "pool": "train-gpu",
        "attempts": 2,
        "gpuHours": 16.0,
    }


def test_a_workload_has_those_of_its_pods(tmp_path: Path) -> None:
    pool = replace(POOL, instance_types=("p5.48xlarge",))
    operator = GpuWorkloadOperator(task_id="train", gpu_pool=pool, manifest=JOB_SET)
    operator._context = {"ti": Ti()}
    operator.push("timeline", TIMELINE[:2])
    assert emitted(operator, TaskInstanceState.SUCCESS, tmp_path) == {
        "pool": "train-gpu",
        "attempts": 1,
        "gpuHours": 16.0,
    }


@pytest.mark.parametrize(
    "operator",
    [
        EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL),
        GpuPodOperator(task_id="train", gpu_pool=POOL, image="train:1"),
        ScaleDownSensor(task_id="zero", gpu_pool=POOL),
    ],
    ids=lambda operator: operator.task_id,
)
def test_what_has_nothing_to_tell_tells_nothing(operator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warning = Mock()
    monkeypatch.setattr(ExtractorManager, "log", SimpleNamespace(warning=warning, debug=Mock(), exception=Mock()))
    assert emitted(operator, TaskInstanceState.FAILED, tmp_path) == {}
    warning.assert_not_called()


# -- the parent ------------------------------------------------------------------------------------------------------


class Ti(SimpleNamespace):
    dag_id, task_id, try_number, map_index = "nightly", "train", 1, -1
    dag_run = SimpleNamespace(logical_date=datetime(2026, 3, 1, 2, tzinfo=UTC), clear_number=0, conf={}, run_id="r")

    def xcom_push(self, key: str, value: Any) -> None:
        assert key in ("usage", "timeline")

    def xcom_pull(self, **_: Any) -> None:
        return None

    def get_template_context(self) -> dict[str, Any]:
        return {"dag_run": self.dag_run}


def test_a_training_knows_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    variables = parent_variables(Ti())
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    parent = get_parent_run_metadata()  # as OpenLineage's dbt integration does
    assert (parent.job_namespace, parent.job_name) == ("default", "nightly.train")
    assert (parent.root_parent_job_name, parent.root_parent_job_namespace) == ("nightly", "default")
    assert parent.run_id != parent.root_parent_run_id
    assert set(variables) == {PARENT, ROOT_PARENT}


def test_lineage_that_emits_nothing_has_no_parent() -> None:
    assert parent_variables(Ti()) == {}


def test_without_the_provider_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.conf", None)
    assert parent_variables(Ti()) == {}


def test_a_parent_that_cannot_be_told_stops_no_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    assert parent_variables(SimpleNamespace(dag_id="nightly", task_id="train")) == {}
    assert "do not know their OpenLineage parent" in caplog.text

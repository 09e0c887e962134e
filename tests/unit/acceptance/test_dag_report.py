"""The report of a DAG run: from its tasks' states and XComs, and from the cloud's own lists."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.acceptance import report as acceptance_report
from airflow_gpu_provider.acceptance.pools import AcceptanceCost
from airflow_gpu_provider.clouds.remains import Listed
from airflow_gpu_provider.pools import GpuPool

POOL = EksGpuPool(
    name="accept-train", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1
)
XCOMS: dict[tuple[str, str], Any] = {
    ("night.ensure", "return_value"): {"timeline": [{"phase": "node joined", "seconds": 181.0}]},
    ("night.device_plugin", "return_value"): {"served_by": "GKE"},
    ("pod", "return_value"): {"gpu": "NVIDIA L4", "driver": "580.95.05", "added_by": "nvcc"},
    ("pod", "timeline"): [{"phase": "ran", "seconds": 4.2}],
    ("night.scale_down", "return_value"): {"nodes": 0, "desired": 0, "seconds": 61.5},
}
STEPS = {"a night from zero": ["night.ensure", "night.device_plugin", "pod", "night.scale_down"], "delete": ["delete"]}


class Ti:
    dag_id, run_id = "accept_pool", "manual"

    def __init__(self, **states: str) -> None:
        self._states = dict.fromkeys((task for tasks in STEPS.values() for task in tasks), "success") | states

    def get_task_states(self, *, dag_id: str, task_ids: list[str], run_ids: list[str]) -> Any:
        return {self.run_id: {task: self._states[task] for task in task_ids}}

    def xcom_pull(self, *, task_ids: str, key: str = "return_value") -> Any:
        return XCOMS.get((task_ids, key))


def report(monkeypatch: pytest.MonkeyPatch, ti: Ti, *left: str, costs: bool = True) -> tuple[str, bool]:
    def remains(*names: str, pool: GpuPool) -> list[Listed]:
        return [Listed(what=f"node groups of {names}", left=left, costs=costs)]

    monkeypatch.setattr(acceptance_report, "remains", remains)
    budget = AcceptanceCost(nights=3, night=timedelta(minutes=45), price=0.8, currency="USD")
    return acceptance_report.report_of_run(ti, pools=[POOL], image="cuda:12", budget=budget, steps=STEPS)


def test_it_tells_what_the_tasks_have_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    text, has_passed = report(monkeypatch, Ti())
    assert has_passed
    assert text.startswith("# Acceptance on EKS: passed")
    for row in (
        "| a night from zero | ensure: node joined | 181.0 |",
        "| a night from zero | pod: ran | 4.2 |",
        "| a night from zero | scale down: machines gone | 61.5 |",
        "| NVIDIA driver | 580.95.05 |",
        "| GPUs are handed out by | GKE |",
        "| node groups of ('accept-train',) | nothing |",
    ):
        assert row in text


def test_a_task_that_failed_or_a_group_that_is_left_is_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    text, has_passed = report(monkeypatch, Ti(pod="failed"))
    assert not has_passed
    assert "- pod is failed" in text
    text, has_passed = report(monkeypatch, Ti(), "accept-train-a-g6-xlarge")
    assert not has_passed
    assert "| nothing is left | failed |" in text
    text, has_passed = report(monkeypatch, Ti(), "plugins/nvidia-accept-train", costs=False)
    assert has_passed
    assert "| plugins/nvidia-accept-train (costs nothing) |" in text

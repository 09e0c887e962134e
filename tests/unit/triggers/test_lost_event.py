"""A trigger whose task waits no more does what its on_kill does before it sends an event that nobody takes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_gpu_provider.scaling.wait.records import is_handed_back
from airflow_gpu_provider.triggers.pod import GpuPodTrigger
from airflow_gpu_provider.triggers.record import RecordTrigger


class Counted(RecordTrigger):
    """A wait that is over at once."""

    record_version = 1

    def __init__(self, *, has_task: bool = True) -> None:
        super().__init__({"deferred_at": 0.0, "version": 1})
        self.done: list[str] = []
        self.task_instance: Any = None
        if has_task:
            self.task_instance = SimpleNamespace(dag_id="nightly", task_id="train", run_id="run", map_index=-1)

    async def _result(self) -> Mapping[str, Any]:
        return {}

    async def on_kill(self) -> None:
        self.done.append("on_kill")

    async def collect(self) -> list[str]:
        async for event in self.run():
            self.done.append(event.payload["status"])
        return self.done


@pytest.mark.parametrize(
    ("states", "done"),
    [
        ({"run": {"train": "deferred"}}, ["done"]),
        ({"run": {"train": "failed"}}, ["on_kill", "done"]),
        ({"run": {"train": "skipped"}}, ["on_kill", "done"]),
        ({}, ["on_kill", "done"]),
    ],
)
def test_what_a_task_leaves_that_waits_no_more_is_undone(
    states: Mapping[str, Any], done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **_: states)
    assert asyncio.run(Counted().collect()) == done


def test_airflow_that_cannot_be_asked_costs_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: Any) -> None:
        raise RuntimeError("Airflow's API server is away")

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", fails)
    assert asyncio.run(Counted().collect()) == ["done"]


def test_a_trigger_without_a_task_asks_nobody() -> None:
    assert asyncio.run(Counted(has_task=False).collect()) == ["done"]


def test_a_pod_of_a_later_releases_record_is_left_to_the_worker_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stalled triggerer has the record, too: what it does not understand it neither waits for nor deletes."""
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **_: {"run": {"train": "running"}})
    trigger = GpuPodTrigger({"version": 99, "kind": "pod", "deferred_at": 0.0, "pool": {}})
    trigger.task_instance = Counted().task_instance
    undone: list[str] = []

    async def undo() -> None:
        undone.append("undone")

    monkeypatch.setattr(trigger, "undo", undo)

    async def collect() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    (event,) = asyncio.run(collect())
    assert is_handed_back(event)
    assert undone == []

"""A triggerer of an earlier release hands a later one's record back, and the task goes on in a worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.scaling.wait.records import handed_back, is_handed_back, is_of_later_release
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from airflow_gpu_provider.triggers import device_plugin_ready, pod
from airflow_gpu_provider.triggers import pool as pools
from tests.unit.scaling.pools import pool

TRIGGERS = [
    (pools.NodesTrigger, pools.RECORD_VERSION),
    (pools.ReleaseTrigger, pools.RECORD_VERSION),
    (device_plugin_ready.GpusTrigger, device_plugin_ready.RECORD_VERSION),
    (pod.GpuPodTrigger, pod.RECORD_VERSION),
]


def event_of(trigger: Any) -> dict[str, Any]:
    async def first() -> Any:
        async for event in trigger.run():
            return event.payload

    payload: dict[str, Any] = asyncio.run(first())
    return payload


@pytest.mark.parametrize(("trigger", "known"), TRIGGERS, ids=lambda each: getattr(each, "__name__", None))
def test_a_trigger_does_not_read_a_record_of_a_later_release(trigger: Any, known: int) -> None:
    """All that it reads of one is when the task was deferred."""
    event = event_of(trigger({"version": known + 1, "deferred_at": 0.0}))
    assert is_handed_back(event)
    assert f"up to {known}" in event["message"]


def test_what_the_pods_task_carries_comes_back_with_it() -> None:
    record = {"version": 99, "deferred_at": 0.0, "extra": {"attempt": {"number": 2}}}
    assert event_of(pod.GpuPodTrigger(record))["attempt"] == {"number": 2}


@pytest.mark.parametrize("known", [1, 2, 3])
def test_records_of_this_release_and_those_before_are_read(known: int) -> None:
    assert not any(is_of_later_release({"version": version}, known) for version in range(1, known + 1))
    assert not is_of_later_release({}, known)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (EnsureGpuPoolOperator, {"gpus": 1}),
        (InstallDevicePluginOperator, {}),
        (ScaleDownSensor, {}),
        (GpuPodOperator, {"image": "busybox"}),
    ],
)
def test_the_task_goes_on_without_deferring(
    operator: Any, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = operator(task_id="task", gpu_pool=pool(), **arguments)
    assert task.deferrable
    monkeypatch.setattr(task, "execute", lambda context: {"deferrable": task.deferrable})
    event = handed_back({"version": 99}, 1)
    assert task.resume_execution("resume", {"event": event}, {}) == {"deferrable": False}


def test_a_triggers_row_names_its_class_as_it_always_did() -> None:
    """A deferred task's row outlives an upgrade: a class that moves is not found, and the deferral fails."""
    assert {f"{trigger.__module__}.{trigger.__qualname__}" for trigger, _ in TRIGGERS} == {
        "airflow_gpu_provider.triggers.pod.GpuPodTrigger",
        "airflow_gpu_provider.triggers.device_plugin_ready.GpusTrigger",
        "airflow_gpu_provider.triggers.pool.NodesTrigger",
        "airflow_gpu_provider.triggers.pool.ReleaseTrigger",
    }

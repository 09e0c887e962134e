"""The events of this package's triggers resume their tasks, and its XComs can be read, whatever a pod has written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from airflow.models.trigger import Trigger
from airflow.models.xcom import XComModel
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.serde import deserialize
from airflow.triggers.base import TriggerEvent

from airflow_gpu_provider.errors import PodFailed
from airflow_gpu_provider.triggers.device_plugin_ready import GpusTrigger
from airflow_gpu_provider.triggers.pool import NodesTrigger, ReleaseTrigger
from airflow_gpu_provider.triggers.record import RecordTrigger
from tests.dry_nights.dags import dag
from tests.dry_nights.foreign_pod import Writes, watched, xcoms
from tests.dry_nights.installation import Airflow, Work
from tests.dry_nights.night import Night
from tests.unit.training.waiting_kinds import GANG, WORKLOAD, Kind

NUL, HALF = "\x00", "\ud83d"
HOSTILE = {
    "NUL in the result": Writes(result=b'{"a": 1}\x00', gpus=[b"99, 1000, 80, 700\n"]),
    "NUL in JSON": Writes(result=b'{"a": "\\u0000"}'),
    "half of a pair in JSON": Writes(result=b'{"a": "\\ud83d"}'),
    "NaN": Writes(result=b'{"loss": NaN}'),
    "infinite GPUs": Writes(result=b"1", gpus=[b"%b, %b, %b, %b\n" % ((b"9" * 400,) * 4)]),
    "a field that csv refuses": Writes(result=b"1", gpus=[b"x" * 140_000, b"99, 1000, 80, 700\n"]),
    "deep": Writes(result=b"[" * 8000),
    "long number": Writes(result=b"9" * 5000),
    "NUL in its message": Writes(exit_code=1, message="lost\x00", reason="Er\x00ror"),
    "NUL in its log": Writes(exit_code=1, log=b"lost\x00"),
}


def deferred() -> Any:
    with dag() as nightly:
        Work(task_id="train")
    return nightly


def resumed_by(airflow: Airflow, event: Mapping[str, Any]) -> tuple[Night, Any]:
    """Return a run whose task has got a trigger's event as Airflow's triggerer gives it, and what the task gets."""
    night = airflow.begin(deferred(), train="deferred").until("train", "deferred")
    Trigger.submit_event(trigger_id=night._instance("train").trigger_id, event=TriggerEvent(event))
    assert night["train"] == "scheduled"
    return night, deserialize(night._instance("train").next_kwargs)["event"]


@pytest.mark.parametrize("writes", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_pod_s_event_and_its_xcoms(airflow: Airflow, writes: Writes) -> None:
    seen = watched(writes)
    night, event = resumed_by(airflow, seen.event)
    assert json.loads(json.dumps(event)) == json.loads(json.dumps(seen.event))
    where = {"dag_id": night.dag_id, "task_id": "train", "run_id": night.run_id}
    for key, value in xcoms(seen).items():
        stored = BaseXCom.serialize_value(value)
        XComModel.set(key, stored, **where, serialize=False, session=airflow.session)
        airflow.session.expire_all()
        (row,) = airflow.session.scalars(XComModel.get_many(key=key, run_id=night.run_id, task_ids="train"))
        assert row.value == stored


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("kind", [GANG, WORKLOAD], ids=str)
def test_the_event_of_several_pods(airflow: Airflow, kind: Kind, hangs: bool) -> None:
    gpus = [b"%b, 1, 1, 1\n" % (b"9" * 400)]
    writes = Writes(result=b"1\x00", gpus=gpus, log=b"lost\x00", message="lost\x00", exit_code=1, hangs=hangs)
    resumed_by(airflow, watched(writes, kind).event)


async def _fails(_: object) -> Mapping[str, Any]:
    raise PodFailed(f"Lost{NUL}{HALF}.", NUL, last_lines=[NUL], seconds=float("inf"), number=10**30)


async def _returns(_: object) -> Mapping[str, Any]:
    return {"nodes": [f"n{NUL}"], "seconds": float("nan"), HALF: None}


@pytest.mark.parametrize("ends", [_fails, _returns])
@pytest.mark.parametrize("trigger", [NodesTrigger, ReleaseTrigger, GpusTrigger])
def test_the_event_of_a_wait_for_a_pool(
    airflow: Airflow, trigger: type[RecordTrigger], ends: Callable[[object], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trigger, "_result", ends)
    event: Any = asyncio.run(anext(trigger({"version": 1, "deferred_at": 0.0}).run()))
    resumed_by(airflow, event.payload)

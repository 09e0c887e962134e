"""Tasks without a scheduler: an operator's deferrals are gone through, and a stop ends it wherever it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_gpu_provider.errors import TaskKilled
from airflow_gpu_provider.tasks.run_identity import installation_id
from airflow_gpu_provider.testing import Tasks, WaitEnded, as_installation, waiting_process

waiting = threading.Event()
STOPPED = TaskKilled("It received SIGTERM.", "Run it again.")


class Wait(BaseTrigger):
    """Gives an event at once, or never."""

    def __init__(self, record: dict[str, Any]) -> None:
        super().__init__()
        self.record = record

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"record": self.record}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        waiting.set()
        if self.record["for_ever"]:
            await asyncio.Event().wait()
        if self.record["legs"] < 0:
            return
        yield TriggerEvent(self.record["legs"])


class Operator(BaseOperator):
    """Defers so many times, then returns what its triggers said."""

    def __init__(self, *, legs: int = 0, for_ever: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.legs, self.for_ever, self.was_killed = legs, for_ever, False
        self.during: Any = lambda: None

    def execute(self, context: Any) -> Any:
        context["ti"].xcom_push(key="begun", value=True)
        return self.resume(context, event=None)

    def resume(self, context: Any, event: Any) -> Any:
        self.during()
        if self.legs:
            self.legs -= 1
            record = {"legs": self.legs, "for_ever": self.for_ever, "deferred_at": 0.0}
            self.defer(trigger=Wait(record), method_name="resume")
        return {"last": event}

    def on_kill(self) -> None:
        self.was_killed = True


def test_an_operator_goes_through_its_deferrals() -> None:
    done = Tasks("run").run(Operator(task_id="t", legs=2))
    assert done.result == {"last": 0}
    assert done.xcoms == {"begun": True}


def test_a_stop_ends_a_wait_and_all_that_comes_after() -> None:
    tasks = Tasks("run")
    waiting.clear()
    thread = threading.Thread(target=lambda: waiting.wait(60) and tasks.stop(STOPPED))
    thread.start()
    with pytest.raises(TaskKilled, match="received SIGTERM"):
        tasks.run(Operator(task_id="t", legs=1, for_ever=True))
    thread.join()
    with pytest.raises(TaskKilled):
        tasks.run(Operator(task_id="next"))


def test_a_stop_in_the_middle_of_a_leg_kills_the_operator_and_is_never_a_success() -> None:
    tasks, operator = Tasks("run"), Operator(task_id="t")
    operator.during = lambda: tasks.stop(STOPPED)
    with pytest.raises(TaskKilled):
        tasks.run(operator)
    assert operator.was_killed


def test_a_trigger_without_an_event_is_no_end() -> None:
    with pytest.raises(WaitEnded, match="Wait ended without an event"):
        Tasks("run").run(Operator(task_id="t", legs=-1))


def test_a_wait_in_a_process_of_its_own_can_be_killed_once() -> None:
    tasks, operator = Tasks("run"), Operator(task_id="t", legs=1, for_ever=True)
    deferral = tasks.begin(operator, tasks.context_of(operator))
    with waiting_process() as process:
        process.give(tasks.row(deferral))
        process.kill()
        with pytest.raises(WaitEnded, match="over before it could be killed"):
            process.kill()


def test_a_wait_that_cannot_begin_is_told() -> None:
    with waiting_process() as process, pytest.raises(WaitEnded, match="ended with 1 before it was waiting"):
        process.give(("tests.nowhere.Trigger", {}))


def test_an_installation_s_name_ends_with_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "mine")
    with as_installation("theirs"):
        assert installation_id() == "theirs"
    assert installation_id() == "mine"

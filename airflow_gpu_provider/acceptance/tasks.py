"""Tasks in this process, without a scheduler: each operator executes, and where it defers, its trigger runs here.

The trigger is built from what it serializes to, as a triggerer does, and its event goes to the operator's next leg.

Run as `python -m airflow_gpu_provider.acceptance.tasks`, this is a triggerer's wait in a process of its own, to be
killed: it says READY, reads the trigger's row as JSON from its input, says WAITING and waits. It gives no event to
anybody. `waiting_process` is the other end: it starts one, and kills it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow.sdk.exceptions import TaskDeferred

from airflow_gpu_provider.cluster.clock import SystemClock
from airflow_gpu_provider.errors import TaskKilled
from airflow_gpu_provider.scaling.wait.stopping import Stop
from airflow_gpu_provider.triggers.record import EVENT_AFTER_SECONDS

DAG_ID = "airflow_gpu_accept"


@dataclass
class TaskInstance:
    """What the operators of this package ask of one: no other task has run, and none of those to come has begun."""

    task_id: str
    run_id: str
    dag_id: str = DAG_ID
    map_index: int = -1
    try_number: int = 1
    max_tries: int = 0
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    start_date: datetime = field(default_factory=lambda: SystemClock().now())
    xcoms: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    def xcom_pull(self, task_ids: Any = None, key: str = "return_value", map_indexes: Any = None) -> Any:
        return self.xcoms.get(key)

    def get_task_states(self, **which: Any) -> dict[str, dict[str, str | None]]:
        return {self.run_id: dict.fromkeys(which["task_ids"])}

    def get_ti_count(self, **which: Any) -> int:
        return len(which["task_ids"])


@dataclass(frozen=True)
class Done:
    result: dict[str, Any]
    xcoms: dict[str, Any]


class Tasks:
    """Runs tasks of one DAG run, one after the other; what the run wants of a pool is known by its id."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._stop = Stop()
        self._executing: Any = None

    def run(self, operator: Any) -> Done:
        """Execute a task to its end; raises what it failed with, or TaskKilled where `stop` was called."""
        context = self.context_of(operator)
        result = self.begin(operator, context)
        while isinstance(result, TaskDeferred):
            result = self.resume(operator, context, result, self.event_of(result))
        return Done(result or {}, context["ti"].xcoms)

    def context_of(self, operator: Any) -> dict[str, Any]:
        ti = TaskInstance(task_id=operator.task_id, run_id=self.run_id)
        return {"ti": ti, "task_instance": ti, "run_id": self.run_id, "dag": None, "task": operator}

    def begin(self, operator: Any, context: dict[str, Any]) -> Any:
        """Execute a task until it ends or defers: its result, or the TaskDeferred."""
        return self._leg(operator, lambda: operator.execute(context))

    def event_of(self, deferral: TaskDeferred) -> Any:
        return self._stop.run(first_event(rebuilt(self.row(deferral))))

    def row(self, deferral: TaskDeferred) -> tuple[str, dict[str, Any]]:
        """Return what a triggerer reads of the trigger: it need not be patient for a scheduler's sake."""
        path, arguments = deferral.trigger.serialize()
        record = arguments["record"]
        return path, {"record": {**record, "deferred_at": record["deferred_at"] - EVENT_AFTER_SECONDS}}

    def resume(self, operator: Any, context: dict[str, Any], deferral: TaskDeferred, event: Any) -> Any:
        """Go on with the event: the task's result, or the next TaskDeferred."""
        kwargs = {**(deferral.kwargs or {}), "event": event}
        return self._leg(operator, lambda: operator.resume_execution(deferral.method_name, kwargs, context))

    def stop(self) -> None:
        """End what is under way with TaskKilled, from a signal's handler; nothing runs here after that."""
        error = TaskKilled("The acceptance received SIGTERM.", "What it made is removed all the same.")
        if self._executing is None:
            self._stop.ask(error)
        else:
            self._stop.error = error
            self._executing.on_kill()

    def _leg(self, operator: Any, step: Any) -> Any:
        from airflow.sdk.bases.operator import ExecutorSafeguard

        self._stop.check()
        self._executing = operator
        runs_it = ExecutorSafeguard.tracker.set(operator)  # as Airflow's task runner says that it does
        try:
            return step()
        except TaskDeferred as deferral:
            return deferral
        finally:
            ExecutorSafeguard.tracker.reset(runs_it)
            self._executing = None
            self._stop.check()  # an error that on_kill raised may have been swallowed on its way


def rebuilt(serialized: tuple[str, dict[str, Any]]) -> Any:
    """Return a trigger as the triggerer builds it from its row."""
    from importlib import import_module

    from airflow.sdk.serde import deserialize, serialize

    path, arguments = serialized
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)(**deserialize(serialize(arguments)))  # type: ignore[arg-type]


async def first_event(trigger: Any) -> Any:
    """Return the payload of the trigger's event; its cleanup is waited for."""
    try:
        async for event in trigger.run():
            return event.payload
    finally:
        await asyncio.shield(trigger.cleanup())
    raise RuntimeError(f"{type(trigger).__name__} ended without an event")


READY, WAITING = "ready", "waiting"


class NotAsExpected(Exception):
    """What a step saw is not what is promised."""


class WaitingProcess:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def give(self, row: tuple[str, dict[str, Any]]) -> None:
        """Give it a trigger's row, and return when it waits."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(row)}\n")
        self._process.stdin.flush()
        self.hear(WAITING)

    def hear(self, word: str) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != word:
            raise NotAsExpected(f"The waiting process ended with {self._process.wait()} before it was {word}.")

    def kill(self) -> None:
        """Kill it as a machine's end does: nothing of it runs any more."""
        if self._process.poll() is not None:
            raise NotAsExpected("The wait was over before it could be killed.")
        self._process.kill()
        self._process.wait()


@contextmanager
def waiting_process() -> Iterator[WaitingProcess]:
    """Start one, and kill it at the end where it still runs."""
    command = [sys.executable, "-m", "airflow_gpu_provider.acceptance.tasks"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        waiter = WaitingProcess(process)
        try:
            waiter.hear(READY)
            yield waiter
        finally:
            process.kill()


def main() -> None:
    """Wait until the trigger has an event, or this process is killed."""
    import airflow_gpu_provider.triggers.pod  # noqa: F401 - what it will need; READY means that it is there

    _print(READY)
    trigger = rebuilt(tuple(json.loads(sys.stdin.readline())))
    _print(WAITING)
    asyncio.run(first_event(trigger))


def _print(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

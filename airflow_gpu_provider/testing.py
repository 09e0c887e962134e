"""Tasks in this process, without a scheduler: each operator executes, and where it defers, its trigger runs here.

The trigger is built from what it serializes to, as a triggerer does, and its event goes to the operator's next leg.

Run as `python -m airflow_gpu_provider.testing`, this is a triggerer's wait in a process of its own, to be killed: it
says READY, reads the trigger's row as JSON from its input, says WAITING and waits. It gives no event to anybody.
`waiting_process` is the other end: it starts one, and kills it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import TaskDeferred

from airflow_gpu_provider.cluster.api.clock import SystemClock
from airflow_gpu_provider.errors import TaskKilled
from airflow_gpu_provider.scaling.wait.stopping import Stop
from airflow_gpu_provider.triggers.record import EVENT_AFTER_SECONDS

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.triggers.base import BaseTrigger

Row = tuple[str, dict[str, Any]]
"""A trigger's class and arguments, as `serialize` returns them and a triggerer reads them."""


class WaitEnded(Exception):
    """A trigger's wait was over before it had an event, or before its process could be killed."""


@dataclass
class TaskInstance:
    """What the operators of this package ask of one: no other task has run, and none of those to come has begun.

    Args:
        map_index: The index of a mapped task's instance. Default -1: it is not mapped.
        max_tries: How many tries come after the first. Default 0.
        id: The try's id. Default: a new UUID.
        start_date: When the try began, in UTC. Default: now.
        xcoms: The XComs by key, those that were pushed too. Default: none.
    """

    task_id: str
    run_id: str
    dag_id: str = "in_this_process"
    map_index: int = -1
    try_number: int = 1
    max_tries: int = 0
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    start_date: datetime = field(default_factory=lambda: SystemClock().now())
    xcoms: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    def xcom_pull(
        self,
        task_ids: Any = None,
        key: str = "return_value",
        map_indexes: Any = None,
        include_prior_dates: bool = False,
    ) -> Any:
        """Return what was pushed with the key, whatever the task."""
        return self.xcoms.get(key)

    def get_task_states(self, **which: Any) -> dict[str, dict[str, str | None]]:
        """Return that no task of the run has a state."""
        return {self.run_id: dict.fromkeys(which["task_ids"])}

    def get_ti_count(self, **which: Any) -> int:
        """Return that each task has one instance."""
        return len(which["task_ids"])


@dataclass(frozen=True)
class Done:
    """How a task ended well.

    Attributes:
        result: What it returned; an empty dictionary for None.
        xcoms: What it pushed, by key.
    """

    result: Any
    xcoms: dict[str, Any]


@contextmanager
def as_installation(name: str) -> Iterator[None]:
    """Let what runs meanwhile want nodes in the name of an installation, without an Airflow Variable for it.

    Under a name that no Airflow has, no janitor takes these runs, which Airflow does not know, for runs that are over.
    """
    variable = "AIRFLOW__GPU_PROVIDER__INSTALLATION_ID"
    before = os.environ.get(variable)
    os.environ[variable] = name
    try:
        yield
    finally:
        del os.environ[variable]
        os.environ |= {} if before is None else {variable: before}


class Tasks:
    """Runs tasks of one DAG run, one after the other; what the run wants of a pool is known by its id.

    The connections are Airflow's, as in a task: from the environment, a secrets backend or its database. Outside
    `as_installation` that database is needed, unless `[gpu_provider] installation_id` is set.

    Args:
        run_id: The DAG run's id. Another one is another run, with a demand of its own.
        dag_id: The DAG's. Default "in_this_process".
    """

    def __init__(self, run_id: str, dag_id: str = TaskInstance.dag_id) -> None:
        self.run_id = run_id
        self.dag_id = dag_id
        self._stop = Stop()
        self._executing: Any = None

    def run(self, operator: BaseOperator) -> Done:
        """Execute a task to its end, through all of its deferrals.

        Raises:
            TaskKilled: `stop` was called.
            WaitEnded: A trigger ended without an event.
            Exception: What the task failed with, as the operator raised it.
        """
        context = self.context_of(operator)
        result = self.begin(operator, context)
        while isinstance(result, TaskDeferred):
            result = self.resume(operator, context, result, self.event_of(result))
        return Done({} if result is None else result, context["ti"].xcoms)

    def context_of(self, operator: BaseOperator) -> dict[str, Any]:
        """Return the context of the task's first try."""
        ti = TaskInstance(task_id=operator.task_id, run_id=self.run_id, dag_id=self.dag_id)
        return {"ti": ti, "task_instance": ti, "run_id": self.run_id, "dag": None, "task": operator}

    def begin(self, operator: BaseOperator, context: Any) -> Any:
        """Execute a task until it ends or defers: its result, or the TaskDeferred."""
        return self._leg(operator, lambda: operator.execute(context))

    def event_of(self, deferral: TaskDeferred) -> Any:
        """Run the trigger of a deferral until its event, and return the event's payload."""
        return self._stop.run(first_event(rebuilt(self.row(deferral))))

    def row(self, deferral: TaskDeferred) -> Row:
        """Return what a triggerer reads of the trigger: it need not be patient for a scheduler's sake."""
        path, arguments = deferral.trigger.serialize()
        record = arguments["record"]
        return path, {"record": {**record, "deferred_at": record["deferred_at"] - EVENT_AFTER_SECONDS}}

    def resume(self, operator: BaseOperator, context: Any, deferral: TaskDeferred, event: Any) -> Any:
        """Go on with the event: the task's result, or the next TaskDeferred."""
        kwargs = {**(deferral.kwargs or {}), "event": event}
        return self._leg(operator, lambda: operator.resume_execution(deferral.method_name, kwargs, context))

    def stop(self, why: TaskKilled) -> None:
        """End what is under way with this error, from a signal's handler; nothing runs here after that."""
        if self._executing is None:
            self._stop.ask(why)
        else:
            self._stop.error = why
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


def rebuilt(row: Row) -> BaseTrigger:
    """Return a trigger as the triggerer builds it from its row."""
    from importlib import import_module

    from airflow.sdk.serde import deserialize, serialize

    path, arguments = row
    module, _, name = path.rpartition(".")
    trigger: BaseTrigger = getattr(import_module(module), name)(**deserialize(serialize(arguments)))  # type: ignore[arg-type]
    return trigger


async def first_event(trigger: BaseTrigger) -> Any:
    """Return the payload of the trigger's event; its cleanup is waited for.

    Raises:
        WaitEnded: It ended without one.
    """
    try:
        async for event in trigger.run():
            return event.payload
    finally:
        await asyncio.shield(trigger.cleanup())
    raise WaitEnded(f"{type(trigger).__name__} ended without an event.")


READY, WAITING = "ready", "waiting"


class WaitingProcess:
    """A process that waits as a triggerer does, of `waiting_process`. Where it has ended, that is a WaitEnded."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def give(self, row: Row) -> None:
        """Give it a trigger's row, and return when it waits."""
        print(json.dumps(row), file=self._process.stdin, flush=True)
        self._hear(WAITING)

    def _hear(self, word: str) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != word:
            raise WaitEnded(f"The waiting process ended with {self._process.wait()} before it was {word}.")

    def kill(self) -> None:
        """Kill it as a machine's end does: nothing of it runs any more."""
        if self._process.poll() is not None:
            raise WaitEnded("The wait was over before it could be killed.")
        self._process.kill()
        self._process.wait()


@contextmanager
def waiting_process() -> Iterator[WaitingProcess]:
    """Start one, and kill it at the end where it still runs."""
    command = [sys.executable, "-m", "airflow_gpu_provider.testing"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        waiter = WaitingProcess(process)
        try:
            waiter._hear(READY)
            yield waiter
        finally:
            process.kill()


def main() -> None:
    """Wait until the trigger has an event, or this process is killed."""
    import airflow_gpu_provider.triggers.pod  # noqa: F401 - what it will need; READY means that it is there

    print(READY, flush=True)  # noqa: T201
    trigger = rebuilt(tuple(json.loads(sys.stdin.readline())))
    print(WAITING, flush=True)  # noqa: T201
    asyncio.run(first_event(trigger))


if __name__ == "__main__":
    main()

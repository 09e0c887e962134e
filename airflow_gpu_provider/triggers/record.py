"""Recorded, RecordTrigger: a wait whose whole state is one record, and whose errors are records too.

A trigger's row is small, versioned and without secrets: the pool's spec, whose demand it is, and the deadlines. Nothing
is raised: an exception in a trigger would lose its type, so the operator raises it from the event.

What Airflow 3.3 makes a trigger do besides:

- It fails a task that runs again before the scheduler has read the executor's "success" of the leg that deferred it
  ("executor reported that the task instance finished with state success, but the task instance's state attribute is
  running": scheduler_job_runner.py, apache/airflow#72716, #71580). So an event is sent only after the scheduler had a
  few heartbeats; a wait that takes longer anyway is not delayed.
- on_kill also runs when another triggerer takes over a healthy wait (a triggerer that had stalled and recovers), so
  nothing is removed before the task's state is checked.
- on_kill is called only if Airflow gets the message of its own cancellation back (TriggerRunner.run_trigger:
  `e.args[0] == _USER_ACTION_CANCEL_MSG`), which asgiref's sync_to_async loses: so it is not used.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_gpu_provider.cluster.api.threads import in_thread
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.scaling.wait.records import handed_back, is_of_later_release
from airflow_gpu_provider.untrusted import storable

EVENT_AFTER_SECONDS = 6.0
_TAKEN_UP_WITHIN = 30.0  # by a live triggerer; a dead one's waits move to another after 30 s without a heartbeat


async def wait_out_airflow_72716(deferred_at: float) -> None:
    """Wait until EVENT_AFTER_SECONDS after `deferred_at` (seconds since the epoch, the worker's clock)."""
    rest = deferred_at + EVENT_AFTER_SECONDS - time.time()
    if rest > 0:
        await asyncio.sleep(min(rest, EVENT_AFTER_SECONDS))


def has_returned(record: Mapping[str, Any]) -> bool:
    """Return True if this record's wait continues an earlier one: a dead triggerer's, or one after a setback."""
    return bool(record.get("pause")) or is_taken_over(record)


def is_taken_over(record: Mapping[str, Any]) -> bool:
    """Return True if another triggerer has begun this record's wait."""
    began_at: float = record["deferred_at"] + (record.get("pause") or 0.0)
    return time.time() - began_at > _TAKEN_UP_WITHIN


async def is_still_deferred(trigger: BaseTrigger) -> bool:
    """Return True if the trigger's task still waits, so that what the trigger watches must be left alone."""
    from airflow.utils.state import TaskInstanceState

    return await _state(trigger) == TaskInstanceState.DEFERRED


async def runs_again(trigger: BaseTrigger) -> bool:
    """Return True if a worker runs the trigger's task, or will: resumed by another triggerer's event, or cleared."""
    return await _state(trigger) in _on_their_way()


async def may_need_it(trigger: BaseTrigger) -> bool:
    """Return True if what the trigger's task requested may be needed: it waits, continues, or has succeeded."""
    from airflow.utils.state import TaskInstanceState

    state = await _state(trigger)
    return state in (TaskInstanceState.DEFERRED, *_on_their_way(), TaskInstanceState.SUCCESS)


def _on_their_way() -> tuple[str, ...]:
    from airflow.utils.state import TaskInstanceState

    return (TaskInstanceState.SCHEDULED, TaskInstanceState.QUEUED, TaskInstanceState.RUNNING)


async def _state(trigger: BaseTrigger) -> str | None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    ti = trigger.task_instance
    if ti is None:
        return None
    map_index = -1 if ti.map_index is None else ti.map_index
    states = await in_thread(
        RuntimeTaskInstance.get_task_states,
        dag_id=ti.dag_id,
        task_ids=[ti.task_id],
        run_ids=[ti.run_id],
        map_index=map_index,
    )
    name = f"{ti.task_id}_{map_index}" if map_index >= 0 else ti.task_id
    state: str | None = states.get(ti.run_id, {}).get(name)
    return state


async def is_run_over(trigger: BaseTrigger) -> bool:
    """Return True if the trigger's DAG run has ended or was deleted: tasks that have not run by now never will.

    A run that a user marks failed continues until its teardowns are done; one that dagrun_timeout ends does not.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
    from airflow.utils.state import State

    ti = trigger.task_instance
    if ti is None:
        return False
    unfinished = await in_thread(
        RuntimeTaskInstance.get_dr_count,
        dag_id=ti.dag_id,
        run_ids=[ti.run_id],
        states=[str(state) for state in State.unfinished_dr_states],
    )
    return unfinished == 0


Values = dict[str, Any]
"""A trigger's record, or an event, as JSON values."""

_undoing: set[asyncio.Task[None]] = set()


class Recorded(BaseTrigger):
    """A trigger that is made of one record.

    Args:
        record: Its whole state, versioned; "deferred_at" is in each, and "extra" may be: more entries for the event.
    """

    record_version: ClassVar[int]

    def __init__(self, record: Values) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record = record

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"record": self.record}

    async def on_kill(self) -> None:
        """Run `undo`, and let it continue in the event loop if this is cancelled. It logs its own errors.

        Airflow 3.3 cancels a trigger that a user ended again with every sync, about once a second, until it has
        finished (triggerer_job_runner.py: `to_cancel=self.cancelling_triggers`). An on_kill that takes longer is itself
        cancelled, in the middle of its cleanup, and nothing is logged.
        """
        task = asyncio.create_task(self.undo())
        _undoing.add(task)  # the loop itself keeps no strong reference
        task.add_done_callback(_undoing.discard)
        await asyncio.shield(task)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and yield one event. A record of a later release is handed back to a worker: see `records`."""
        if is_of_later_release(self.record, self.record_version):
            event = handed_back(self.record, self.record_version)
        else:
            event = await self._event()
        await wait_out_airflow_72716(self.record["deferred_at"])
        await self.undo_if_nobody_waits()
        await self.cleanup()  # nobody else does in a dag.test(), whose loop then ends with a connection open
        yield TriggerEvent(storable({**(self.record.get("extra") or {}), **event}))  # type: ignore[no-untyped-call]

    @abstractmethod
    async def _event(self) -> Values:
        """Wait, and return the event; raise nothing."""

    async def undo(self) -> None:
        """Undo what the task wanted, now that it no longer waits. Default: nothing."""

    async def undo_if_nobody_waits(self) -> None:
        """Do what on_kill does if the trigger's task no longer waits. Called right before the event is sent.

        Airflow cancels the trigger of a task that no longer waits within seconds, and calls its on_kill. A trigger
        whose wait ends in these seconds sends its event instead, which finds no deferred task (Trigger.submit_event,
        airflow 3.3) and is lost together with the trigger: nothing would delete the pod, or withdraw the demand.
        """
        if self.task_instance is None:  # run outside a triggerer: its caller also waits for it
            return
        try:
            is_waited_for = await is_still_deferred(self)
        except Exception:
            # A finished wait's event matters more than this check; Airflow calls on_kill if it is due.
            self.log.exception("Airflow could not be asked whether the task still waits")
            return
        if not is_waited_for:
            self.log.info("The task no longer waits, so the result of this wait is discarded.")
            await self.on_kill()


class RecordTrigger(Recorded):
    """Yields one event: "version", "status" ("done" or "error"), and "result" or "error" (a GpuError's record)."""

    async def _event(self) -> Values:
        try:
            return {"version": self.record_version, "status": "done", "result": await self._result()}
        except GpuError as error:
            failed = error
        except Exception as error:
            self.log.exception("The wait ended unexpectedly")
            failed = GpuError(f"The wait ended unexpectedly: {error!r}.", "See the log above.")
        return {"version": self.record_version, "status": "error", "error": failed.to_record()}

    @abstractmethod
    async def _result(self) -> Mapping[str, Any] | None:
        """Wait, and return the event's result.

        Raises:
            GpuError: The wait failed.
        """

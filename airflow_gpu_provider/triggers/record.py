"""Recorded, RecordTrigger: a wait whose whole state is one record, and whose errors are records too.

A trigger's row is small, versioned and without secrets: the pool's spec, whose demand it is, and the deadlines. Nothing
is raised: an exception in a trigger would lose its type, so the operator raises it from the event.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.scaling.wait.records import handed_back, is_of_later_release
from airflow_gpu_provider.triggers.deferral_delay import wait_out_airflow_72716
from airflow_gpu_provider.triggers.task_state import is_still_deferred

Values = dict[str, Any]
"""A trigger's record, or an event, as JSON values."""

_undoing: set[asyncio.Task[None]] = set()


class Recorded(BaseTrigger):
    """A trigger that is made of one record.

    Args:
        record: Its whole state, versioned; "deferred_at" is in each.
    """

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
    """Yields one event: "version", "status" ("done" or "error"), and "result" or "error" (a GpuError's record).

    A record of a later release is handed back to a worker: see `records`.
    """

    record_version: ClassVar[int]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            if is_of_later_release(self.record, self.record_version):
                event = handed_back(self.record, self.record_version)
            else:
                event = {"status": "done", "result": await self._result()}
        except GpuError as error:
            event = {"status": "error", "error": error.to_record()}
        except Exception as error:
            self.log.exception("The wait ended unexpectedly")
            unexpected = GpuError(f"The wait ended unexpectedly: {error!r}.", "See the log above.")
            event = {"status": "error", "error": unexpected.to_record()}
        await wait_out_airflow_72716(self.record["deferred_at"])
        await self.undo_if_nobody_waits()
        yield TriggerEvent({"version": self.record_version, **event})  # type: ignore[no-untyped-call]

    @abstractmethod
    async def _result(self) -> Mapping[str, Any] | None:
        """Wait, and return the event's result.

        Raises:
            GpuError: The wait failed.
        """

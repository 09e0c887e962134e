"""RecordTrigger: a wait whose whole state is one record, and whose errors travel as records too.

A trigger's row is small, versioned and without secrets: the pool's spec, whose demand it is, and the deadlines. Nothing
is raised: what an exception in a trigger becomes has lost its type, so the operator raises it from the event.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.records import handed_back, is_of_later_release
from airflow_gpu_provider.triggers.deferral_delay import settle


class RecordTrigger(BaseTrigger):
    """Yields one event: "version", "status" ("done" or "error"), and "result" or "error" (a GpuError's record).

    A record of a later release is handed back to a worker: see `records`.

    Args:
        record: Its whole state, versioned; "deferred_at" is in each.
    """

    record_version: ClassVar[int]

    def __init__(self, record: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record = record

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"record": self.record}

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
        await settle(self.record["deferred_at"])
        yield TriggerEvent({"version": self.record_version, **event})  # type: ignore[no-untyped-call]

    @abstractmethod
    async def _result(self) -> Mapping[str, Any] | None:
        """Wait, and return what the event's result says.

        Raises:
            GpuError: The wait failed.
        """

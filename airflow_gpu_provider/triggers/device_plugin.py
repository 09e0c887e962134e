"""GpusTrigger: waits in the triggerer until the GPUs of a pool's nodes are allocatable."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_gpu_provider.addons.device_plugin import GpusWait
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pools import deserialize_pool
from airflow_gpu_provider.triggers.plugin_watch import watch_plugin
from airflow_gpu_provider.triggers.settling import settle

RECORD_VERSION = 1


class GpusTrigger(BaseTrigger):
    """Waits for allocatable GPUs. It changes nothing, so there is nothing to undo when its task is killed.

    Args:
        record: Its whole state, versioned: "pool" (the spec), "wait" (GpusWait's record), "namespace" (of the plugin's
            pods), "deferred_at", and "result" (what the event's result has besides).
    """

    def __init__(self, record: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record = record

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"record": self.record}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            event = await self._wait()
        except GpuError as error:
            event = {"version": RECORD_VERSION, "status": "error", "error": error.to_record()}
        except Exception as error:
            self.log.exception("The wait ended unexpectedly")
            unexpected = GpuError(f"The wait ended unexpectedly: {error!r}.", "See the log above.")
            event = {"version": RECORD_VERSION, "status": "error", "error": unexpected.to_record()}
        await settle(self.record["deferred_at"])
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def _wait(self) -> dict[str, Any]:
        progress = await watch_plugin(
            deserialize_pool(self.record["pool"]),
            GpusWait.from_record(self.record["wait"]),
            namespace=self.record["namespace"],
            say=self.log.info,
        )
        if progress.error:
            raise progress.error
        result = {**self.record["result"], **(progress.result or {})}
        return {"version": RECORD_VERSION, "status": "done", "result": result}

"""GpusTrigger: waits in the triggerer until the GPUs of a pool's nodes are allocatable."""

from __future__ import annotations

from functools import partial
from typing import Any

from airflow_gpu_provider.addons.device_plugin import GpusWait
from airflow_gpu_provider.addons.plugin_watch import watch_plugin
from airflow_gpu_provider.pools import deserialize_pool
from airflow_gpu_provider.scaling.wait.retry import persistently
from airflow_gpu_provider.scaling.wait.wait_loop import Narrator
from airflow_gpu_provider.triggers.record import RecordTrigger

RECORD_VERSION = 1


class GpusTrigger(RecordTrigger):
    """Waits for allocatable GPUs. It changes nothing, so there is nothing to undo when its task is killed.

    Args:
        record: Its whole state, versioned: "pool" (the spec), "wait" (GpusWait's record), "namespace" (of the plugin's
            pods), "deferred_at", and "result" (further entries for the event's result).
    """

    record_version = RECORD_VERSION

    async def _result(self) -> dict[str, Any]:
        wait = GpusWait.from_record(self.record["wait"])
        watch = partial(
            watch_plugin,
            deserialize_pool(self.record["pool"]),
            wait,
            namespace=self.record["namespace"],
            say=self.log.info,
        )
        setbacks = Narrator(self.log.warning, started=wait.started)
        progress = await persistently(watch, until=wait.deadline, narrator=setbacks)
        if progress.error:
            raise progress.error
        return {**self.record["result"], **(progress.result or {})}

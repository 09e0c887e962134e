"""GpusTrigger: waits in the triggerer until the GPUs of a pool's nodes are allocatable.

Apart from `pool`, whose triggers a worker makes too: the watches that this one runs take a fifth of a second to import.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from airflow_gpu_provider.addons.plugin_watch import GpusWait, watch_plugin
from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool
from airflow_gpu_provider.scaling.wait.records import Narrator, TriggerRecord
from airflow_gpu_provider.scaling.wait.retry import persistently
from airflow_gpu_provider.triggers.record import RecordTrigger

RECORD_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class PluginRecord(TriggerRecord):
    """The row of a GpusTrigger: the namespace of the plugin's pods, and further entries for the event's result."""

    version: int = field(default_factory=lambda: RECORD_VERSION)
    namespace: str
    result: dict[str, object]


class GpusTrigger(RecordTrigger):
    """Waits for allocatable GPUs. It changes nothing, so there is nothing to undo when its task is killed."""

    record_version = RECORD_VERSION

    async def _result(self) -> dict[str, Any]:
        row = PluginRecord.from_record(self.record)
        wait, pool = GpusWait.from_record(row.wait), deserialize_pool(row.pool)
        watch = partial(watch_plugin, pool, wait, namespace=row.namespace, report=self.log.info)
        setbacks = Narrator(self.log.warning, started=wait.started)
        progress = await persistently(watch, until=wait.deadline, narrator=setbacks)
        if progress.error:
            raise progress.error
        return {**row.result, **(progress.result or {})}

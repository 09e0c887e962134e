"""Delays a trigger's event shortly after deferral, for the scheduler's sake; and detects a resumed wait.

Airflow 3.3 fails a task that runs again before the scheduler has read the executor's "success" of the leg that
deferred it ("executor reported that the task instance finished with state success, but the task instance's state
attribute is running": scheduler_job_runner.py, apache/airflow#72716, #71580). Sending the event only after the
scheduler had a few heartbeats avoids that; a wait that takes longer anyway is not delayed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

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

"""How long ago the task was deferred: a moment's patience after it, for the scheduler's sake; and a wait's return.

Airflow 3.3 fails a task that runs again before the scheduler has read the executor's "success" of the leg that
deferred it ("executor reported that the task instance finished with state success, but the task instance's state
attribute is running": scheduler_job_runner.py, apache/airflow#72716, #71580). An event that is only sent once the
scheduler had a few heartbeats avoids that; a wait that takes longer anyway is not held up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

SETTLE_SECONDS = 6.0
_TAKEN_UP_WITHIN = 30.0  # by a triggerer that is alive; a dead one's waits go to another after 30 s without a heartbeat


async def settle(deferred_at: float) -> None:
    """Wait until SETTLE_SECONDS after `deferred_at` (seconds since the epoch, the worker's clock)."""
    rest = deferred_at + SETTLE_SECONDS - time.time()
    if rest > 0:
        await asyncio.sleep(min(rest, SETTLE_SECONDS))


def has_returned(record: Mapping[str, Any]) -> bool:
    """Return True if the wait of this record goes on after another one: of a dead triggerer's, or after a setback."""
    return bool(record.get("pause")) or time.time() - record["deferred_at"] > _TAKEN_UP_WITHIN

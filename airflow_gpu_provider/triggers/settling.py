"""A moment's patience after a deferral, for the scheduler's sake.

Airflow 3.3 fails a task that runs again before the scheduler has read the executor's "success" of the leg that
deferred it ("executor reported that the task instance finished with state success, but the task instance's state
attribute is running": scheduler_job_runner.py, apache/airflow#72716, #71580). An event that is only sent once the
scheduler had a few heartbeats avoids that; a wait that takes longer anyway is not held up.
"""

from __future__ import annotations

import asyncio
import time

SETTLE_SECONDS = 6.0


async def settle(deferred_at: float) -> None:
    """Wait until SETTLE_SECONDS after `deferred_at` (seconds since the epoch, the worker's clock)."""
    rest = deferred_at + SETTLE_SECONDS - time.time()
    if rest > 0:
        await asyncio.sleep(min(rest, SETTLE_SECONDS))

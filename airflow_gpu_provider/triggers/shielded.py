"""run_shielded: work of a trigger's on_kill that is not cut short.

Airflow 3.3 cancels a trigger that a user ended anew with every sync, about once a second, until it has finished
(triggerer_job_runner.py: `to_cancel=self.cancelling_triggers`). An on_kill that takes longer is cancelled itself, in
the middle of what it cleans up, and nothing is logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

_running: set[asyncio.Task[None]] = set()


async def run_shielded(work: Coroutine[Any, Any, None]) -> None:
    """Wait for `work`, and have it go on in the event loop where this wait is cancelled. It logs its own errors."""
    task = asyncio.create_task(work)
    _running.add(task)  # the loop itself keeps no strong reference
    task.add_done_callback(_running.discard)
    await asyncio.shield(task)

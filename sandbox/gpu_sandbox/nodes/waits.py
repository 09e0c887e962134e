"""Waiting for the first of several things, leaving nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any


async def first(
    *futures: asyncio.Future[Any], events: Iterable[asyncio.Event] = (), timeout: float | None = None
) -> None:
    """Return when one of the futures is done, one of the events set, or the time over.

    The futures go on whatever happens to this call; the waiting for the events does not.
    """
    watchers = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait([*futures, *watchers], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for watcher in watchers:
            watcher.cancel()


async def event(event: asyncio.Event, *, timeout: float | None) -> None:
    """Return when the event is set, or the time over.

    asyncio.wait_for would lose a cancellation that comes together with the event (Python 3.11), and whoever waits for
    the cancelled task would wait for ever.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await event.wait()


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended; what they raise is theirs to be asked for."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)

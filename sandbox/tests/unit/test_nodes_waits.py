"""Waiting for one of several things: a cancellation is never lost, whatever comes with it."""

from __future__ import annotations

import asyncio

import pytest

from gpu_sandbox.nodes import waits


@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_a_cancellation_that_comes_with_the_event_is_not_lost(timeout: float | None) -> None:
    event = asyncio.Event()

    async def for_ever() -> None:
        while True:
            event.clear()
            await waits.event(event, timeout=timeout)

    task = asyncio.create_task(for_ever())
    await asyncio.sleep(0)
    event.set()
    async with asyncio.timeout(60):
        await waits.cancel(task)
    assert task.cancelled()


async def test_an_event_that_does_not_come() -> None:
    await waits.event(asyncio.Event(), timeout=0.01)

"""Stop: what SIGTERM does to a waiting task of this package. It ends with TaskKilled, and never green.

Airflow calls on_kill in a signal handler. An error that is raised there comes out wherever the program happens to
be: in the middle of an event loop it is logged or swallowed by whatever callback was interrupted, and the wait goes
on. So a wait in an event loop is cancelled instead, and the error is raised when the loop has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from airflow_gpu_provider.errors import TaskKilled

T = TypeVar("T")


class Stop:
    """Whether a task was told to stop. `error` is set when it was."""

    def __init__(self) -> None:
        self.error: TaskKilled | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: asyncio.Task[Any] | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in an event loop of its own, until it returns or the task is told to stop.

        Raises:
            TaskKilled: The task was told to stop, now or before.
        """
        if self.error is not None:
            coroutine.close()
            raise self.error
        try:
            return asyncio.run(self._watched(coroutine))
        except asyncio.CancelledError:
            if self.error is None:
                raise
            raise self.error from None

    def ask(self, error: TaskKilled) -> None:
        """End what `run` waits for, or else raise `error` here and now; called by on_kill."""
        self.error = error
        if self._loop is None or self._waiting is None:
            raise error
        self._loop.call_soon_threadsafe(self._waiting.cancel)

    def check(self) -> None:
        """Raise TaskKilled if the task was told to stop: the error itself may have been swallowed on its way."""
        if self.error is not None:
            raise self.error

    async def _watched(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._loop, self._waiting = asyncio.get_running_loop(), asyncio.current_task()
        try:
            return await coroutine
        finally:
            self._loop = self._waiting = None

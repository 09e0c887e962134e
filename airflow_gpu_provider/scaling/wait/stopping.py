"""Stop: what SIGTERM does to a waiting task of this package. It ends with TaskKilled, and never green.

Airflow calls on_kill in a signal handler. An error that is raised there comes out wherever the program happens to
be: in the middle of an event loop it is logged or swallowed by whatever callback was interrupted, and the wait goes
on. So a wait in an event loop is cancelled instead, and the error is raised when the loop has ended.

And some of what the task does may not be cut off, so that it is waited for. It talks to Airflow by requests whose
answers have no number: cut off between the two, each later request would get the answer of the one before. And Python's
logging takes the lock that all loggers share by a call of its own: an error that is raised at that call's end leaves it
held, and every other thread that logs waits for ever.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

from airflow_gpu_provider.errors import TaskKilled

T = TypeVar("T")

_WHOLE = ("airflow.sdk.execution_time.comms", "logging")
_ASK_AGAIN_SECONDS = 0.05


class Stop:
    """Whether a task received SIGTERM. `error` is set when it was."""

    def __init__(self) -> None:
        self.error: TaskKilled | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: asyncio.Task[Any] | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in an event loop of its own, until it returns or the task receives SIGTERM.

        Raises:
            TaskKilled: The task received SIGTERM, now or before.
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
        """End what `run` waits for, or else raise `error` here and now; called by on_kill.

        In the middle of a request to Airflow, or of logging, nothing is raised: the signal is sent once more, a moment
        later.
        """
        self.error = error
        if self._loop is not None and self._waiting is not None:
            self._loop.call_soon_threadsafe(self._waiting.cancel)
        elif _is_in_what_stays_whole():
            again = threading.Timer(_ASK_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
            again.daemon = True
            again.start()
        else:
            raise error

    def check(self) -> None:
        """Raise TaskKilled if the task received SIGTERM: the error itself may have been swallowed on its way."""
        if self.error is not None:
            raise self.error

    async def _watched(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._loop, self._waiting = asyncio.get_running_loop(), asyncio.current_task()
        try:
            if self.error is not None:  # a callback of the loop that had just begun has swallowed it
                coroutine.close()
                raise self.error
            return await coroutine
        finally:
            self._loop = self._waiting = None


def _is_in_what_stays_whole() -> bool:
    """Return True if the code that a signal interrupted was making a request to Airflow, or logging."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") in _WHOLE:
            return True
        frame = frame.f_back
    return False

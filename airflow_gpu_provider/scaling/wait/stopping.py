"""Stop: what SIGTERM and execution_timeout do to a waiting task of this package. It ends, and never green.

For SIGTERM Airflow calls on_kill in a signal handler, and for its execution_timeout it raises in that of SIGALRM
(airflow/sdk/execution_time/timeout.py). An error that is raised there comes out wherever the program happens to be: in
the middle of an event loop it is logged or swallowed by whatever callback was interrupted, and the wait goes on. So a
wait in an event loop is cancelled instead, and the error is raised when the loop has ended.

And some of what the task does may not be cut off, so that it is waited for. It talks to Airflow by requests whose
answers have no number: cut off between the two, each later request would get the answer of the one before. And Python's
logging takes the lock that all loggers share by a call of its own: an error that is raised at that call's end leaves it
held, and every other thread that logs waits for ever. structlog's lock is not even for the same thread to take twice,
and Airflow's handler logs by structlog.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.sdk.execution_time.timeout import timeout

from airflow_gpu_provider.errors import TaskKilled

T = TypeVar("T")

_WHOLE = ("airflow.sdk.execution_time.comms", "logging", "structlog._output")
_ASK_AGAIN_SECONDS = 0.05
"""And once more where that is not heard: a signal just before a blocking call, such as time.sleep, does not end it."""
_LOOP_ENDS_WITHIN_SECONDS = 30.0
"""How long what blocks an event loop, such as a progress_callback that hangs, may outlast the execution_timeout."""


class Stop:
    """Whether a task received SIGTERM: `error` is set then. And how its execution_timeout interrupts it."""

    def __init__(self) -> None:
        self.error: TaskKilled | None = None
        self._time_out: Callable[[], object] | None = None
        self._is_in_loop = False
        self._waiting: asyncio.Task[Any] | None = None
        self._heard = 0

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in an event loop of its own, until it returns or the task receives SIGTERM or times out.

        Raises:
            TaskKilled: The task received SIGTERM, now or before.
            AirflowTaskTimeout: It has used its execution_timeout, within `heeding_timeout`.
        """
        self._is_in_loop = True
        try:
            return asyncio.run(self._watched(coroutine))
        finally:
            self._is_in_loop = False
            self._raise_what_interrupted()

    def ask(self, error: TaskKilled) -> None:
        """End what `run` waits for, or else raise `error` here and now; called by on_kill.

        In the middle of a request to Airflow, or of logging, nothing is raised: the signal is sent once more, a moment
        later.
        """
        self.error = error
        self._heard += 1
        if self._is_in_loop:
            self._interrupt()
        elif _is_in_what_stays_whole():
            again = threading.Timer(_ASK_AGAIN_SECONDS, self._send_until_heard)
            again.daemon = True
            again.start()
        else:
            raise error

    def _send_until_heard(self) -> None:
        heard = self._heard
        while self._heard == heard:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(_ASK_AGAIN_SECONDS)

    def check(self) -> None:
        """Raise TaskKilled if the task received SIGTERM: the error itself may have been swallowed on its way."""
        if self.error is not None:
            raise self.error from None

    @contextmanager
    def heeding_timeout(self) -> Iterator[None]:
        """Let Airflow's execution_timeout interrupt the block only where SIGTERM may, too."""
        theirs = signal.getsignal(signal.SIGALRM)
        is_of_this_thread = threading.current_thread() is threading.main_thread()
        if not (is_of_this_thread and callable(theirs) and isinstance(getattr(theirs, "__self__", None), timeout)):
            yield
            return
        signal.signal(signal.SIGALRM, partial(self._on_timeout, theirs))
        try:
            yield
        finally:
            signal.signal(signal.SIGALRM, theirs)

    def _on_timeout(self, theirs: Callable[..., object], number: int, frame: FrameType | None) -> None:
        if self._is_in_loop and self._time_out is None:
            self._time_out = partial(theirs, number, frame)
            self._interrupt()
            signal.setitimer(signal.ITIMER_REAL, _LOOP_ENDS_WITHIN_SECONDS)
        elif _is_in_what_stays_whole():
            signal.setitimer(signal.ITIMER_REAL, _ASK_AGAIN_SECONDS, _ASK_AGAIN_SECONDS)
        else:
            signal.setitimer(signal.ITIMER_REAL, 0)
            theirs(number, frame)

    def _interrupt(self) -> None:
        """End the event loop's wait; one that is about to begin ends by itself."""
        if self._waiting is not None:
            self._waiting.get_loop().call_soon_threadsafe(self._waiting.cancel)

    def _raise_what_interrupted(self) -> None:
        time_out, self._time_out = self._time_out, None
        if time_out is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.check()
        try:
            if time_out is not None:
                time_out()
        except AirflowTaskTimeout as error:
            raise error from None

    async def _watched(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._waiting = asyncio.current_task()
        try:
            if self.error is not None or self._time_out is not None:
                coroutine.close()
                raise asyncio.CancelledError
            return await coroutine
        finally:
            self._waiting = None


def _is_in_what_stays_whole() -> bool:
    """Return True if the code that a signal interrupted was making a request to Airflow, or logging."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") in _WHOLE:
            return True
        frame = frame.f_back
    return False

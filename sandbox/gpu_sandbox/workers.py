"""Threads for work that has to wait for others, an API server or a node agent, while the sandbox's time may stand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpu_sandbox.clock import Clock

# Work that pauses has its thread meanwhile, and what waits for a thread counts as under way.
_AT_ONCE = 512


class Workers:
    """Runs pieces of work side by side. The clock is told of each, and of its error."""

    def __init__(self, clock: Clock, *, name: str) -> None:
        self.stopping = threading.Event()
        """Set when they end; work looks at it."""
        self._clock = clock
        self._name = name
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix=name)

    def submit(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do it soon; not any more once they end."""
        if self.stopping.is_set():
            return
        self._clock.work_begins(self._name)
        self._threads.submit(self._do, work, arguments)

    def pause(self, seconds: float) -> bool:
        """Let so much of the sandbox's time pass, in a piece of work; True if the workers end."""
        self._clock.pause(self._name, seconds, stopping=self.stopping)
        return self.stopping.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait so long by the machine's own clock, for what does not live by the sandbox's; True if they end."""
        return self.stopping.wait(seconds)

    def stop(self) -> None:
        """Return when all work has ended."""
        self.stopping.set()
        self._clock.interrupt()
        self._threads.shutdown(wait=True)

    def _do(self, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        try:
            if not self.stopping.is_set():
                work(*arguments)
        except Exception as error:  # noqa: BLE001 - the clock tells it, or logs it
            error.add_note(f"in {getattr(work, '__name__', work)}{arguments!r}")
            self._clock.work_ends(self._name, error)
        else:
            self._clock.work_ends(self._name)

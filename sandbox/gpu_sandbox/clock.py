"""The thread that advances a cloud's life cycles: one step every `poll` seconds, and at once when woken."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Clock:
    """Calls `step` until stopped. A step that raises is logged, and the next one follows."""

    def __init__(self, step: Callable[[], None], *, poll: float, name: str) -> None:
        self._step = step
        self._poll = poll
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Take the next step now."""
        self._woken.set()

    def stop(self) -> None:
        """Return when the last step is over."""
        self._stopping = True
        self._woken.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._woken.wait(self._poll)
            self._woken.clear()
            try:
                self._step()
            except Exception:
                log.exception("a step of %s failed", self._thread.name)

"""The other end of `waiter`: starts the process that waits as a triggerer does, and kills it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_gpu_provider.acceptance.waiter import READY, WAITING


class NotAsExpected(Exception):
    """What a step saw is not what is promised."""


class WaitingProcess:
    """A process that waits as a triggerer does."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def give(self, row: tuple[str, dict[str, Any]]) -> None:
        """Give it a trigger's row, and return when it waits."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(row)}\n")
        self._process.stdin.flush()
        self.hear(WAITING)

    def hear(self, word: str) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != word:
            raise NotAsExpected(f"The waiting process ended with {self._process.wait()} before it was {word}.")

    def kill(self) -> None:
        """Kill it as a machine's end does: nothing of it runs any more."""
        if self._process.poll() is not None:
            raise NotAsExpected("The wait was over before it could be killed.")
        self._process.kill()
        self._process.wait()


@contextmanager
def waiting_process() -> Iterator[WaitingProcess]:
    """Start one, and kill it at the end where it still runs."""
    command = [sys.executable, "-m", "airflow_gpu_provider.acceptance.waiter"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        waiter = WaitingProcess(process)
        try:
            waiter.hear(READY)
            yield waiter
        finally:
            process.kill()

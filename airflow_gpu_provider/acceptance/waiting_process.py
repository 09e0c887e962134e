"""A triggerer's wait in a process of its own, to be killed: it takes a trigger's row and waits for its event.

Run as `python -m airflow_gpu_provider.acceptance.waiting_process`: it says READY, reads the row as JSON from its input,
says WAITING and waits. It gives no event to anybody. `waiting_process` is the other end: it starts one, and kills it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

READY, WAITING = "ready", "waiting"


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
    command = [sys.executable, "-m", "airflow_gpu_provider.acceptance.waiting_process"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        waiter = WaitingProcess(process)
        try:
            waiter.hear(READY)
            yield waiter
        finally:
            process.kill()


def main() -> None:
    """Wait until the trigger has an event, or this process is killed."""
    import airflow_gpu_provider.triggers.pod  # noqa: F401 - what it will need; READY means that it is there
    from airflow_gpu_provider.acceptance.tasks import rebuilt

    _print(READY)
    trigger = rebuilt(tuple(json.loads(sys.stdin.readline())))
    asyncio.run(_wait(trigger))


async def _wait(trigger: Any) -> None:
    _print(WAITING)
    async for _ in trigger.run():
        return


def _print(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

"""How much of the log of this process's triggers Airflow's supervisor has read.

Airflow 3.3's triggerer is two processes. The one that runs triggers sends their lines through a socket to the other,
its supervisor, which writes them into the tasks' logs; a line that it reads after it was told that the trigger is done
goes into the triggerer's own log (triggerer_job_runner.py, _process_log_messages_from_subprocess). On an overloaded
machine that is seconds of lines. The supervisor reads at least 4 KiB of lines between two answers to this process
(supervisor.py, make_buffered_socket_reader), so enough requests prove that it has read everything.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

from airflow.sdk.log import amask_secret

_READ_EACH_TIME = 4096
_BESIDE_THE_TEXT = 512
_SOCKET_BUFFER = 212_992
"""Linux' default (net.core.wmem_default): no more can be in flight, since the writer then has to wait."""


async def _ask_supervisor() -> None:
    """Wait for an answer that costs the supervisor nothing; return at once without one, as in a test."""
    await amask_secret("")


class SupervisorLog:
    """The lines of one event loop's triggers.

    Args:
        ask: Returns when the supervisor has answered.
    """

    def __init__(self, ask: Callable[[], Awaitable[None]] = _ask_supervisor) -> None:
        self._ask = ask
        self._turn = asyncio.Lock()  # answers to several requests at once would be counted twice
        self.written = 0
        """Bytes that were sent, or a little more."""
        self.read = 0
        """Of those, how many were read, or fewer."""

    def wrote(self, text: str) -> None:
        """Note a line that was logged."""
        self.written += _BESIDE_THE_TEXT + 2 * len(text)

    async def until_read(self, mark: int, *, within: float) -> bool:
        """Return True once all that was written before `mark` is read; False after `within` seconds."""
        try:
            async with asyncio.timeout(within):
                while self.read < mark:
                    await self._read_on(mark)
        except TimeoutError:
            return False
        return True

    async def _read_on(self, mark: int) -> None:
        async with self._turn:
            if self.read >= mark:
                return
            sent = self.written
            on_its_way = min(sent - self.read, _SOCKET_BUFFER)
            for _ in range(math.ceil(on_its_way / _READ_EACH_TIME) + 1):  # one more: it may answer before it reads
                await self._ask()
            self.read = sent


_logs: WeakKeyDictionary[asyncio.AbstractEventLoop, SupervisorLog] = WeakKeyDictionary()


def supervisor_log() -> SupervisorLog:
    """Return the running event loop's."""
    return _logs.setdefault(asyncio.get_running_loop(), SupervisorLog())

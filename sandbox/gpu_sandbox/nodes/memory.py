"""Who uses more memory than its limit: the anonymous and shared memory of each container's processes, watched.

A watch of /proc, not a cgroup: it works for any user and inside any container, and costs a fifth of a second of
delay before a container that allocates too much is killed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

INTERVAL = 0.2
_ENDED = (FileNotFoundError, ProcessLookupError, PermissionError)  # while we looked
_COUNTED = {"status": ("RssAnon:", "RssShmem:"), "smaps_rollup": ("Pss_Anon:", "Pss_Shmem:")}


class MemoryWatch:
    """Calls back when the processes below a PID hold more than a limit."""

    def __init__(self) -> None:
        self._watched: dict[int, tuple[int, Callable[[], None]]] = {}
        self._any = asyncio.Event()

    def add(self, host_pid: int, limit_bytes: int, over: Callable[[], None]) -> None:
        """Call over, once, when host_pid and what it started hold more than limit_bytes."""
        self._watched[host_pid] = (limit_bytes, over)
        self._any.set()

    def remove(self, host_pid: int) -> None:
        """Stop watching; one that is not watched is no error."""
        self._watched.pop(host_pid, None)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            if not self._watched:
                self._any.clear()
                await self._any.wait()
            for host_pid, (limit, over) in list(self._watched.items()):
                if used_bytes(host_pid, limit) > limit:
                    self.remove(host_pid)
                    over()
            await asyncio.sleep(INTERVAL)


def used_bytes(host_pid: int, limit: int) -> int:
    """Memory held by a process and all below it. Above the limit it is counted finely, shared pages once."""
    pids = list(_tree(host_pid))
    rough = sum(_kilobytes(pid, "status") for pid in pids) * 1024
    return rough if rough <= limit else sum(_kilobytes(pid, "smaps_rollup") for pid in pids) * 1024


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for thread in _threads(pid):
        for child in _text(Path(f"/proc/{pid}/task/{thread}/children")).split():
            yield from _tree(int(child))


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except _ENDED:
        return []


def _kilobytes(pid: int, file: str) -> int:
    total = 0
    for line in _text(Path(f"/proc/{pid}/{file}")).splitlines():
        if line.startswith(_COUNTED[file]):
            total += int(line.split()[1])
    return total


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except _ENDED:
        return ""

"""A container's stdin, stdout and stderr, and the way from them into its log."""

from __future__ import annotations

import asyncio
import os

from gpu_sandbox.nodes.container_log import ContainerLog

_CHUNK = 65536
_DRAIN_SECONDS = 5.0


class Stdio:
    """Pipes (or a terminal) between a container and its log."""

    def __init__(self, log: ContainerLog, *, tty: bool, stdin: bool) -> None:
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._ours: dict[int, str] = {}
        self._kept: list[int] = []
        self._ended = asyncio.Event()
        if tty:
            master, slave = os.openpty()
            self._ours[master] = "stdout"
            self._children = [slave]
            self.child_ends = (slave, slave, slave)
            return
        out, child_out = os.pipe()
        err, child_err = os.pipe()
        self._ours = {out: "stdout", err: "stderr"}
        self._children = [child_out, child_err]
        self.child_ends = (self._input(open_end=stdin), child_out, child_err)

    def _input(self, *, open_end: bool) -> int:
        if open_end:
            # Nobody attaches to process nodes: the input of a container with stdin stays open and silent.
            child, ours = os.pipe()
            self._kept.append(ours)
        else:
            child = os.open(os.devnull, os.O_RDONLY)
        self._children.append(child)
        return child

    def started(self) -> None:
        """The child has its ends: let go of them and read ours."""
        self._close_children()
        for fd, stream in self._ours.items():
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, self._readable, fd, stream)

    async def drained(self) -> None:
        """Wait until all that the container wrote is in the log, then close it."""
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self._ended.wait()
        except TimeoutError:
            # A descriptor of ours was handed out of the container, to a process that still lives.
            for fd in list(self._ours):
                self._hang_up(fd)
        self.close()

    def close(self) -> None:
        """Close everything."""
        self._close_children()
        for fd in list(self._ours):
            self._hang_up(fd)
        for fd in self._kept:
            os.close(fd)
        self._kept.clear()
        self._log.close()

    def _close_children(self) -> None:
        for fd in self._children:
            os.close(fd)
        self._children = []

    def _readable(self, fd: int, stream: str) -> None:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # a terminal whose last user has gone
        if data:
            self._log.write(stream, data)
        else:
            self._hang_up(fd)

    def _hang_up(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        os.close(fd)
        del self._ours[fd]
        if not self._ours:
            self._ended.set()

"""A container's log: lines with their time in the CRI log format, followed by any number of readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from airflow_gpu_provider.sandbox.nodes import clock

_LONGEST_LINE = 16384


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """What a reader of logs may ask for; None and False as in the API."""

    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since: datetime | None = None
    limit_bytes: int | None = None


@dataclass(frozen=True)
class Entry:
    """One line, or (``whole`` False) a part of one that came without its end."""

    time: str
    whole: bool
    content: bytes

    def rendered(self, *, timestamps: bool) -> bytes:
        """As a reader gets it."""
        head = f"{self.time} ".encode() if timestamps else b""
        return head + self.content + (b"\n" if self.whole else b"")


class ContainerLog:
    """The log of one run of a container, kept in a file; stdout and stderr are written to it as they come."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._partial = {"stdout": b"", "stderr": b""}
        self._more = asyncio.Event()
        self.closed = False

    def write(self, stream: str, data: bytes) -> None:
        """Add what came on a stream (``stdout`` or ``stderr``); lines appear when they are whole."""
        *lines, rest = (self._partial[stream] + data).split(b"\n")
        self._append(stream, lines, whole=True)
        while len(rest) >= _LONGEST_LINE:
            self._append(stream, [rest[:_LONGEST_LINE]], whole=False)
            rest = rest[_LONGEST_LINE:]
        self._partial[stream] = rest

    def close(self) -> None:
        """No more comes: last lines without an end are written, followers end."""
        if self.closed:
            return
        for stream, rest in self._partial.items():
            if rest:
                self._append(stream, [rest], whole=False)
        self.closed = True
        self._file.close()
        self._wake()

    def tail(self, lines: int, limit: int) -> str:
        """The last lines, at most limit bytes of them, as a termination message falls back to."""
        text = b"".join(e.rendered(timestamps=False) for e in self._entries_from(0)[0])
        wanted = b"".join(text.splitlines(keepends=True)[-lines:])
        return wanted[-limit:].decode(errors="replace")

    async def read(self, options: LogOptions) -> AsyncGenerator[bytes, None]:
        """The log as asked for, in pieces; a follower's last piece comes when the container has ended."""
        budget = options.limit_bytes
        async with aclosing(self._pieces(options)) as pieces:
            async for piece in pieces:
                if budget is None:
                    yield piece
                    continue
                yield piece[:budget]
                budget -= len(piece)
                if budget <= 0:
                    return

    async def _pieces(self, options: LogOptions) -> AsyncGenerator[bytes, None]:
        more = self._more
        entries, offset = self._entries_from(0)
        if options.since is not None:
            entries = [e for e in entries if clock.parse(e.time) >= options.since]
        if options.tail_lines is not None:
            entries = list(_last_lines(entries, options.tail_lines))
        while True:
            if entries:
                yield b"".join(e.rendered(timestamps=options.timestamps) for e in entries)
            if not options.follow or (self.closed and not entries):
                return
            if not entries and not self.closed:
                await more.wait()
            more = self._more
            entries, offset = self._entries_from(offset)

    def _entries_from(self, offset: int) -> tuple[list[Entry], int]:
        with self._path.open("rb") as file:
            file.seek(offset)
            data = file.read()
        return list(_parse(data.split(b"\n")[:-1])), offset + len(data)

    def _append(self, stream: str, lines: list[bytes], *, whole: bool) -> None:
        if not lines:
            return
        head = f"{clock.nano_text()} {stream} {'F' if whole else 'P'} ".encode()
        self._file.write(b"".join(head + line + b"\n" for line in lines))
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()


def _parse(lines: Iterable[bytes]) -> Iterator[Entry]:
    for line in lines:
        time, _, tag, content = line.split(b" ", 3)
        yield Entry(time.decode(), tag == b"F", content)


def _last_lines(entries: list[Entry], count: int) -> list[Entry]:
    start, seen = len(entries), 0
    while start > 0:
        # An entry ends a line unless it is a part with more of the same line after it.
        if entries[start - 1].whole or start == len(entries):
            if seen == count:
                break
            seen += 1
        start -= 1
    return entries[start:]

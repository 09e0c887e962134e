"""A container's log as a kubelet keeps and serves it: in the CRI log format, rotated, for any number of readers.

containerd cuts lines into parts, the kubelet rotates the file (container_log_manager.go) and reads it (ReadLogs in
k8s.io/cri-client/pkg/logs), and what readers see is theirs: only the newest file is served, a follower goes on in it, a
line's time stands at its start only, and tailLines counts parts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

from gpu_sandbox.nodes import clock

_MAX_FILES = 5  # the kubelet's containerLogMaxFiles, the one that is written included
_LOOKS_EVERY = 10.0  # seconds, its containerLogMonitorInterval
_LONGEST_PART = 16384  # containerd's max_container_log_line_size
_READ_AT_ONCE = 2**16


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """What a reader of logs may ask for; None and False as in the API."""

    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since: datetime | None = None
    limit_bytes: int | None = None


class ContainerLog:
    """The log of one run of a container, kept in files; stdout and stderr are written to it as they come.

    Args:
        path: The file that is written, and served.
        max_size: Bytes after which another file takes its place.
        looks_every: Seconds between two looks at its size.
    """

    def __init__(self, path: Path, *, max_size: int, looks_every: float = _LOOKS_EVERY) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._max_size = max_size
        self._looks_every = looks_every
        self._file = path.open("ab", buffering=0)
        self._rotation: asyncio.TimerHandle | None = None
        self._rotations = 0
        self._partial = {"stdout": b"", "stderr": b""}
        self._more = asyncio.Event()
        self.closed = False

    def write(self, stream: str, data: bytes) -> None:
        """Add what came on a stream (``stdout`` or ``stderr``); lines appear when they are whole, or very long."""
        *lines, rest = (self._partial[stream] + data).split(b"\n")
        entries = [entry for line in lines for entry in _entries(line, whole=True)]
        *parts, (self._partial[stream], _) = _entries(rest, whole=False)
        self._append(stream, [*entries, *parts])

    def close(self) -> None:
        """No more comes: last lines without an end are written, followers end."""
        if self.closed:
            return
        for stream, rest in self._partial.items():
            if rest:
                self._append(stream, [(rest, False)])
        self.closed = True
        if self._rotation is not None:
            self._rotation.cancel()
        self._file.close()
        self._wake()

    def tail(self, lines: int, limit: int) -> str:
        """The last lines, at most limit bytes of them, as a termination message falls back to."""
        with self._path.open("rb") as file:
            file.seek(_tail_start(file, lines))
            text = _Renderer(LogOptions()).render(file.readlines())
        return text[-limit:].decode(errors="replace")

    async def read(self, options: LogOptions) -> AsyncGenerator[bytes, None]:
        """The log as asked for, in pieces; a follower's last piece comes when the container has ended.

        A follower that has met a file's end once hears of the next one, unless the container ends first. Before that it
        does not: what is rotated while it still reads its first file is not for it.
        """
        renderer = _Renderer(options)
        left = None if options.follow else options.tail_lines
        watches, is_last, rotations = False, False, 0
        with ExitStack() as files:
            file = files.enter_context(self._path.open("rb"))
            file.seek(_tail_start(file, options.tail_lines))
            while left != 0 and not renderer.is_full:
                more = self._more
                if lines := file.readlines(_READ_AT_ONCE)[:left]:
                    left = None if left is None else left - len(lines)
                    if piece := renderer.render(lines):
                        yield piece
                elif not options.follow or is_last:
                    return
                elif not watches:
                    watches, rotations = True, self._rotations
                elif self.closed:
                    is_last = True
                elif rotations < self._rotations:
                    rotations += 1
                    files.close()
                    file = files.enter_context(self._path.open("rb"))
                else:
                    await more.wait()

    def _append(self, stream: str, entries: Sequence[tuple[bytes, bool]]) -> None:
        if not entries:
            return
        head = f"{clock.nano_text()} {stream} ".encode()
        self._file.write(b"".join(head + (b"F " if whole else b"P ") + text + b"\n" for text, whole in entries))
        if self._rotation is None and self._file.tell() >= self._max_size:
            until_a_look = self._looks_every - time.monotonic() % self._looks_every
            self._rotation = asyncio.get_running_loop().call_later(until_a_look, self._rotate)
        self._wake()

    def _rotate(self) -> None:
        self._rotation = None
        rotated = sorted(self._path.parent.glob(f"{self._path.name}.*"))
        for oldest in rotated[: max(0, len(rotated) - (_MAX_FILES - 2))]:
            oldest.unlink()
        self._file.close()
        self._path.rename(self._path.with_name(f"{self._path.name}.{clock.now():%Y%m%d-%H%M%S}"))
        self._file = self._path.open("ab", buffering=0)
        self._rotations += 1
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()


class _Renderer:
    """Turns a file's entries into what one reader gets."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._budget = options.limit_bytes
        self._is_at_start_of_line = True

    @property
    def is_full(self) -> bool:
        """Whether the reader has all the bytes that it asked for."""
        return self._budget is not None and self._budget <= 0

    def render(self, lines: Sequence[bytes]) -> bytes:
        """Return these lines of the file as the reader gets them."""
        text = b"".join(self._rendered(lines))
        if self._budget is not None:
            text = text[: self._budget]
            self._budget -= len(text)
        return text

    def _rendered(self, lines: Sequence[bytes]) -> Iterator[bytes]:
        since = self._options.since
        for line in lines:
            at, _, tag, content = line[:-1].split(b" ", 3)
            if since is None or clock.parse(at.decode()) >= since:
                if self._options.timestamps and self._is_at_start_of_line:
                    yield at + b" "
                yield content + (b"\n" if tag == b"F" else b"")
            self._is_at_start_of_line = tag == b"F" or not content


def _entries(line: bytes, *, whole: bool) -> list[tuple[bytes, bool]]:
    """Return a line in the parts that containerd makes of it, each with whether the line ends there."""
    cuts = range(_LONGEST_PART, len(line), _LONGEST_PART)
    starts = (0, *cuts)
    parts = [line[start : start + _LONGEST_PART] for start in starts]
    return [*((part, False) for part in parts[:-1]), (parts[-1], whole)]


def _tail_start(file: IO[bytes], lines: int | None) -> int:
    """Return where the last lines of a file begin."""
    if lines is None:
        return 0
    data = file.read()
    start = len(data)
    for _ in range(lines + 1):
        start = data.rfind(b"\n", 0, start)
        if start < 0:
            return 0
    return start + 1

"""A container's log, read in pieces by changing readers: each line once. No I/O, no clock.

The kubelet can be asked for the lines of a time or later, in whole seconds (sinceTime). A log only grows at its end, so
these lines are the same sequence each time, and "the lines of second S or later, and how many of them are done with"
is a place in it. Their times need not grow from line to line: stdout and stderr are stamped apart. So S stays a second
behind the newest line.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from airflow_gpu_provider.untrusted import plain

POSITIONS = "airflow-gpu-provider/log-positions"
"""The annotation of a pod whose log is streamed: its containers' LogPositions, as JSON."""

LONGEST_LINE = 2**18
"""How many bytes of a line are kept: a progress bar that only returns to the line's start is one line for hours."""

_LONGEST_SHOWN = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAG = 1
_FRACTION = re.compile(r"\.(\d{1,9})")
# What the kubelet answers in place of a log, or at its end, where it cannot read it, with status 200 and no time
# (kubernetes: pkg/kubelet/kuberuntime/kuberuntime_container.go, logs/logs.go; tektoncd/dashboard#3562).
_OF_KUBELET = re.compile(
    r"(?:unable to retrieve container logs for|error grabbing logs:|rpc error: code = \w{1,40} desc ="
    r"|failed to (?:try resolving symlinks in path|(?:open|read|tail|seek|stat) (?:container )?log"
    r"|create fsnotify watcher|watch (?:file|directory)))",
    re.IGNORECASE,
)
_LEVEL = re.compile(r"^\s*\[?(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b", re.IGNORECASE)
_LEVELS = {**logging.getLevelNamesMapping(), "FATAL": logging.CRITICAL}


@dataclass(frozen=True, kw_only=True)
class LogPosition:
    """A place between two lines.

    Attributes:
        since: In seconds since the epoch.
        seen: How many of the lines of that second or later are done with.
        newest: The latest time of those, in nanoseconds since the epoch. Lines that are newer were never seen, however
            many are to be skipped: the kubelet may have rotated those away.
    """

    since: int = 0
    seen: int = 0
    newest: int = 0

    def to_record(self) -> list[int]:
        return [self.since, self.seen, self.newest]

    @classmethod
    def from_record(cls, record: list[int]) -> Self:
        since, seen, newest = record
        return cls(since=since, seen=seen, newest=newest)


class LineSplitter:
    """Puts the whole lines of a log together from the pieces in which it arrives.

    Of a line longer than LONGEST_LINE the rest is left out, and its end says how much that is.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._left_out = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the lines that this piece ends."""
        *ends, rest = piece.split(b"\n")
        lines = []
        for end in ends:
            self._append(end)
            lines.append(self._take())
        self._append(rest)
        return lines

    def last(self) -> list[bytes]:
        """Return what came after the last line end, of a log that is at its end."""
        return [self._take()] if self._line else []

    def _append(self, piece: bytes) -> None:
        room = LONGEST_LINE - len(self._line)
        self._line += piece[:room]
        self._left_out += len(piece[room:])

    def _take(self) -> bytes:
        line = bytes(self._line)
        if self._left_out:
            line += b" ... (%d more bytes)" % self._left_out
        self._line.clear()
        self._left_out = 0
        return line


class LogReader:
    """Tells the new lines of one container's log from those that were read before.

    Each reading begins with `begin`, and gives every whole line of the answer to `take`.
    """

    def __init__(self, position: LogPosition | None = None) -> None:
        self._start = position or LogPosition()
        self._to_skip = self._start.seen
        self._newest = self._start.newest
        self._of_second: Counter[int] = Counter()
        self._at_start = True
        self.at: datetime | None = None
        """When the last line that was taken was printed, by its node's clock."""
        self.is_after_gap = False
        """Whether lines may be missing before it: none of those that were read last is there any more."""

    @property
    def position(self) -> LogPosition:
        """What the last line that was taken is followed by."""
        if self._to_skip or not self._of_second:
            return self._start
        since = self._newest // 10**9 - _LAG
        seen = sum(count for second, count in self._of_second.items() if second >= since)
        return LogPosition(since=since, seen=seen, newest=self._newest)

    def of_next_run(self) -> LogReader:
        """Return the reader of the log of the container's next run, which has none of these lines."""
        return LogReader(replace(self.position, seen=0))

    def begin(self) -> dict[str, str]:
        """Return the parameters of a request for what is new, and of a little before it."""
        self._start = self.position
        self._to_skip = self._start.seen
        self._of_second.clear()
        self._at_start = True
        parameters = {"timestamps": "true"}
        if self._start.since > 0:
            parameters["sinceTime"] = datetime.fromtimestamp(self._start.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return parameters

    def take(self, line: bytes) -> str | None:
        """Return a line's text if it is new; None if it was read before."""
        is_first, self._at_start = self._at_start, False
        stamp, _, text = text_of(line).partition(" ")
        at = _nanoseconds(stamp)
        if at is None:
            # The end of a long line whose beginning is older than what was asked for, or the kubelet's own words.
            return None if is_first and self._start.since > 0 else text_of(line)
        is_old = self._to_skip > 0 and at <= self._start.newest
        self.is_after_gap = not is_old and 0 < self._start.seen == self._to_skip
        self._to_skip = self._to_skip - 1 if is_old else 0
        self._count(at)
        self.at = _EPOCH + timedelta(microseconds=at // 1000)
        return None if is_old else text

    def _count(self, at: int) -> None:
        self._newest = max(self._newest, at)
        self._of_second[at // 10**9] += 1
        if len(self._of_second) > 2 * _LAG + 2:
            oldest = self._newest // 10**9 - _LAG
            self._of_second = Counter({s: count for s, count in self._of_second.items() if s >= oldest})


def text_of(line: bytes) -> str:
    """Return a log's line as plain text; bytes that are no UTF-8 show as escapes."""
    text = line.decode(errors="backslashreplace")
    return plain(text, len(text))


def printed(line: bytes) -> str | None:
    """Return the text of a line that was asked for with its time; None for the kubelet's own words, which have none."""
    stamp, _, text = text_of(line).partition(" ")
    if _nanoseconds(stamp) is not None:
        return text
    whole = text_of(line)  # the end of a long line, whose beginning has the time
    return None if _OF_KUBELET.match(whole) else whole


def lines_of(text: str) -> list[str]:
    """Return the lines of a log without blank ones. Only a newline ends one: a progress bar is a single line."""
    return [line for line in text.split("\n") if line.strip()]


def shown(line: str) -> str:
    """Return what a terminal shows of a line: what came last after a carriage return, without colours; cut off."""
    parts = (part.rstrip() for part in reversed(plain(line, len(line)).split("\r")))
    return next((part for part in parts if part), "")[:_LONGEST_SHOWN]


def log_line(
    log: Callable[..., None],
    container: str,
    text: str,
    *,
    with_name: bool,
    formatter: Callable[[str, str], str] | None = None,
) -> None:
    """Write one line of a container's log into a task's log, as KubernetesPodOperator does where it follows one.

    Args:
        log: Takes a level, a format and its arguments, like `Logger.log`.
        with_name: Put "[container]" before it.
        formatter: Makes the line instead, from the container's name and the text.
    """
    if not text.strip():
        return
    if text.startswith(("::group::", "::endgroup::")):  # folded by Airflow's log view, if nothing comes before them
        log(logging.INFO, "%s", text)
        return
    match = _LEVEL.match(text)
    level = _LEVELS[match.group(1).upper()] if match else logging.INFO
    if formatter is not None:
        log(level, "%s", formatter(container, text))
    elif with_name:
        log(level, "[%s] %s", container, text)
    else:
        log(level, "%s", text)


def positions_to_record(positions: Mapping[str, LogPosition]) -> dict[str, Any]:
    return {name: position.to_record() for name, position in positions.items()}


def positions_from_record(record: Mapping[str, Any]) -> dict[str, LogPosition]:
    return {name: LogPosition.from_record(values) for name, values in record.items()}


def _nanoseconds(stamp: str) -> int | None:
    try:
        at = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    if at.tzinfo is None:
        return None
    seconds = (at.replace(microsecond=0) - _EPOCH) // timedelta(seconds=1)
    fraction = _FRACTION.search(stamp)
    return seconds * 10**9 + (int(fraction.group(1).ljust(9, "0")) if fraction else 0)

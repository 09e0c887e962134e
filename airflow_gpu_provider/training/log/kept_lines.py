"""KeptLines: the last lines that a trigger has logged, for the worker that goes on with the next attempt.

Airflow 3.3 opens a trigger's file of the task's log again at each deferral (triggerer_job_runner.py,
TriggerLoggingFactory, "wb"): what the triggerer logged of one attempt is gone when the next one is waited for there.
A worker's file stays, and the event is the only way from a trigger to a worker: packed, 1,000 lines are some 20 KiB.
"""

from __future__ import annotations

import base64
import json
import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from airflow.providers.common.compat.sdk import redact

LINES = 1000
LONGEST = 2000
"""How many characters of a line are kept."""

Log = Callable[..., None]
"""Takes a level, a format and its arguments, like `Logger.log`."""


class KeptLines:
    """What was logged through `log`.

    Args:
        write: Writes a line into the task's log.
    """

    def __init__(self, write: Log) -> None:
        self._write = write
        self._lines: deque[tuple[float, int, str]] = deque(maxlen=LINES)
        self._count = 0

    def log(self, level: int, message: str, *args: object) -> None:
        """Log a line, and keep it."""
        self._write(level, message, *args)
        text = message % args if args else message
        more = f" ... ({len(text) - LONGEST} more characters)" if len(text) > LONGEST else ""
        self._lines.append((time.time(), level, text[:LONGEST] + more))
        self._count += 1

    def packed(self) -> str:
        """Return them, masked as Airflow masks a log, for an event; it is stored, and may be printed."""
        lines = [(round(at, 3), level, str(redact(text))) for at, level, text in self._lines]
        text = json.dumps({"lines": lines, "count": self._count})
        return base64.b64encode(zlib.compress(text.encode())).decode()


def write_again(log: Log, packed: str, *, what: str) -> None:
    """Write what a trigger has kept into the log of the worker that goes on.

    Args:
        log: The worker's.
        packed: What `KeptLines.packed` returned.
        what: Whose lines they are.
    """
    kept = json.loads(zlib.decompress(base64.b64decode(packed)))
    for line in (_head(what, len(kept["lines"]), kept["count"]), *_shown(kept["lines"])):
        log(*line)
    log(logging.INFO, "%s", f"---- (end of the triggerer's lines of {what})")


def _head(what: str, kept: int, count: int) -> tuple[int, str, str]:
    which = f"the last {kept} of the {count} lines" if count > kept else f"the {kept} lines"
    why = "Airflow clears them where they were when the task waits in the triggerer again"
    return logging.INFO, "%s", f"---- {which} that the triggerer logged of {what}, with their times ({why}):"


def _shown(lines: Iterable[tuple[float, int, str]]) -> Iterable[tuple[int, str, str]]:
    for at, level, text in lines:
        yield level, "%s", f"{datetime.fromtimestamp(at, UTC):%H:%M:%SZ} {text}"

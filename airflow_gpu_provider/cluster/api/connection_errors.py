"""Connections that failed, in words for people: no object's repr, and no request's whole address.

While HTTP libraries try again by themselves they say nothing: who waits for them logs one line.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_POOL = re.compile(r"<?HTTPS?Connection(?:Pool)?\(host='?([^',]{1,253})'?, port=(\d{1,5})\)(?: at 0x\w+>)?")
_ADDRESS = re.compile(r"(https?://[^/\s\"'?]+)[^\s\"']*")


def failure_in_words(error: BaseException) -> str:
    """Return why a request had no answer, from an error of urllib3, requests or botocore."""
    cause: object = error
    while True:
        # requests keeps urllib3's error as its argument, and urllib3's MaxRetryError the last try's as its reason.
        inner = getattr(cause, "reason", None) or next(iter(getattr(cause, "args", ())), None)
        if not isinstance(inner, Exception):
            break
        cause = inner
    args = getattr(cause, "args", ())
    text = " ".join(map(str, args)) if len(args) > 1 and not isinstance(cause, OSError) else str(cause)
    words = _ADDRESS.sub(r"\1", _POOL.sub(r"\1:\2", text))
    return words.strip().rstrip(".") or type(error).__name__


class _OfThisThread(logging.Filter):
    """Drops what threads log that are in `unlogged`."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(self.quiet, "depth", 0)


_filters: dict[str, _OfThisThread] = {}


@contextmanager
def unlogged(name: str) -> Iterator[None]:
    """Drop what this thread logs through the logger of this name."""
    logger, known = logging.getLogger(name), _filters.setdefault(name, _OfThisThread())
    if known not in logger.filters:
        logger.addFilter(known)
    before = getattr(known.quiet, "depth", 0)
    known.quiet.depth = before + 1
    try:
        yield
    finally:
        known.quiet.depth = before

"""Kubernetes' spellings of the present moment."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now() -> datetime:
    """The present, in UTC."""
    return datetime.now(UTC)


def seconds_text(moment: datetime) -> str:
    """``metav1.Time``: whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_text(moment: datetime) -> str:
    """``metav1.MicroTime``, as Leases carry it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def nano_text() -> str:
    """The present with nanoseconds, as container logs carry it."""
    nanoseconds = time.time_ns()
    whole = datetime.fromtimestamp(nanoseconds // 10**9, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{nanoseconds % 10**9:09d}Z"


def parse(text: str) -> datetime:
    """Read any of the above."""
    head, _, fraction = text.rstrip("Z").partition(".")
    moment = datetime.fromisoformat(head).replace(tzinfo=UTC)
    return moment.replace(microsecond=int((fraction + "000000")[:6])) if fraction else moment

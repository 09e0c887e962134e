"""Kubernetes' times as text, read and written, and durations for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def parse_time(text: str | None) -> datetime | None:
    """Read Kubernetes' RFC 3339 times, with or without fractions."""
    return datetime.fromisoformat(text) if text else None


def parse_container_time(text: str | None) -> datetime | None:
    """Read when a container started or ended; None also for the start of 1970.

    A kubelet writes that where the runtime never started it, as for a command that is not there (StartError).
    """
    at = parse_time(text)
    return at if at and at.timestamp() > 0 else None


def format_time(at: datetime) -> str:
    """Write a time as Kubernetes' MicroTime fields want it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def format_seconds(duration: timedelta) -> str:
    """Return a duration in readable form: 42 s, 3 min 10 s, 2 h 5 min."""
    seconds = round(duration.total_seconds())
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"

"""Kubernetes' times as text: read, and written."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: str | None) -> datetime | None:
    """Read Kubernetes' RFC 3339 times, with or without fractions."""
    return datetime.fromisoformat(text) if text else None


def format_time(at: datetime) -> str:
    """Write a time as Kubernetes' MicroTime fields want it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

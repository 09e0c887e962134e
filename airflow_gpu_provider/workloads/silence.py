"""Silence: that no rank of a gang prints anything, by which a gang that hangs is told from one that works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, kw_only=True)
class Silence:
    """What is known of a gang whose ranks are all followed: for how long none has printed, and each one's last line."""

    lasts: timedelta
    last_lines: Mapping[int, str]

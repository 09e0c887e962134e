"""Reserved: what a reservation of the cloud's lets a group have, as decisions need it. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """The reservation from which alone a group has machines, at one moment.

    Attributes:
        id: The cloud's name of it.
        opens_at: When it begins to give machines, while it has not; a cloud may take a while beyond that.
        ends_at: From when on its machines have to be empty, because the cloud ends them soon; None: it ends none.
        has_ended: They have to be by now.
        why_not: Why it gives no machine now, for people; empty where it does.
        is_over: It never gives one again.
    """

    id: str
    opens_at: datetime | None = None
    ends_at: datetime | None = None
    has_ended: bool = False
    why_not: str = ""
    is_over: bool = False

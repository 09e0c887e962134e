"""GroupUpdate: what the cloud does to a group, which takes its machines meanwhile; plain data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, kw_only=True)
class GroupUpdate:
    """What the cloud does to a group whose status is "updating".

    Attributes:
        name: The operation's name.
        kind: What it is, in the cloud's word: UPGRADE_NODES, say.
        since: When it began; None where the cloud does not tell it.
        what_to_do: For people: how to look at it, and to end it.
        takes: For how long it may take a machine before it is said to take long.
    """

    name: str
    kind: str
    since: datetime | None = None
    what_to_do: str = ""
    takes: timedelta = timedelta(hours=1)

    def is_long(self, now: datetime) -> bool:
        """Return True if it takes longer than one machine should."""
        return self.since is not None and now - self.since > self.takes

    def __str__(self) -> str:
        since = f" since {self.since:%Y-%m-%d %H:%MZ}" if self.since else ""
        return f"{self.name}, {self.kind}{since}"

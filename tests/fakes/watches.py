"""Watch: one watch of a collection, from a version on, until its connection breaks off or the server ends it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from tests.fakes.objects import Change, Objects, Raw, copied
from tests.fakes.selectors import Matcher


class Watch:
    """What it tells is told in the event loop in which it is read; there, changes are made.

    Args:
        kind: Of which objects it tells.
        namespace: In which; empty: in all.
        matches: Says which of these are selected.
        since: The version after which it begins.

    Attributes:
        has_bookmarks: It is told, too, how far it has come.
    """

    has_bookmarks = False

    def __init__(self, objects: Objects, kind: str, namespace: str, matches: Matcher, since: int) -> None:
        self._objects = objects
        self._kind = kind
        self._namespace = namespace
        self._matches = matches
        self._told: deque[Raw] = deque()
        self._news = asyncio.Event()
        self._over: Exception | bool = False
        for change in objects.changes:
            if change.version > since:
                self._take(change)
        objects.listeners.append(self._take)

    def send_bookmark(self) -> None:
        """Tell how far it has come, as a server does about each minute."""
        if self.has_bookmarks:
            self._tell({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self._objects.version)}}})

    def fail(self, status: Raw) -> None:
        """Tell of nothing but an error, a Status, and end."""
        self._told.clear()
        self._tell({"type": "ERROR", "object": status})
        self.end()

    def end(self) -> None:
        """End it in good order, as a server does after timeoutSeconds."""
        self._ends(True)

    def break_off(self) -> None:
        self._ends(ConnectionResetError("The connection broke off."))

    async def events(self) -> AsyncIterator[Raw]:
        try:
            while True:
                self._news.clear()
                while self._told and not isinstance(self._over, Exception):
                    yield self._told.popleft()
                if isinstance(self._over, Exception):
                    raise self._over
                if self._over:
                    return
                await self._news.wait()
        finally:
            self._objects.listeners.remove(self._take)

    def _take(self, change: Change) -> None:
        """Tell of a change; an object that is no longer selected is DELETED, as it was, with the new version."""
        if change.kind != self._kind or self._namespace not in ("", change.key[0]):
            return
        before, after = change.before, change.after
        if after is not None and self._matches(after):
            was_there = before is not None and self._matches(before)
            self._tell({"type": "MODIFIED" if was_there else "ADDED", "object": copied(after)})
        elif before is not None and self._matches(before):
            gone = copied(before)
            gone["metadata"]["resourceVersion"] = str(change.version)
            self._tell({"type": "DELETED", "object": gone})

    def _tell(self, event: Raw) -> None:
        self._told.append(event)
        self._news.set()

    def _ends(self, how: Exception | bool) -> None:
        self._over = how
        self._news.set()

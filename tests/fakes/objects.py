"""Objects: what an API server keeps, with a version for each change, and what changed since a version.

An object that is stored is never changed again: whoever changes it stores another one. So lists, pages and watches can
show what there was without a copy of their own.
"""

from __future__ import annotations

import marshal
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple, cast

Raw = dict[str, Any]
Key = tuple[str, str]
"""An object's namespace, empty where it has none, and its name."""

_FIRST = 100


class Change(NamedTuple):
    """One object created (nothing before), changed, or deleted (nothing after)."""

    version: int
    kind: str
    key: Key
    before: Raw | None
    after: Raw | None


class Objects:
    """All objects of a cluster.

    Attributes:
        version: That of the last change.
        oldest: The oldest version after which all changes are known: an API server begins with some, and compacts.
        changes: Those since, in their order.
        listeners: Called after each change.
    """

    def __init__(self) -> None:
        self.version = self.oldest = _FIRST
        self.changes: list[Change] = []
        self.listeners: list[Callable[[Change], None]] = []
        self._kinds: defaultdict[str, dict[Key, Raw]] = defaultdict(dict)

    def of_kind(self, kind: str) -> dict[Key, Raw]:
        """Return the objects of a kind, those first that were created first."""
        return self._kinds[kind]

    def store(self, kind: str, key: Key, raw: Raw) -> Raw:
        """Store an object, which is the store's from now on, in place of what had its key."""
        before = self._kinds[kind].get(key)
        raw["metadata"]["resourceVersion"] = str(self.version + 1)
        self._kinds[kind][key] = raw
        self._changed(kind, key, before, raw)
        return raw

    def remove(self, kind: str, key: Key) -> Raw:
        before = self._kinds[kind].pop(key)
        self._changed(kind, key, before, None)
        return before

    def compact(self) -> None:
        """Forget what changed until now, as an API server does with what is five minutes old."""
        self.oldest = self.version
        self.changes.clear()

    def _changed(self, kind: str, key: Key, before: Raw | None, after: Raw | None) -> None:
        self.version += 1
        change = Change(self.version, kind, key, before, after)
        self.changes.append(change)
        for listener in self.listeners:
            listener(change)


def copied(raw: Raw) -> Raw:
    """Return a copy of JSON; the quickest, for the model of the protocol makes millions."""
    return cast("Raw", marshal.loads(marshal.dumps(raw)))


def merged(now: Any, patch: Any) -> Any:
    """RFC 7386: null takes away, objects are merged, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    base = dict(now) if isinstance(now, dict) else {}
    for name, value in patch.items():
        if value is None:
            base.pop(name, None)
        else:
            base[name] = merged(base.get(name), value)
    return base

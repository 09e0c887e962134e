"""VersionedServer: what an informer sees of an API server: lists, watches by label, versions, compaction, outages.

For tests of what watches tell: objects get and lose labels and are deleted in any order while watches break off and
old versions are forgotten.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_gpu_provider.cluster.async_api import Expired
from airflow_gpu_provider.errors import ClusterUnreachable, PermissionDenied

Raw = dict[str, Any]


@dataclass
class VersionedServer:
    """One API server; `api.get`, `api.watch` and `api.now` as AsyncApi has them.

    Attributes:
        is_away: It answers nothing, and its watches have broken off.
        refused: Requests whose verb is in here are refused: "get", "list", "watch".
        unreadable: A collection of which everything is refused.
        asked: How often each verb was asked for.
    """

    is_away: bool = False
    refused: set[str] = field(default_factory=set)
    unreadable: str = ""
    asked: Counter[str] = field(default_factory=Counter)
    _objects: dict[str, Raw] = field(default_factory=dict)
    _log: list[tuple[int, str, Raw | None, Raw | None]] = field(default_factory=list)
    _version: int = 1
    _forgotten: int = 0
    _connection: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    # -- what happens ----------------------------------------------------------------------------------------------

    def put(self, path: str, raw: Raw) -> None:
        self._change(path, deepcopy(raw))

    def label(self, path: str, name: str, value: str | None) -> None:
        if path not in self._objects:
            return
        raw = deepcopy(self._objects[path])
        labels = raw["metadata"].setdefault("labels", {})
        labels.pop(name, None)
        if value is not None:
            labels[name] = value
        self._change(path, raw)

    def delete(self, path: str) -> None:
        if path in self._objects:
            self._change(path, None)

    def break_watches(self) -> None:
        self._connection += 1
        self._wake()

    def forget_versions(self) -> None:
        """Compact: a watch cannot be taken up from a version before now."""
        self._forgotten = self._version

    def go_away(self) -> None:
        self.is_away = True
        self.break_watches()

    def come_back(self) -> None:
        self.is_away = False

    def read(self, path: str) -> Raw:
        return deepcopy(self._objects[path])

    def has(self, path: str) -> bool:
        return path in self._objects

    def _change(self, path: str, raw: Raw | None) -> None:
        self._version += 1
        before = self._objects.pop(path, None)
        if raw is not None:
            raw["metadata"]["resourceVersion"] = str(self._version)
            self._objects[path] = raw
        self._log.append((self._version, path, before, raw))
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # -- what it answers -------------------------------------------------------------------------------------------

    async def now(self) -> datetime:
        return datetime.now(UTC)

    async def close(self) -> None:
        """Nothing is open."""

    async def get(self, path: str, **params: str) -> Raw | None:
        is_list = path.rpartition("/")[2] in ("pods", "nodes", "events", "jobs", "workloads")
        await self._admit("list" if is_list else "get", path)
        if not is_list:
            return deepcopy(self._objects.get(path))
        matches = _selector(path, params)
        items = [deepcopy(raw) for at, raw in self._objects.items() if matches(at, raw)]
        return {"items": items, "metadata": {"resourceVersion": str(self._version)}}

    async def watch(
        self, path: str, *, silence: float, on_open: Callable[[], None], resourceVersion: str, **params: str
    ) -> AsyncIterator[Raw]:
        await self._admit("watch", path)
        reached, connection, matches = int(resourceVersion), self._connection, _selector(path, params)
        if reached < self._forgotten:
            raise Expired
        on_open()
        while True:
            news = self._news
            if self._connection != connection:
                raise ClusterUnreachable("The connection broke off.")
            for version, at, before, after in list(self._log):
                if version > reached:
                    reached = version
                    if event := _event(before, after, lambda raw, at=at: matches(at, raw), version):
                        yield event
            await news.wait()

    async def _admit(self, verb: str, path: str) -> None:
        self.asked[verb] += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise ClusterUnreachable("It does not answer.")
        if verb in self.refused or path == self.unreadable:
            raise PermissionDenied(f"May not {verb} {path}.")


def _selector(path: str, params: dict[str, str]) -> Callable[[str, Raw], bool]:
    name, _, value = params.get("labelSelector", "").partition("=")

    def matches(at: str, raw: Raw) -> bool:
        labels = raw["metadata"].get("labels") or {}
        has_it = not name or (labels.get(name) == value if value else name in labels)
        return at.rpartition("/")[0] == path and has_it

    return matches


def _event(before: Raw | None, after: Raw | None, matches: Callable[[Raw], bool], version: int) -> Raw | None:
    """Return what a watch sends: an object that no longer matches is DELETED, as it was, with the new version."""
    did, does = before is not None and matches(before), after is not None and matches(after)
    if does:
        return {"type": "MODIFIED" if did else "ADDED", "object": deepcopy(after)}
    if did:
        gone = deepcopy(before)
        assert gone is not None
        gone["metadata"]["resourceVersion"] = str(version)
        return {"type": "DELETED", "object": gone}
    return None

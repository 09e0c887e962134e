"""Shared informers: one list and watch for each cluster and resource, however many wait for something of it.

    async with watching(identity, open_access, {pods("train"): "train-abc", pod_events("train"): "train-abc"}) as feed:
        while True:
            for change in await feed.changes(timeout=15): ...

All feeds of one event loop share a connection pool for each cluster and a watch for each resource. The watch runs in a
task with an empty context, outlives the feed that started it, and ends with the last one. A feed only gets changes of
the key that it asked for, and decides itself what to log: a line logged by the shared task would land in the log of the
task that started it.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal
from weakref import WeakKeyDictionary

from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.async_api import AsyncApi, Expired
from airflow_gpu_provider.cluster.api.threads import in_thread
from airflow_gpu_provider.cluster.api.watched import Resource
from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.cluster.model.refusals import ObjectNotFound
from airflow_gpu_provider.errors import ClusterUnreachable, CredentialsError, GpuError, PermissionDenied

PAGE = "500"
WATCH_SECONDS = 290  # the server ends a watch after this; kube-apiserver's own default is 5 to 10 minutes
SILENCE = 90.0  # bookmarks come every minute, so a connection that is silent for longer may be dead (events have none)
_SOON, _LATEST = 0.2, 30.0
_QUIET_START = 1.0
_OPTIONAL_PAUSE = 60.0


@dataclass(frozen=True, kw_only=True)
class Change:
    """News about one resource.

    `present`: `raw` is an object as it is now, shared with others: never to be changed. `gone`: it was deleted, or does
    not match the selectors any more; `raw` is what was last seen of it, and `is_seen` is False where it went while
    nobody watched: it is only missing in a list. `synced`: everything that there is was told.
    `trouble`: `error` says why the watch stands still, `since` since when by `time.monotonic()`; it goes on trying.
    `recovered`: it goes on.
    """

    resource: Resource
    kind: Literal["present", "gone", "synced", "trouble", "recovered"]
    raw: Json = field(default_factory=dict)
    error: GpuError | None = None
    since: float = 0.0
    is_seen: bool = True


class Feed:
    """One waiter's stream of changes. `api` is the shared connection to the cluster."""

    def __init__(self, api: AsyncApi) -> None:
        self.api = api
        self._changes: list[Change] = []
        self._changed = asyncio.Event()

    def put(self, change: Change) -> None:
        self._changes.append(change)
        self._changed.set()

    def wake(self) -> None:
        """Make `changes` return, with or without changes."""
        self._changed.set()

    async def changes(self, timeout: float) -> list[Change]:
        """Return what is new, as soon as something is; nothing after `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        self._changed.clear()
        changes, self._changes = self._changes, []
        return changes


def troubles_in_words(errors: Iterable[GpuError]) -> list[str]:
    """Return why watches stand still, in words; an API server that is away, or takes no credentials, is so for all."""
    errors = list(errors)
    refused = [error for error in errors if isinstance(error, CredentialsError)]
    errors = [*(error for error in errors if error not in refused), *refused[:1]]
    lines = [f"{type(error).__name__}: {error}" for error in errors if not isinstance(error, ClusterUnreachable)]
    is_away = len(lines) < len(errors)
    return [*lines, "the API server does not answer; the wait continues"] if is_away else lines


@asynccontextmanager
async def watching(
    identity: str, open_access: Callable[[], ClusterAccess], wants: Mapping[Resource, str]
) -> AsyncIterator[Feed]:
    """Subscribe to some resources of one cluster.

    Args:
        identity: Says which cluster, as whom; feeds with the same identity share everything.
        open_access: Finds the cluster; called in a thread, once for all who share it.
        wants: For each resource the key whose changes are wanted.
    """
    async with _connected(identity, open_access) as cluster:
        feed = Feed(cluster.api)
        try:
            for resource, key in wants.items():
                cluster.informer(resource).subscribe(feed, key)
            yield feed
        finally:
            for resource, key in wants.items():
                await cluster.leave(resource, feed, key)


@asynccontextmanager
async def connected(identity: str, open_access: Callable[[], ClusterAccess]) -> AsyncIterator[AsyncApi]:
    """Lend the shared connection to a cluster, for single calls; arguments and errors as for `watching`."""
    async with _connected(identity, open_access) as cluster:
        yield cluster.api


class _Cluster:
    """One connection to one cluster, and its informers."""

    def __init__(self) -> None:
        self.users = 0
        self.opening: asyncio.Task[AsyncApi] | None = None
        self._informers: dict[Resource, _Informer] = {}

    @property
    def api(self) -> AsyncApi:
        assert self.opening is not None
        return self.opening.result()

    def informer(self, resource: Resource) -> _Informer:
        if resource not in self._informers:
            self._informers[resource] = _Informer(self.api, resource)
        return self._informers[resource]

    async def leave(self, resource: Resource, feed: Feed, key: str) -> None:
        informer = self._informers.get(resource)
        if informer is not None and informer.unsubscribe(feed, key):
            del self._informers[resource]
            await informer.stop()

    @property
    def has_failed(self) -> bool:
        """Whether the cluster could not be found; the next subscriber tries again."""
        opening = self.opening
        return opening is not None and opening.done() and (opening.cancelled() or opening.exception() is not None)

    async def close(self) -> None:
        if self.opening is None:
            return
        if not self.opening.done():
            self.opening.cancel()
            await asyncio.wait([self.opening])
        if not self.has_failed:
            await self.api.close()


_clusters: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Cluster]] = WeakKeyDictionary()


@asynccontextmanager
async def _connected(identity: str, open_access: Callable[[], ClusterAccess]) -> AsyncIterator[_Cluster]:
    clusters = _clusters.setdefault(asyncio.get_running_loop(), {})
    cluster = clusters.setdefault(identity, _Cluster())
    cluster.users += 1
    try:
        if cluster.opening is None:
            cluster.opening = asyncio.create_task(_open(open_access), context=contextvars.Context())
        # Shielded: who comes first may be cancelled, the others still want it.
        await asyncio.shield(cluster.opening)
        yield cluster
    finally:
        cluster.users -= 1
        if (cluster.users == 0 or cluster.has_failed) and clusters.get(identity) is cluster:
            del clusters[identity]
        if cluster.users == 0:
            await cluster.close()


async def _open(open_access: Callable[[], ClusterAccess]) -> AsyncApi:
    return AsyncApi(await in_thread(open_access))


class _Informer:
    """The list and watch of one resource, and what it has seen."""

    def __init__(self, api: AsyncApi, resource: Resource) -> None:
        self._api = api
        self._resource = resource
        self._path = resource.path
        self._seen: dict[str, Json] = {}
        self._by_key: dict[str, dict[str, Json]] = defaultdict(dict)
        self._feeds: dict[str, list[Feed]] = defaultdict(list)
        self._is_synced = False
        self._trouble: GpuError | None = None
        self._trouble_since = 0.0
        self._open_since = math.inf
        self._task = asyncio.create_task(self._run(), context=contextvars.Context())

    def subscribe(self, feed: Feed, key: str) -> None:
        """Add a feed; what is known of its key is told at once."""
        self._feeds[key].append(feed)
        for raw in self._by_key.get(key, {}).values():
            feed.put(Change(resource=self._resource, kind="present", raw=raw))
        if self._is_synced:
            feed.put(Change(resource=self._resource, kind="synced"))
        if self._trouble is not None:
            feed.put(self._trouble_now(self._trouble))

    def unsubscribe(self, feed: Feed, key: str) -> bool:
        """Take a feed off; True where it was the last."""
        if feed in self._feeds.get(key, ()):
            self._feeds[key].remove(feed)
            if not self._feeds[key]:
                del self._feeds[key]
        return not self._feeds

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    # -- list and watch --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        version, failures, expiries = "", 0, 0
        while True:
            self._open_since = math.inf
            try:
                if not version:
                    version = await self._list()
                async for reached in self._watch(version):
                    version = reached
                failures += 1  # a server that ends each watch at once is not to be asked without a pause
            except Expired:
                # The server answers. The first time is ordinary, and what changed meanwhile is wanted at once.
                version, failures, expiries = "", 0, expiries + 1
            except GpuError as error:
                failures += 1
                self._tell_trouble(error)
            except Exception as error:  # noqa: BLE001 - waiting feeds have to learn of a bug here; else they wait for ever
                failures += 1
                self._tell_trouble(GpuError(f"The watch of {self._resource} failed: {error!r}."))
            if time.monotonic() - self._open_since > _QUIET_START:
                failures, expiries = int(self._trouble is not None), 0
            if in_a_row := max(failures, expiries - 1):
                await asyncio.sleep(_pause(in_a_row, self._trouble, is_optional=self._resource.is_optional))

    async def _list(self) -> str:
        """Take what is there now for the truth; what went or changed while nobody watched is told as changes."""
        items: list[Json] = []
        params = {**self._resource.params, "limit": PAGE}
        page = await self._first_page(params)
        if page is None and self._resource.is_optional:
            raise ObjectNotFound(f"The API server serves no {self._resource}.")
        while True:
            page = page or {"items": [], "metadata": {}}
            items += page["items"]
            if not page["metadata"].get("continue"):
                break
            params["continue"] = page["metadata"]["continue"]
            page = await self._api.get(self._path, **params)
        there = {raw["metadata"]["uid"] for raw in items}
        for uid, last_seen in list(self._seen.items()):
            if uid not in there:
                self._tell_gone(last_seen, is_seen=False)
        for raw in items:
            self._tell_present(raw)
        self._is_synced = True
        self._tell_recovered()
        self._tell_all(Change(resource=self._resource, kind="synced"))
        return str(page["metadata"].get("resourceVersion") or "")

    async def _first_page(self, params: Mapping[str, str]) -> Json | None:
        """Return a list's first page, in the best version that the API server has now; None where it has none."""
        for version in await self._versions():
            self._path = self._resource.path.format(version=version)
            page: Json | None = await self._api.get(self._path, **params)
            if page is not None:
                return page
        return None

    async def _versions(self) -> Sequence[str]:
        known = self._resource.versions
        if not known:
            return [""]
        try:
            group = await self._api.get(self._resource.group) or {}
        except PermissionDenied:  # clusters let everybody read it, unless somebody has taken that away
            return known
        served = {each["version"] for each in group.get("versions") or ()}
        return [version for version in known if version in served]

    async def _watch(self, version: str) -> AsyncIterator[str]:
        """Tell what changes after `version`; yields the version that is reached."""
        events = self._api.watch(
            self._path,
            silence=SILENCE,
            on_open=self._watch_is_open,
            resourceVersion=version,
            allowWatchBookmarks="true",
            timeoutSeconds=str(WATCH_SECONDS + random.randrange(30)),
            **self._resource.params,
        )
        async for event in events:
            raw = event["object"]
            if event["type"] == "DELETED":
                self._tell_gone(raw)
            elif event["type"] != "BOOKMARK":
                self._tell_present(raw)
            yield str(raw["metadata"]["resourceVersion"])

    def _watch_is_open(self) -> None:
        self._open_since = time.monotonic()
        self._tell_recovered()

    # -- telling ---------------------------------------------------------------------------------------------

    def _tell_present(self, raw: Json) -> None:
        uid, key = raw["metadata"]["uid"], self._resource.key(raw)
        before = self._seen.get(uid)
        if before is not None:
            if before["metadata"]["resourceVersion"] == raw["metadata"]["resourceVersion"]:
                return
            if self._resource.key(before) != key:
                self._tell_gone(before)
        self._seen[uid] = self._by_key[key][uid] = raw
        self._tell(key, Change(resource=self._resource, kind="present", raw=raw))

    def _tell_gone(self, raw: Json, *, is_seen: bool = True) -> None:
        uid = raw["metadata"]["uid"]
        before = self._seen.pop(uid, raw)
        key = self._resource.key(before)
        self._by_key[key].pop(uid, None)
        if not self._by_key[key]:
            del self._by_key[key]
        self._tell(key, Change(resource=self._resource, kind="gone", raw=raw, is_seen=is_seen))

    def _tell_trouble(self, error: GpuError) -> None:
        before, self._trouble = self._trouble, error
        if before is None:
            self._trouble_since = time.monotonic()
        if str(before) != str(error):
            self._tell_all(self._trouble_now(error))

    def _trouble_now(self, error: GpuError) -> Change:
        return Change(resource=self._resource, kind="trouble", error=error, since=self._trouble_since)

    def _tell_recovered(self) -> None:
        if self._trouble is not None:
            self._trouble = None
            self._tell_all(Change(resource=self._resource, kind="recovered"))

    def _tell(self, key: str, change: Change) -> None:
        for feed in self._feeds.get(key, ()):
            feed.put(change)

    def _tell_all(self, change: Change) -> None:
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.put(change)


def _pause(failures: int, trouble: GpuError | None, *, is_optional: bool = False) -> float:
    """Return how long to wait before the next attempt: longer with each failure, never all waiters at once."""
    if is_optional and trouble is not None and not isinstance(trouble, ClusterUnreachable):
        return _OPTIONAL_PAUSE
    asked = trouble.details.get("retry_after", 0) if trouble else 0
    longest = min(_LATEST, _SOON * 2.0 ** min(failures, 10))
    return float(max(asked, longest * random.uniform(0.5, 1.0)))

"""What an informer does with a watch's minutes: bookmarks, ends without news, back-off."""

from __future__ import annotations

import asyncio
import contextvars
import statistics
import time
from collections.abc import AsyncIterator
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.cluster import informer
from airflow_gpu_provider.cluster.api_errors import ObjectNotFound
from airflow_gpu_provider.cluster.async_api import AsyncApi, Expired
from airflow_gpu_provider.cluster.informer import Feed
from airflow_gpu_provider.cluster.watched import kueue_workloads, pods
from airflow_gpu_provider.errors import ClusterUnreachable, GpuError, PermissionDenied

PODS = pods("ml")
WHOSE_LOG = contextvars.ContextVar("WHOSE_LOG", default="nobody's")


class Server:
    """Answers lists and watches as scripted; when the script is over, a watch stays open."""

    def __init__(self, *watches: list[dict[str, Any] | Exception]) -> None:
        self.lists = 0
        self.watched_from: list[str] = []
        self.bookmarks_wanted: list[str] = []
        self.logs: list[str] = []
        self.refuses = False
        self._watches = list(watches)

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        self.lists += 1
        self.logs.append(WHOSE_LOG.get())
        return {"items": [pod("old", "10")], "metadata": {"resourceVersion": f"{self.lists}00"}}

    async def watch(self, path: str, **params: Any) -> AsyncIterator[dict[str, Any]]:
        self.watched_from.append(params["resourceVersion"])
        self.bookmarks_wanted.append(params["allowWatchBookmarks"])
        if not self.refuses:
            params["on_open"]()
        for event in self._watches.pop(0) if self._watches else [None]:
            if event is None:
                await asyncio.Event().wait()
            if isinstance(event, Exception):
                raise event
            yield cast("dict[str, Any]", event)


def pod(name: str, version: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": version}}


def event(kind: str, name: str, version: str) -> dict[str, Any]:
    return {"type": kind, "object": pod(name, version)}


BOOKMARK = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "150"}}}


async def told(server: Server, key: str, *, watches: int) -> list[tuple[str, str]]:
    """Return what a feed hears until the server has been asked for so many watches."""
    watching = informer._Informer(cast("AsyncApi", server), PODS)
    feed = Feed(cast("AsyncApi", server))
    watching.subscribe(feed, key)
    heard = []
    async with asyncio.timeout(60):
        while len(server.watched_from) < watches:
            heard += await feed.changes(0.01)
    await watching.stop()
    heard += await feed.changes(0)
    return [(change.kind, str((change.raw.get("metadata") or {}).get("resourceVersion"))) for change in heard]


async def test_a_bookmark_moves_on_where_a_watch_is_taken_up_and_is_no_news() -> None:
    server = Server([BOOKMARK])
    assert await told(server, "old", watches=2) == [("present", "10"), ("synced", "None")]
    assert server.watched_from == ["100", "150"]
    assert set(server.bookmarks_wanted) == {"true"}
    assert server.lists == 1


async def test_a_connection_that_breaks_off_is_taken_up_where_it_was_without_a_list() -> None:
    server = Server([event("MODIFIED", "old", "120"), ClusterUnreachable("It broke off.")], [])
    heard = await told(server, "old", watches=3)
    kinds = [("present", "10"), ("synced", "None"), ("present", "120"), ("trouble", "None"), ("recovered", "None")]
    assert heard == kinds
    assert server.watched_from == ["100", "120", "120"]
    assert server.lists == 1


async def test_a_version_that_is_too_old_is_listed_anew_at_once() -> None:
    server = Server([Expired()])
    heard = await told(server, "old", watches=2)
    assert heard == [("present", "10"), ("synced", "None"), ("synced", "None")], "what did not change is no news"
    assert server.watched_from == ["100", "200"]


async def test_versions_that_are_always_too_old_are_listed_anew_with_growing_pauses() -> None:
    server = Server(*[[Expired()]] * 10_000)
    started = asyncio.get_running_loop().time()
    await told(server, "old", watches=5)
    assert asyncio.get_running_loop().time() - started > 0.1 + 0.2 + 0.4, "half of each pause is drawn by chance"
    assert server.lists == 5


async def test_a_trouble_that_is_over_is_not_told_to_who_comes_later() -> None:
    """A watch that the server has accepted may be quiet for minutes."""
    server = Server([PermissionDenied("Not now.")])
    server.refuses = True
    watching = informer._Informer(cast("AsyncApi", server), PODS)
    first, late = Feed(cast("AsyncApi", server)), Feed(cast("AsyncApi", server))
    watching.subscribe(first, "old")
    told: list[informer.Change] = []
    async with asyncio.timeout(30):
        before = time.monotonic()
        while not any(change.kind == "trouble" for change in told):
            told += await first.changes(1)
        assert before <= told[-1].since <= time.monotonic()
        server.refuses = False
        while not any(change.kind == "recovered" for change in told):
            told += await first.changes(1)
    watching.subscribe(late, "old")
    assert [change.kind for change in await late.changes(0)] == ["present", "synced"]
    await watching.stop()


async def test_the_shared_task_runs_in_nobodys_context() -> None:
    WHOSE_LOG.set("the first trigger's")
    server = Server()
    await told(server, "old", watches=1)
    assert server.logs == ["nobody's"]


@given(failures=st.integers(1, 1000))
def test_pauses_are_bounded(failures: int) -> None:
    assert 0 < informer._pause(failures, None) <= 30


def test_pauses_grow_and_no_two_waiters_come_together() -> None:
    drawn = {failures: [informer._pause(failures, None) for _ in range(200)] for failures in (1, 2, 3, 12)}
    assert all(len(set(pauses)) > 150 for pauses in drawn.values())
    middles = [statistics.median(pauses) for pauses in drawn.values()]
    assert middles == sorted(middles)
    assert middles[-1] > 15


def test_a_server_that_asks_for_time_gets_it() -> None:
    assert informer._pause(1, ClusterUnreachable("Too many requests.", retry_after=17)) >= 17
    assert informer._pause(1, GpuError("Something else.")) < 1


def test_what_no_wait_depends_on_is_asked_for_once_a_minute_where_it_is_refused() -> None:
    assert informer._pause(1, PermissionDenied("No."), is_optional=True) == 60
    assert informer._pause(1, ClusterUnreachable("It broke off."), is_optional=True) < 1


async def test_a_collection_that_may_not_be_there_is_no_empty_one() -> None:
    class WithoutKueue(Server):
        async def get(self, path: str, **params: str) -> Any:
            self.lists += 1

    server = WithoutKueue()
    watching = informer._Informer(cast("AsyncApi", server), kueue_workloads("ml"))
    feed = Feed(cast("AsyncApi", server))
    watching.subscribe(feed, "team-a")
    (change,) = await feed.changes(5)
    assert (change.kind, type(change.error)) == ("trouble", ObjectNotFound)
    await watching.stop()
    assert (server.lists, server.watched_from) == (1, [])

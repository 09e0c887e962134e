"""What an informer does with a watch's minutes: bookmarks, ends without news, back-off."""

from __future__ import annotations

import asyncio
import contextvars
import statistics
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.cluster.api import informer
from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.api.informer import Change, Feed
from airflow_gpu_provider.cluster.api.watched import Resource, kueue_workloads, pods
from airflow_gpu_provider.cluster.model.refusals import ObjectNotFound
from airflow_gpu_provider.errors import ClusterUnreachable, CredentialsError, GpuError, PermissionDenied
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from tests.fakes.api_server import ApiServer, Request
from tests.fakes.clients import FakeAsyncApi

PODS = pods("ml")
OLD = f"{PODS.path}/old"
WHOSE_LOG = contextvars.ContextVar("WHOSE_LOG", default="nobody's")


class Heard:
    """A feed of the pod `old`, which is there, and what it is told: what happened, and its version then."""

    def __init__(self, resource: Resource = PODS, api: Callable[[ApiServer], AsyncApi] = FakeAsyncApi) -> None:
        self.server = ApiServer()
        self.first = self.server.put(OLD, {"metadata": {"labels": {POOL_LABEL: "p"}}})["metadata"]["resourceVersion"]
        self.informer = informer._Informer(api(self.server), resource)
        self.feed = self.subscribe()
        self.changes: list[Change] = []

    def subscribe(self) -> Feed:
        feed = Feed(cast("AsyncApi", None))
        self.informer.subscribe(feed, "old")
        return feed

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not is_so():
                self.changes += await self.feed.changes(0.01)

    async def until_watches(self, count: int) -> None:
        await self.until(lambda: len(self.asked("watch")) >= count)

    async def until_told(self, kind: str) -> None:
        await self.until(lambda: any(change.kind == kind for change in self.changes))

    async def over(self) -> list[tuple[str, str]]:
        await self.informer.stop()
        self.changes += await self.feed.changes(0)
        return [(each.kind, str((each.raw.get("metadata") or {}).get("resourceVersion"))) for each in self.changes]

    def asked(self, verb: str) -> list[Request]:
        return [request for request in self.server.requests if request.verb == verb]

    @property
    def watched_from(self) -> list[str]:
        return [request.query["resourceVersion"] for request in self.asked("watch")]


async def test_a_bookmark_moves_on_where_a_watch_is_taken_up_and_is_no_news() -> None:
    heard = Heard()
    await heard.until_watches(1)
    reached = heard.server.put("api/v1/nodes/n1", {"metadata": {}})["metadata"]["resourceVersion"]
    heard.server.send_bookmarks()
    heard.server.end_watches()
    await heard.until_watches(2)
    assert await heard.over() == [("present", heard.first), ("synced", "None")]
    assert heard.watched_from == [heard.first, reached]
    assert {request.query["allowWatchBookmarks"] for request in heard.asked("watch")} == {"true"}
    assert len(heard.asked("list")) == 1


async def test_a_connection_that_breaks_off_is_taken_up_where_it_was_without_a_list() -> None:
    heard = Heard()
    await heard.until_watches(1)
    second = heard.server.patch(OLD, {"metadata": {"annotations": {"mark": "1"}}})["metadata"]["resourceVersion"]
    await heard.until(lambda: len(heard.changes) == 3)
    heard.server.break_watches()
    await heard.until_watches(2)
    heard.server.end_watches()
    await heard.until_watches(3)
    kinds = [
        ("present", heard.first),
        ("synced", "None"),
        ("present", second),
        ("trouble", "None"),
        ("recovered", "None"),
    ]
    assert await heard.over() == kinds
    assert heard.watched_from == [heard.first, second, second]
    assert len(heard.asked("list")) == 1


async def test_a_version_that_is_too_old_is_listed_anew_at_once() -> None:
    heard = Heard()
    await heard.until_watches(1)
    second = heard.server.put("api/v1/nodes/n1", {"metadata": {}})["metadata"]["resourceVersion"]
    heard.server.compact()
    heard.server.end_watches()
    await heard.until_watches(3)
    told = await heard.over()
    assert told == [("present", heard.first), ("synced", "None"), ("synced", "None")], "what did not change is no news"
    assert heard.watched_from == [heard.first, heard.first, second]


async def test_what_a_list_lacks_went_unseen_and_what_a_watch_tells_was_seen_going() -> None:
    seen, unseen = Heard(), Heard()
    await seen.until_watches(1)
    seen.server.remove(OLD)
    await unseen.until_watches(1)
    unseen.server.refuse("watch")
    unseen.server.break_watches()
    await unseen.until_told("trouble")
    unseen.server.remove(OLD)
    unseen.server.compact()
    unseen.server.admit()
    for heard, is_seen in ((seen, True), (unseen, False)):
        await heard.until_told("gone")
        await heard.over()
        assert [change.is_seen for change in heard.changes if change.kind == "gone"] == [is_seen]


async def test_versions_that_are_always_too_old_are_listed_anew_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses, real = list[float](), informer._pause

    def drawn(*args: Any, **kwargs: Any) -> float:
        pauses.append(real(*args, **kwargs))
        return 0.0 if len(pauses) < 3 else 60.0

    monkeypatch.setattr(informer, "_pause", drawn)
    heard = Heard()
    heard.server.refuse("watch", status=410)
    await heard.until(lambda: len(pauses) == 3)
    await heard.over()
    assert sum(pauses) > 0.1 + 0.2 + 0.4, "half of each pause is drawn by chance"
    assert len(heard.asked("list")) == len(heard.asked("watch")) == 4, "the first time is at once"


async def test_a_trouble_that_is_over_is_not_told_to_who_comes_later() -> None:
    """A watch that the server has accepted may be quiet for minutes."""
    before = time.monotonic()
    heard = Heard()
    heard.server.refuse("watch")
    await heard.until_told("trouble")
    (trouble,) = (change for change in heard.changes if change.kind == "trouble")
    assert before <= trouble.since <= time.monotonic()
    assert type(trouble.error) is PermissionDenied
    heard.server.admit()
    await heard.until_told("recovered")
    late = heard.subscribe()
    assert [change.kind for change in await late.changes(0)] == ["present", "synced"]
    await heard.over()


async def test_the_shared_task_runs_in_nobodys_context() -> None:
    logs: list[str] = []

    class Api(FakeAsyncApi):
        async def get(self, path: str, **params: str) -> Any:
            logs.append(WHOSE_LOG.get())
            return await super().get(path, **params)

    WHOSE_LOG.set("the first trigger's")
    heard = Heard(api=Api)
    await heard.until_watches(1)
    await heard.over()
    assert logs == ["nobody's"]


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


# -- Kueue's API, whose versions come and go ------------------------------------------------------------------------

KUEUE, GROUP = kueue_workloads("ml"), "kueue.x-k8s.io"


class HeardOfKueue(Heard):
    """What is told of a Workload of the queue `old`, which is there in each version that the server has."""

    def __init__(self, *versions: str) -> None:
        super().__init__(KUEUE)
        self.serve(*versions)

    def serve(self, *versions: str) -> None:
        self.server.serve(GROUP, *versions)
        for version in versions:
            path = KUEUE.path.format(version=version)
            self.server.put(f"{path}/job-train", {"metadata": {"uid": "w1"}, "spec": {"queueName": "old"}})

    def versions(self, verb: str) -> list[str]:
        return [path.split("/")[2] for _, resource, path, _ in self.asked(verb) if resource == "workloads"]


@pytest.mark.parametrize(
    ("served", "read"),
    [(["v1beta1"], "v1beta1"), (["v1beta2"], "v1beta2"), (["v1alpha1", "v1beta1", "v1beta2"], "v1beta2")],
)
async def test_kueue_is_read_in_the_best_version_that_the_cluster_serves(served: list[str], read: str) -> None:
    heard = HeardOfKueue(*served)
    await heard.until_watches(1)
    heard.server.end_watches()
    await heard.until_watches(2)
    await heard.over()
    assert [change.kind for change in heard.changes] == ["present", "synced"]
    assert (heard.versions("list"), heard.versions("watch")) == ([read], [read, read])
    assert [path for _, _, path, _ in heard.asked("get")] == [f"apis/{GROUP}"]


async def test_kueue_is_upgraded_while_something_waits_in_its_queue() -> None:
    heard = HeardOfKueue("v1beta1")
    await heard.until_watches(1)
    heard.serve("v1beta2")
    heard.server.end_watches()
    await heard.until(lambda: heard.versions("watch")[-1] == "v1beta2")
    await heard.over()
    assert heard.versions("list") == ["v1beta1", "v1beta2"]
    assert {change.kind for change in heard.changes} == {"present", "synced"}


@pytest.mark.parametrize(("served", "tried"), [("v1beta2", ["v1beta2"]), ("v1beta1", ["v1beta2", "v1beta1"])])
async def test_kueue_s_versions_are_tried_where_nobody_may_ask_for_them(served: str, tried: list[str]) -> None:
    heard = HeardOfKueue(served)
    heard.server.refuse(path=f"apis/{GROUP}")
    await heard.until_watches(1)
    await heard.over()
    assert (heard.versions("list"), heard.versions("watch")) == (tried, [served])


@pytest.mark.parametrize("served", [[], ["v1alpha1"]])
async def test_a_collection_that_may_not_be_there_is_no_empty_one(served: list[str]) -> None:
    heard = HeardOfKueue(*served)
    await heard.until_told("trouble")
    await heard.over()
    (change,) = heard.changes
    assert (change.kind, type(change.error)) == ("trouble", ObjectNotFound)
    assert f"apis/{GROUP}/v1beta2|v1beta1/namespaces/ml/workloads" in str(change.error)
    assert (heard.asked("list"), heard.watched_from) == ([], [])


def test_credentials_that_are_refused_are_told_of_once_and_not_for_each_watch() -> None:
    refused = [CredentialsError(f"The API server does not accept the credentials (get {what}).") for what in ("a", "b")]
    others = [PermissionDenied("No nodes."), ClusterUnreachable("No answer.")]
    assert informer.troubles_in_words([refused[0], *others, refused[1]]) == [
        "PermissionDenied: No nodes.",
        "CredentialsError: The API server does not accept the credentials (get a).",
        "the API server does not answer; the wait continues",
    ]

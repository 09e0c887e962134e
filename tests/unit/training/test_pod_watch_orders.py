"""What a pod's watch concludes, whatever order its cluster's events, outages and expiries come in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_gpu_provider.cluster.api import informer, watched
from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.errors import LOST, EndUnknown, PodPreempted
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.wait.records import Narrator, Progress
from airflow_gpu_provider.training.watch import surroundings, view
from airflow_gpu_provider.training.watch import watch_loop as pod_watch
from airflow_gpu_provider.training.watch.pod_view import OnePod
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeAsyncApi
from tests.unit.training.test_pod_placement import a_pool
from tests.unit.training.test_pod_wait import WAIT
from tests.unit.training.test_pod_watch import raw_node, raw_pod

POOL = a_pool()
POD, NODE = "api/v1/namespaces/ml/pods/train-x", "api/v1/nodes/n1"


def remove(server: ApiServer, path: str) -> None:
    if server.has(path):
        server.remove(path)


def label(server: ApiServer, path: str, value: str | None) -> None:
    if server.has(path):
        server.patch(path, {"metadata": {"labels": {POOL_LABEL: value}}})


STEPS: dict[str, Callable[[ApiServer], None]] = {
    "pod deleted": lambda server: remove(server, POD),
    "pod's label off": lambda server: label(server, POD, None),
    "pod's label on": lambda server: label(server, POD, POOL.name),
    "node deleted": lambda server: remove(server, NODE),
    "node's label off": lambda server: label(server, NODE, None),
    "node's label on": lambda server: label(server, NODE, POOL.name),
    "watches break": ApiServer.break_watches,
    "versions are forgotten": ApiServer.compact,
    "server goes away": ApiServer.go_away,
    "server is back": ApiServer.come_back,
    "watches are refused": lambda server: server.refuse("watch"),
    "lists are refused": lambda server: server.refuse("list"),
    "nothing is refused": ApiServer.admit,
}
DONE_WITHIN = 60.0  # seconds, on a machine under any load


@pytest.fixture(autouse=True, scope="module")
def pauses_of_milliseconds() -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(informer, "_pause", lambda failures, trouble, **_: 0.001)
        patched.setattr(view, "LONGEST", 0.01)
        patched.setattr(surroundings, "AGAIN", timedelta(milliseconds=5))
        yield


def running() -> dict[str, Any]:
    return {"name": "base", "state": {"running": {"startedAt": "2026-01-01T02:31:00Z"}}, "image": "i"}


def ended() -> dict[str, Any]:
    times = {"startedAt": "2026-01-01T02:31:00Z", "finishedAt": "2026-01-01T02:41:00Z"}
    return {"name": "base", "state": {"terminated": {"exitCode": 0, **times}}, "image": "i"}


def a_pod(container: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    pod = raw_pod(scheduled=True)
    pod["metadata"]["labels"] = labels
    pod["status"] |= {"phase": "Running", "containerStatuses": [container]}
    return pod


class Night:
    """A running pod on its node, watched as its task watches it; `lines` is the task's log."""

    def __init__(self) -> None:
        self.server = ApiServer()
        self.lines: list[str] = []
        self._others: list[asyncio.Task[None]] = []
        node = raw_node()
        node["metadata"]["labels"] = {POOL_LABEL: POOL.name}
        self.server.put(NODE, node)

    def start_pod(self) -> None:
        self.server.put(POD, a_pod(running(), {POOL_LABEL: POOL.name}))

    def end_pod(self) -> None:
        labels = self.server.read(POD)["metadata"].get("labels", {})
        self.server.put(POD, a_pod(ended(), labels))

    def watch(self) -> None:
        now = datetime.now(UTC)
        wait = replace(WAIT, deadline=now + timedelta(hours=5), started=now)
        narrator = Narrator(self.lines.append, started=now)
        self._watch = asyncio.create_task(
            pod_watch.watch(OnePod(wait), POOL, owner="o", narrator=narrator, open_access=None)
        )

    async def another_waits(self) -> None:
        """Have the watch of pods up, and kept up, by somebody who waits for another pod."""
        is_synced = asyncio.Event()

        async def wait() -> None:
            wants = {watched.pods("ml"): "another"}
            async with informer.watching(POOL.cluster_identity, cast("Any", None), wants) as feed:
                while True:
                    if any(change.kind == "synced" for change in await feed.changes(60)):
                        is_synced.set()

        self._others.append(asyncio.create_task(wait()))
        await is_synced.wait()

    async def is_under_way(self) -> None:
        """Wait until the container is known to run, and pods, their events and nodes are watched."""
        await self.says("started on node n1")
        await self._goes_on_until(lambda: self._asked("watch") >= 3)

    async def says(self, text: str) -> None:
        await self._goes_on_until(lambda: any(text in line for line in self.lines))

    async def goes_on(self) -> None:
        """Hold that nothing ends the wait while everything that is asked for again was."""
        before = self._asked("get")
        await self._goes_on_until(lambda: self._asked("get") >= before + 3)

    def _asked(self, verb: str) -> int:
        return sum(request.verb == verb for request in self.server.requests)

    async def _goes_on_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            assert not self._watch.done(), self._watch
            await asyncio.sleep(0.001)

    async def end(self) -> Progress:
        return await self._watch

    async def over(self) -> None:
        for task in (self._watch, *self._others):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def run(what: Callable[[Night], Awaitable[None]]) -> None:
    async def go() -> None:
        night = Night()

        async def opened(open_access: Any) -> AsyncApi:
            return FakeAsyncApi(night.server)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(informer, "_open", opened)
            try:
                async with asyncio.timeout(DONE_WITHIN):
                    await what(night)
            finally:
                await night.over()

    asyncio.run(go())


def test_a_pod_that_went_before_its_watch_ever_showed_it_is_told_as_gone() -> None:
    async def what(night: Night) -> None:
        server = night.server
        await night.another_waits()
        server.refuse("watch")
        server.break_watches()
        night.start_pod()
        night.watch()
        await night.says("started on node n1")  # the watch is down: it was found by asking
        server.remove(POD)
        server.compact()
        server.admit()
        assert isinstance((await night.end()).error, EndUnknown), "nobody saw it go"

    run(what)


def test_a_pod_that_is_seen_going_is_preempted() -> None:
    async def what(night: Night) -> None:
        night.start_pod()
        night.watch()
        await night.is_under_way()
        night.server.remove(POD)
        assert isinstance((await night.end()).error, PodPreempted)

    run(what)


def test_a_label_that_is_taken_off_the_node_ends_no_training() -> None:
    async def what(night: Night) -> None:
        night.start_pod()
        night.watch()
        await night.is_under_way()
        label(night.server, NODE, None)
        await night.says("node n1 has lost a label of its pool")
        await night.goes_on()
        night.end_pod()
        assert (await night.end()).done

    run(what)


def test_a_node_that_leaves_after_it_lost_its_label_is_noticed() -> None:
    async def what(night: Night) -> None:
        night.start_pod()
        night.watch()
        await night.is_under_way()
        label(night.server, NODE, None)
        await night.says("node n1 has lost a label of its pool")
        night.server.remove(NODE)
        error = (await night.end()).error
        assert isinstance(error, PodPreempted)
        assert "left the cluster" in str(error)

    run(what)


def test_a_node_that_leaves_under_the_pod_ends_the_wait_at_once() -> None:
    async def what(night: Night) -> None:
        night.start_pod()
        night.watch()
        await night.is_under_way()
        night.server.remove(NODE)
        assert "left the cluster" in str((await night.end()).error)

    run(what)


def test_a_permission_that_only_explains_is_not_needed() -> None:
    async def what(night: Night) -> None:
        night.start_pod()
        night.server.refuse(path="api/v1/namespaces/ml/events")
        night.watch()
        await night.says("started on node n1")
        await night.says("denies permission to list events")
        night.end_pod()
        assert (await night.end()).done

    run(what)


def test_a_label_that_is_taken_off_the_pod_ends_no_training() -> None:
    async def what(night: Night) -> None:
        night.start_pod()
        night.watch()
        await night.is_under_way()
        label(night.server, POD, None)
        await night.says(f"pod train-x has lost its label {POOL_LABEL}")
        await night.goes_on()
        night.end_pod()
        assert (await night.end()).done

    run(what)


def test_a_refused_watch_ends_no_training_whose_pod_may_be_read() -> None:
    async def what(night: Night) -> None:
        night.start_pod()
        night.watch()
        await night.is_under_way()
        night.server.refuse("watch")
        night.server.refuse("list")
        night.server.break_watches()
        await night.says("denies permission to watch")
        await night.goes_on()
        night.end_pod()
        assert (await night.end()).done

    run(what)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 20)), max_size=12))
def test_whatever_comes_in_whatever_order_the_end_is_told_and_nothing_else(steps: list[tuple[str, int]]) -> None:
    async def what(night: Night) -> None:
        server = night.server
        night.start_pod()
        night.watch()
        for step, turns in steps:
            STEPS[step](server)
            for _ in range(turns):
                await asyncio.sleep(0)
        server.admit()
        server.come_back()
        if server.has(POD) and server.has(NODE):
            night.end_pod()
            assert (await night.end()).done
        else:
            remove(server, POD)  # as Kubernetes does a minute after its node is gone
            assert isinstance((await night.end()).error, LOST)

    run(what)

"""One reconcile loop for all who wait for a pool: what each of them hears, and when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider.errors import CloudError, ClusterUnreachable, DemandLockBusy, GpuError
from airflow_gpu_provider.scaling.decide.scarce_capacity import DemandChange
from airflow_gpu_provider.scaling.wait import pool_loop
from airflow_gpu_provider.scaling.wait.pool_loop import Subscription, run_wait
from airflow_gpu_provider.scaling.wait.records import Progress
from benchmarks.waiting_runs import WaitingRuns
from tests.unit.scaling.pools import lease, pool

POOL, OWNER = pool(), "airflow/nightly"
WITHIN = 60.0  # seconds, however loaded the machine is
NAME = contextvars.ContextVar("NAME", default="nobody's")


class Played:
    """Stands for the pool's Reconciler: what `plays` says happens at each call, and is written down."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: Exception | None = None
        self.platform: Any = SimpleNamespace(cluster_access=None)
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_held = threading.Event()
        self.finished = 0
        self.contexts: set[str] = set()

    def reconcile(self, *, admits: bool = False) -> Any:
        return self._answer("reconcile")

    def amend(self, *asks: DemandChange) -> Any:
        return self._answer(f"amend: {', '.join(ask.why for ask in asks)}")

    def _answer(self, call: str) -> Any:
        self.calls.append(call)
        self.contexts.add(NAME.get())
        if not self.may_answer.is_set():
            self.is_held.set()
            self.may_answer.wait(WITHIN)
        self.finished += 1
        if self.error:
            raise self.error
        return SimpleNamespace(snapshot=SimpleNamespace(now=datetime.now(UTC)), log_lines=(call,))


class Feed:
    """Stands for the feed of node changes: `report` is called when a node changes."""

    def __init__(self) -> None:
        self.open = 0
        self.report: Callable[[], None] = lambda: None

    async def __call__(self, pool: Any, access: Any, report: Callable[[], None]) -> None:
        self.open += 1
        self.report = report
        try:
            await asyncio.Event().wait()
        finally:
            self.open -= 1


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    stand_in = Played()
    monkeypatch.setattr(pool_loop, "open_pool", lambda *_, **__: stand_in)
    monkeypatch.setattr(pool_loop, "SOONEST", 0.01)
    return stand_in


@pytest.fixture(autouse=True)
def feed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    stand_in = Feed()
    monkeypatch.setattr(pool_loop, "report_changes", stand_in)
    yield stand_in
    assert not stand_in.open


class Waits:
    """A wait that ends when it is told to, and asks for something once."""

    def __init__(self, *, deadline_in: float = 600.0, ask: DemandChange | None = None) -> None:
        self.started = datetime.now(UTC)
        self.deadline = self.started + timedelta(seconds=deadline_in)
        self.is_over = False
        self.said: list[str] = []
        self.steps = 0
        self._ask = ask

    def step(self, snapshot: Any) -> Progress:
        self.steps += 1
        ask, self._ask = self._ask, None
        return Progress(done=self.is_over, ask=ask)

    async def run(self) -> Progress:
        return await run_wait(self, POOL, OWNER, report=self.said.append, every=0.01)


@asynccontextmanager
async def subscribed(subscription: Subscription) -> AsyncIterator[None]:
    pool_loop.subscribe(subscription, POOL, OWNER)
    try:
        yield
    finally:
        await pool_loop.leave(subscription, POOL, OWNER)


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_who_is_cancelled_leaves_the_others_their_keeper(played: Played) -> None:
    waits = [Waits() for _ in range(3)]
    running = [asyncio.create_task(wait.run()) for wait in waits]
    await eventually(lambda: all(wait.steps for wait in waits))
    played.may_answer.clear()
    await eventually(played.is_held.is_set)
    running[0].cancel()
    await asyncio.wait([running[0]])
    played.may_answer.set()
    steps = waits[0].steps
    heard = [wait.steps for wait in waits[1:]]
    await eventually(lambda: all(wait.steps > so_far + 1 for wait, so_far in zip(waits[1:], heard, strict=True)))
    assert waits[0].steps == steps
    assert running[0].cancelled()
    for wait in waits[1:]:
        wait.is_over = True
    async with asyncio.timeout(WITHIN):
        assert all(progress.done for progress in await asyncio.gather(*running[1:]))


async def test_what_some_ask_for_is_done_once_and_told_to_all(played: Played) -> None:
    one, other = (DemandChange(before=lease(run), after=lease(run), why=f"{run} wants more time") for run in "ab")
    waits = [Waits(), Waits(ask=one), Waits(ask=other)]
    running = [asyncio.create_task(wait.run()) for wait in waits]
    what = "amend: a wants more time, b wants more time"
    await eventually(lambda: all(any(what in line for line in wait.said) for wait in waits))
    assert [call for call in played.calls if call != "reconcile"] == [what]
    assert [any(line.endswith(f"] {one.why}") for line in wait.said) for wait in waits] == [False, True, False]
    for wait in waits:
        wait.is_over = True
    await asyncio.gather(*running)


async def test_an_ask_that_fails_is_repeated_and_its_errors_are_its_own(played: Played) -> None:
    failures = iter([CloudError("Throttled."), CloudError("Throttled again.")])
    asking, other = Subscription(lambda: 0.01), Subscription(lambda: 0.01)
    heard: list[Any] = []

    def write(reconciler: Any) -> Any:
        if error := next(failures, None):
            raise error
        return reconciler._answer("release")

    async def listen() -> None:
        while True:
            heard.append((await other.next()).log_lines)

    asking.ask(write)
    async with subscribed(other), subscribed(asking), asyncio.timeout(WITHIN):
        listening = asyncio.create_task(listen())
        for _ in range(2):
            with pytest.raises(CloudError):
                await asking.next()
        assert (await asking.next()).log_lines == ("release",)
        assert (await asking.next()).log_lines == ("reconcile",)
        await eventually(lambda: {("reconcile",), ("release",)} <= set(heard))
        assert not listening.done()
        listening.cancel()


async def test_each_judges_an_error_by_its_own_deadline(played: Played) -> None:
    played.error = CloudError("Throttled.")
    early, late = Waits(deadline_in=0.2), Waits()
    running = [asyncio.create_task(wait.run()) for wait in (early, late)]
    async with asyncio.timeout(WITHIN):
        with pytest.raises(CloudError):
            await running[0]
    assert any("Throttled" in line for line in late.said)
    assert not running[1].done()
    late.is_over, played.error = True, None
    assert (await running[1]).done


async def test_an_error_that_is_a_bug_is_everybody_s(played: Played) -> None:
    played.error = RuntimeError("A bug.")
    results = await asyncio.gather(*(Waits().run() for _ in range(2)), return_exceptions=True)
    assert [type(result) for result in results] == [RuntimeError, RuntimeError]


async def test_the_last_to_leave_ends_the_task_and_its_feed_but_no_reconcile(played: Played, feed: Feed) -> None:
    waits = [Waits(), Waits()]
    running = [asyncio.create_task(wait.run()) for wait in waits]
    await eventually(lambda: feed.open == 1 and all(wait.steps for wait in waits))
    played.may_answer.clear()
    await eventually(played.is_held.is_set)
    for each in running:
        each.cancel()
    await asyncio.wait(running)
    assert feed.open == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}
    begun = len(played.calls)
    played.may_answer.set()
    await eventually(lambda: played.finished == begun)
    assert len(played.calls) == begun


@pytest.mark.parametrize("turns", range(6))
async def test_the_last_may_leave_in_the_moment_of_a_change(played: Played, feed: Feed, turns: int) -> None:
    last = Subscription(lambda: 3600.0)
    async with asyncio.timeout(WITHIN):
        async with subscribed(last):
            await last.next()
            await eventually(lambda: feed.open == 1)
            feed.report()
            for _ in range(turns):
                await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_look_that_began_before_somebody_came_tells_it_nothing(played: Played) -> None:
    played.may_answer.clear()
    first, second = Subscription(lambda: 0.01), Subscription(lambda: 0.01)
    async with subscribed(first), asyncio.timeout(WITHIN):
        await eventually(lambda: len(played.calls) == 1)
        async with subscribed(second):
            played.may_answer.set()
            await first.next()
            await second.next()
            assert len(played.calls) > 1


async def test_the_most_impatient_sets_the_pace_and_a_change_of_nodes_is_seen_at_once(
    played: Played, feed: Feed
) -> None:
    patient, changing = Subscription(lambda: 3600.0, is_eager=False), Subscription(lambda: 3600.0)
    async with subscribed(patient), asyncio.timeout(WITHIN):
        await patient.next()
        await eventually(lambda: feed.open == 1)
        async with subscribed(Subscription(lambda: 0.01)):
            for _ in range(3):
                await patient.next()
        feed.report()
        (of_the_pool,) = pool_loop._pool_loops[asyncio.get_running_loop()].values()
        assert not of_the_pool._is_due
        async with subscribed(changing):
            await changing.next()
            count = len(played.calls)
            feed.report()
            await changing.next()
            assert len(played.calls) == count + 1


@pytest.mark.parametrize("error", [ClusterUnreachable("It is away."), DemandLockBusy("Another has it.")])
async def test_what_all_would_meet_is_met_once_a_look_and_told_to_all(played: Played, error: GpuError) -> None:
    tried: list[str] = []

    def write(reconciler: Any) -> Any:
        tried.append("release")
        raise error

    asking = [Subscription(lambda: 3600.0) for _ in range(20)]
    plain = Subscription(lambda: 3600.0)
    for each in asking:
        each.ask(write)
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(WITHIN):
        for each in (*asking, plain):
            await stack.enter_async_context(subscribed(each))
        for each in (*asking, plain):
            with pytest.raises(type(error)):
                await each.next()
        assert tried == ["release"]
        assert played.calls == []


async def test_it_logs_into_nobody_s_task(played: Played) -> None:
    NAME.set("a trigger's")
    wait = Waits()
    wait.is_over = True
    await wait.run()
    assert played.contexts == {"nobody's"}


async def test_fifty_runs_ask_no_more_of_cluster_and_cloud_than_one() -> None:
    one = await WaitingRuns(1).requests_in_looks(10)
    fifty = await WaitingRuns(50).requests_in_looks(10)
    assert one["cloud observe"] >= 10, one
    assert fifty.total() <= 1.2 * one.total(), Counter(fifty) - Counter(one)


async def test_pools_are_checked_at_the_same_moments() -> None:
    """So that what they read of one cluster is read once: whenever they began, their long pauses end together."""
    dues = set()
    for last in (100.0, 103.2, 107.4, 112.4):
        subscription = Subscription(lambda: 15.0, every=15.0)
        subscription.notify(SimpleNamespace())
        for _ in range(3):  # each check takes a moment
            due = subscription.due(last)
            assert 7.5 <= due - last <= 22.5
            last = due + 0.4
        dues.add(due)
    assert len(dues) == 1


async def test_short_pauses_are_as_long_as_asked() -> None:
    subscription = Subscription(lambda: 2.0, every=15.0)
    subscription.notify(SimpleNamespace())
    assert subscription.due(103.2) == 105.2

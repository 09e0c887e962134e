"""The loop around a wait: what it says, what it sits out, and how often it looks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider.errors import (
    CloudError,
    ConnectionNotFound,
    CredentialsError,
    DemandLockBusy,
    GpuError,
    NodesNotReady,
    PermissionDenied,
    PoolDrift,
)
from airflow_gpu_provider.scaling.wait import pool_loop
from airflow_gpu_provider.scaling.wait.pool_loop import run_wait
from airflow_gpu_provider.scaling.wait.records import Narrator, Progress
from tests.unit.scaling.pools import pool

START = datetime(2026, 1, 1, tzinfo=UTC)


POOL = pool()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hears_nothing(*_: Any) -> None:
        """Stands for the feed of node changes, which has tests of its own."""

    monkeypatch.setattr(pool_loop, "SOONEST", 0.0)
    monkeypatch.setattr(pool_loop, "report_changes", hears_nothing)


class Script:
    """A wait and its pool's Reconciler, played from a list."""

    def __init__(
        self, *steps: Progress | Exception, deadline_in: float = 60, waited: float = 0, ahead: float = 0
    ) -> None:
        self._steps: Iterator[Progress | Exception] = iter(steps)
        self.ahead = timedelta(seconds=ahead)
        self.started = self.now() - timedelta(seconds=waited)
        self.deadline = self.now() + timedelta(seconds=deadline_in)
        self.looks = 0
        self.said: list[str] = []
        self.platform = SimpleNamespace(cluster_access=None)

    def reconcile(self, *, admits: bool = False) -> Any:
        self.looks += 1
        step = next(self._steps)
        if isinstance(step, Exception):
            raise step
        return SimpleNamespace(snapshot=SimpleNamespace(now=self.now(), progress=step), log_lines=())

    def now(self) -> datetime:
        """Return the time in the cluster."""
        return datetime.now(UTC) + self.ahead

    def step(self, snapshot: Any) -> Progress:
        return snapshot.progress

    def run(self, every: float = 15.0) -> Progress:
        as_reconciler: Any = self
        return asyncio.run(
            run_wait(self, POOL, "me/dag", report=self.said.append, every=every, reconciler=as_reconciler)
        )


def test_each_line_is_said_once_while_it_stays_true() -> None:
    booting, ready = Progress(lines=("booting",)), Progress(lines=("ready",))
    script = Script(booting, booting, ready, booting, Progress(done=True, result={"nodes": 1}))
    assert script.run().result == {"nodes": 1}
    assert [line.split("] ")[1] for line in script.said] == ["booting", "ready", "booting"]


def test_what_passes_is_sat_out_until_the_deadline() -> None:
    script = Script(CloudError("Throttled."), Progress(done=True))
    assert script.run().done
    assert "CloudError: Throttled. Trying again until " in script.said[0]
    with pytest.raises(CloudError):
        Script(CloudError("Throttled."), deadline_in=-1).run()


def test_a_lock_that_another_has_is_sat_out_without_a_word_of_its_own() -> None:
    booting, done = Progress(lines=("booting",)), Progress(lines=("booting",), done=True)
    script = Script(booting, DemandLockBusy("Another has it."), done)
    assert script.run().done
    assert [line.split("] ")[1] for line in script.said] == ["booting"]


@pytest.mark.parametrize("ahead", [-600, 600])
def test_the_deadline_is_the_cluster_s_and_not_this_machine_s(ahead: float) -> None:
    away = CloudError("Throttled.")
    script = Script(Progress(), away, away, Progress(done=True, lines=("there",)), ahead=ahead)
    assert script.run().done
    told = re.fullmatch(r"\[(\d+) s\] there", script.said[-1])
    assert told is not None
    assert int(told[1]) < 60, "this machine's clock is ten minutes off"
    with pytest.raises(CloudError):
        Script(Progress(), away, deadline_in=-1, ahead=ahead).run()


@pytest.mark.parametrize("cls", [PermissionDenied, CredentialsError, ConnectionNotFound])
def test_a_refusal_that_may_pass_is_sat_out(cls: type[GpuError]) -> None:
    assert Script(Progress(), cls("No."), cls("No."), Progress(done=True)).run().done


@pytest.mark.parametrize(("between", "goes_on"), [(Progress(), True), (None, False)])
def test_a_refusal_that_lasts_ends_the_wait_and_a_success_in_between_starts_it_anew(
    monkeypatch: pytest.MonkeyPatch, between: Progress | None, goes_on: bool
) -> None:
    denied, passed = PermissionDenied("No."), iter(range(0, 10_000, 200))

    class Later(pool_loop._ClusterTime):
        """Each look at the clock is 200 seconds after the one before."""

        def now(self) -> datetime:
            return START + timedelta(seconds=next(passed))

    monkeypatch.setattr(pool_loop, "_ClusterTime", Later)
    script = Script(denied, *([between] if between else []), denied, Progress(done=True), deadline_in=1e9)
    if goes_on:
        assert script.run().done
    else:
        with pytest.raises(PermissionDenied):
            script.run()


def test_the_wait_s_own_error_is_not_judged() -> None:
    with pytest.raises(CloudError, match="the wait's own"):
        Script(Progress(error=CloudError("the wait's own"))).run()


@pytest.mark.parametrize("error", [PoolDrift("Changed."), RuntimeError("A bug.")])
def test_what_does_not_pass_ends_the_wait_at_once(error: Exception) -> None:
    script = Script(error)
    with pytest.raises(type(error)):
        script.run()
    assert script.looks == 1


def test_the_wait_s_own_error_ends_it() -> None:
    with pytest.raises(NodesNotReady):
        Script(Progress(), Progress(error=NodesNotReady("Late."))).run()


@pytest.mark.parametrize(("waited", "pause"), [(-600, 2), (0, 2), (40, 5), (3600, 15)])
def test_looks_soon_at_first_and_seldom_later(monkeypatch: pytest.MonkeyPatch, waited: float, pause: float) -> None:
    monkeypatch.setattr(pool_loop, "SOONEST", 2.0)
    assert pool_loop.pause_after(timedelta(seconds=waited), every=15.0) == pause


def test_the_narrator_stamps_the_time_since_the_start() -> None:
    said: list[str] = []
    now = datetime.now(UTC)
    Narrator(said.append, started=now - timedelta(seconds=200)).log(now, "node joined", "node joined")
    assert said == ["[3 min 20 s] node joined"]


def test_a_narrator_that_goes_on_tells_what_is_so_as_what_was() -> None:
    said: list[str] = []
    now = datetime.now(UTC)
    narrator = Narrator(said.append, started=now, is_resumed=True)
    narrator.log(now, "container base started")
    narrator.log(now, "container base started", "the pod is being deleted")
    assert said == ["[0 s] so far: container base started", "[0 s] the pod is being deleted"]

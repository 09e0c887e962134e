"""Which lines of a triggerer have reached the tasks' logs, by what its supervisor had to read before it answered."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.model.pod_log import POSITIONS
from airflow_gpu_provider.errors import PermissionDenied
from airflow_gpu_provider.training.log import followed_log as pod_log
from airflow_gpu_provider.training.log import trigger_log
from airflow_gpu_provider.training.log.followed_log import PodLogs
from airflow_gpu_provider.training.log.trigger_log import SupervisorLog
from tests.unit.training.test_pod_log import running
from tests.unit.training.test_pod_wait import WAIT


class Supervisor:
    """Reads 4 KiB of lines each time that it looks, and answers one question; in either order."""

    def __init__(self, *, answers_first: bool) -> None:
        self.unread = 0
        self._answers_first = answers_first
        self._answered = 0

    def gets(self, text: str) -> None:
        self.unread += len(text.encode()) + 300

    async def ask(self) -> None:
        self._answered += 1
        await asyncio.sleep(0)
        if self._answers_first and self._answered == 1:
            return
        self.unread = max(0, self.unread - 4096)


@given(st.lists(st.text(alphabet="abc", max_size=300), max_size=300), st.booleans(), st.integers(1, 3))
def test_what_is_said_to_be_read_is_read(lines: list[str], answers_first: bool, waiters: int) -> None:
    async def scenario() -> None:
        supervisor = Supervisor(answers_first=answers_first)
        log = SupervisorLog(supervisor.ask)
        for line in lines:
            supervisor.gets(line)
            log.wrote(line)
        assert all(await asyncio.gather(*(log.until_read(log.written, within=60) for _ in range(waiters))))
        assert supervisor.unread == 0

    asyncio.run(scenario())


def test_supervisor_that_stands_still_has_read_nothing() -> None:
    async def scenario() -> None:
        log = SupervisorLog(asyncio.Event().wait)  # type: ignore[arg-type]
        log.wrote("line")
        assert not await log.until_read(log.written, within=0.05)
        assert log.read == 0

    asyncio.run(scenario())


class Api:
    """A container's log in two parts, of which the second comes when the first is read; and the pod's annotations."""

    def __init__(self, *parts: list[bytes], between: Any) -> None:
        self._parts = parts
        self._between = between
        self.saved: asyncio.Queue[str] = asyncio.Queue()

    async def follow(self, path: str, **_: Any) -> Any:
        for part in self._parts:
            yield part
            await self._between()

    async def annotate(self, path: str, *, annotations: Any, **_: Any) -> bool:
        await self.saved.put(annotations[POSITIONS])
        return True


class Refusing(AsyncApi):
    """An API server that refuses to patch pods."""

    def __init__(self) -> None: ...

    async def annotate(self, path: str, **_: Any) -> bool:
        raise PermissionDenied("User cannot patch pods.", "Grant it.")


async def test_worker_goes_on_where_the_lines_are_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor stands still after the first part: the worker reads the second one again."""
    monkeypatch.setattr(trigger_log, "READ_WITHIN", 0.05)
    for pause in ("SAVE_EVERY", "_OUTLIVED"):
        monkeypatch.setattr(trigger_log, pause, 0.0)
    stands_still = asyncio.Event()
    answered = asyncio.Event()

    async def ask() -> None:
        if stands_still.is_set():
            await asyncio.Event().wait()

    log = SupervisorLog(ask)
    for module in (pod_log, trigger_log):
        monkeypatch.setattr(module, "supervisor_log", lambda: log)

    async def between() -> None:
        if not stands_still.is_set():
            while "1767225610100000000" not in await api.saved.get():
                pass
            stands_still.set()
        else:
            answered.set()
            await asyncio.Event().wait()

    first = [b"2026-01-01T00:00:10.000000000Z one", b"2026-01-01T00:00:10.100000000Z two"]
    second = [b"2026-01-01T00:00:20.000000000Z three"]
    said: list[str] = []
    api = Api(first, second, between=between)
    wanted = {"containers": ["base"], "with_name": False}
    write = lambda level, text, *words: said.append(text % words)  # noqa: E731
    async with PodLogs(cast("AsyncApi", api), WAIT, wanted, write) as logs:
        logs.follow(*running(1))
        await asyncio.wait_for(answered.wait(), timeout=60)
        rest = await logs.safe_rest()
        whole = logs.rest()
    assert said == ["one", "two", "three"]
    assert rest["may_repeat"]
    assert rest["positions"]["base"][2] == 1767225610_100_000_000
    assert whole["positions"]["base"][2] == 1767225620_000_000_000


async def test_lines_are_proved_safe_where_the_annotation_may_not_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("SAVE_EVERY", "_OUTLIVED"):
        monkeypatch.setattr(trigger_log, pause, 0.0)
    reached: dict[str, Any] = {"base": ["0", False, 1]}
    said: list[str] = []
    saver = trigger_log.PositionSaver(
        Refusing(), "api/v1/namespaces/ml/pods/train", "uid", lambda: reached, said.append
    )
    async with asyncio.timeout(60):
        while saver.safe != reached:
            saver.note()
            await asyncio.sleep(0)
        reached = {"base": ["0", False, 2]}
        while saver.safe != reached:
            saver.note()
            await asyncio.sleep(0)
    await saver.stop()
    assert len(said) == 1


def test_questions_cost_nothing_where_no_supervisor_is() -> None:
    async def scenario() -> None:
        log = trigger_log.supervisor_log()
        log.wrote("line")
        assert await log.until_read(log.written, within=1)

    asyncio.run(scenario())

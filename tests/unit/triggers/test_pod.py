"""GpuPodTrigger beside its wait: what it leaves when its event is sent."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from airflow_gpu_provider.cluster.api import informer
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.errors import CredentialsError
from airflow_gpu_provider.scaling.wait.records import Progress
from airflow_gpu_provider.scaling.wait.retry import Setbacks
from airflow_gpu_provider.training.log.trigger_log import KeptLines
from airflow_gpu_provider.training.wait.attempt_wait import AttemptWait, WaitOutcome
from airflow_gpu_provider.triggers.pod import GpuPodTrigger
from airflow_gpu_provider.triggers.record import Recorded
from tests.unit.training.test_pod_placement import a_pool
from tests.unit.training.test_pod_wait import WAIT


class Quick(GpuPodTrigger):
    """Its pod has ended as soon as the cluster is reached."""

    async def _outcome(self, wait: AttemptWait) -> WaitOutcome:
        self._api = await self._connection.enter_async_context(self._connected())
        return WaitOutcome.of_progress(wait, Progress(done=True, result={}))

    def _connected(self) -> AbstractAsyncContextManager[AsyncApi]:
        return informer.connected("a cluster", lambda: ClusterAccess(server="http://127.0.0.1:1"))


class Refused(GpuPodTrigger):
    """Its connection is refused once, and then its pod has ended."""

    answers: ClassVar[list[Any]] = [CredentialsError("Unauthorized.", "Check the connection."), Progress(done=True)]

    async def _watch(self, *_: Any) -> Progress:
        answer = self.answers.pop(0)
        if isinstance(answer, CredentialsError):
            raise answer
        return cast("Progress", answer)


def test_refused_credentials_that_the_wait_survives_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Setbacks, "pause", 0.0)
    trigger = Refused(
        {"version": 1, "pool": a_pool().serialize(), "kind": "pod", "wait": WAIT.to_record(), "deferred_at": 0.0}
    )
    until = datetime.now(UTC) + timedelta(hours=1)
    logged: list[tuple[Any, ...]] = []
    trigger._kept = KeptLines(lambda *line: logged.append(line))
    asyncio.run(trigger._outcome(replace(WAIT, deadline=until)))
    ((level, *said),) = [line for line in logged if "The wait continues" in str(line)]
    assert level == logging.WARNING
    assert "CredentialsError: Unauthorized. Check the connection." in str(said)


def test_connection_is_closed_before_the_event_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    """dag.test() takes the event, and ends the loop: it calls no cleanup (InProcessTestSupervisor, airflow.sdk 3.3)."""
    deferred_at = time.time() - 10
    trigger = Quick(
        {
            "version": 1,
            "pool": a_pool().serialize(),
            "kind": "pod",
            "wait": WAIT.to_record(),
            "deferred_at": deferred_at,
        }
    )

    async def first() -> tuple[Any, int]:
        event = await anext(trigger.run(), None)
        return event, len(informer._clusters[asyncio.get_running_loop()])

    with caplog.at_level(logging.DEBUG):
        event, connections = asyncio.run(first())
    assert event.payload["saw_end"]
    assert event.payload["error"] is None
    assert connections == 0
    assert "asynchronous generator" not in caplog.text


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b'{"loss": 0.1}', '{"loss": 0.1}'),
        (b'{"loss": 0.1}\x00', None),
        (b"\xff", None),
        (b'"\xe2\x80\xae"', None),
        (b" " * 20_000, None),
    ],
    ids=["JSON", "a NUL", "no UTF-8", "hidden order", "long"],
)
def test_a_result_that_no_event_may_have_is_left_to_the_worker(written: bytes, read: str | None) -> None:
    async def output(*_: Any, **__: Any) -> bytes:
        return written

    trigger = Quick(
        {"version": 1, "result": {"container": "airflow-xcom-sidecar", "path": "/airflow/xcom/return.json"}}
    )
    trigger._api = cast("AsyncApi", SimpleNamespace(output=output))
    assert asyncio.run(trigger._read_result("default", "p")) == read


def test_an_event_has_only_what_a_database_takes() -> None:
    class Hostile(Recorded):
        record_version = 1

        async def _event(self) -> dict[str, Any]:
            return {"lines": ["a\x00b", "\ud800"], "use": {"watts": float("inf"), "samples": 10**30}}

    async def event() -> Any:
        return await anext(aiter(Hostile({"version": 1, "deferred_at": 0.0, "extra": {"\x00": (1,)}}).run()))

    assert asyncio.run(event()).payload == {
        "": [1],
        "lines": ["ab", "\ufffd"],
        "use": {"watts": None, "samples": None},
    }

"""A task that is told to stop ends with TaskKilled, wherever it is, and never green."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import msgspec
import pytest
from airflow.sdk.execution_time.comms import CommsDecoder, GetVariable, _ResponseFrame

from airflow_gpu_provider.errors import TaskKilled
from airflow_gpu_provider.scaling.wait.stopping import Stop

ERROR = TaskKilled("Told to stop.")


@pytest.fixture
def stop() -> Iterator[Stop]:
    """A Stop that SIGTERM asks, as Airflow's task runner does by on_kill."""
    stop = Stop()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.ask(ERROR))
    yield stop
    signal.signal(signal.SIGTERM, before)


def sigterm_in(seconds: float) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM)).start()


def test_wait_in_a_loop_is_ended(stop: Stop) -> None:
    async def wait() -> None:
        sigterm_in(0.1)
        await asyncio.sleep(3600)

    with pytest.raises(TaskKilled):
        stop.run(wait())


def test_it_is_ended_if_a_callback_swallowed_the_error_as_the_loop_began(
    stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = asyncio.run

    def told_meanwhile(coroutine: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(TaskKilled):
            os.kill(os.getpid(), signal.SIGTERM)
        return run(coroutine)

    monkeypatch.setattr(asyncio, "run", told_meanwhile)
    with pytest.raises(TaskKilled):
        stop.run(asyncio.sleep(3600))


def test_code_that_swallows_errors_does_not_swallow_this_one(stop: Stop) -> None:
    async def swallows() -> None:
        sigterm_in(0.1)
        while True:
            try:
                await asyncio.sleep(0.001)
                sum(range(1000))
            except Exception:  # noqa: BLE001
                continue

    with pytest.raises(TaskKilled):
        stop.run(swallows())


def test_wait_cleans_up_on_its_way_out(stop: Stop) -> None:
    closed = []

    async def wait() -> None:
        try:
            sigterm_in(0.1)
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            closed.append(True)

    with pytest.raises(TaskKilled):
        stop.run(wait())
    assert closed == [True]


def test_outside_a_loop_it_is_raised_at_once(stop: Stop) -> None:
    with pytest.raises(TaskKilled):
        stop.ask(ERROR)


def test_it_is_raised_again_where_it_was_swallowed(stop: Stop) -> None:
    stop.check()
    with pytest.raises(TaskKilled):
        stop.ask(ERROR)
    with pytest.raises(TaskKilled):
        stop.check()
    with pytest.raises(TaskKilled):
        stop.run(asyncio.sleep(0))


def test_a_request_to_airflow_is_not_cut_off_from_its_answer(stop: Stop) -> None:
    ours, theirs = socket.socketpair()
    comms: CommsDecoder[Any, Any] = CommsDecoder(socket=ours)
    answers: list[Any] = []

    def supervise() -> None:
        request = theirs.recv(4096)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        number = msgspec.msgpack.decode(request[4:])[0]
        theirs.sendall(_ResponseFrame(number, {"type": "VariableResult", "key": "id", "value": "kept"}).as_bytes())

    def work() -> None:
        answers.append(comms.send(GetVariable(key="id")))
        time.sleep(3600)

    supervisor = threading.Thread(target=supervise)
    supervisor.start()
    with ours, theirs, pytest.raises(TaskKilled):
        work()
    supervisor.join()
    assert [answer.value for answer in answers] == ["kept"]


def test_logging_is_not_cut_off_with_its_lock_held(stop: Stop) -> None:
    lines: list[str] = []

    class Log(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            lines.append(record.getMessage())

    logger = logging.Logger("training")
    logger.addHandler(Log())

    def work() -> None:
        logger.warning("the pod is deleted")
        time.sleep(3600)

    with pytest.raises(TaskKilled):
        work()
    assert lines == ["the pod is deleted"]


def test_a_library_that_catches_exceptions_does_not_catch_this_one(stop: Stop) -> None:
    with pytest.raises(TaskKilled), contextlib.suppress(Exception):
        stop.ask(ERROR)


def test_result_comes_back(stop: Stop) -> None:
    assert stop.run(asyncio.sleep(0, "done")) == "done"

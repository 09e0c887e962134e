"""A task that is told to stop, or has used its execution_timeout, ends wherever it is, and never green."""

from __future__ import annotations

import asyncio
import contextlib
import io
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
import structlog
from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.sdk.execution_time.comms import CommsDecoder, GetVariable, _ResponseFrame
from airflow.sdk.execution_time.timeout import timeout

from airflow_gpu_provider.errors import TaskKilled
from airflow_gpu_provider.scaling.wait import stopping
from airflow_gpu_provider.scaling.wait.stopping import Stop
from airflow_gpu_provider.tasks.pool_operator import PoolOperator

ERROR = TaskKilled("Told to stop.")
ENDS: dict[signal.Signals, type[BaseException]] = {signal.SIGTERM: TaskKilled, signal.SIGALRM: AirflowTaskTimeout}


@pytest.fixture
def stop() -> Iterator[Stop]:
    """A Stop that SIGTERM asks, as Airflow's task runner does by on_kill."""
    stop = Stop()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.ask(ERROR))
    yield stop
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(params=[signal.SIGTERM, signal.SIGALRM], ids=["SIGTERM", "execution_timeout"])
def told(request: pytest.FixtureRequest, stop: Stop) -> Iterator[signal.Signals]:
    """The signal that the task gets, within the execution_timeout that Airflow gives it."""
    with timeout(60), stop.heeding_timeout():
        yield request.param


def tell_in(seconds: float, told: signal.Signals) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), told)).start()


def test_wait_in_a_loop_is_ended(stop: Stop, told: signal.Signals) -> None:
    async def wait() -> None:
        tell_in(0.1, told)
        await asyncio.sleep(3600)

    with pytest.raises(ENDS[told]):
        stop.run(wait())


def test_it_is_ended_if_a_callback_is_interrupted(stop: Stop, told: signal.Signals) -> None:
    """An event loop takes what is raised there for the callback's own error, and goes on."""

    async def wait() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), told)
        await asyncio.sleep(3600)

    with pytest.raises(ENDS[told]):
        stop.run(wait())


def test_it_is_ended_if_a_callback_swallowed_the_error_as_the_loop_began(
    stop: Stop, told: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = asyncio.run

    def told_meanwhile(coroutine: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(ENDS[told]):
            os.kill(os.getpid(), told)
        return run(coroutine)

    monkeypatch.setattr(asyncio, "run", told_meanwhile)
    with pytest.raises(ENDS[told]):
        stop.run(asyncio.sleep(3600))


def test_a_loop_that_ends_at_the_same_time_does_not_hide_it(
    stop: Stop, told: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = asyncio.run

    def told_at_its_end(coroutine: Coroutine[Any, Any, str]) -> str:
        result = run(coroutine)
        with contextlib.suppress(ENDS[told]):
            os.kill(os.getpid(), told)
        return result

    monkeypatch.setattr(asyncio, "run", told_at_its_end)
    with pytest.raises(ENDS[told]):
        stop.run(asyncio.sleep(0, "done"))


def test_what_blocks_the_loop_does_not_outlast_the_timeout_for_long(
    stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a progress_callback does that waits for an answer that never comes."""
    monkeypatch.setattr(stopping, "_LOOP_ENDS_WITHIN_SECONDS", 0.1)

    answers = []

    def hang() -> None:
        time.sleep(60)
        answers.append("late")

    async def hangs() -> None:
        os.kill(os.getpid(), signal.SIGALRM)
        hang()

    with timeout(3600), stop.heeding_timeout():
        with pytest.raises(AirflowTaskTimeout):
            stop.run(hangs())
        assert not answers
        # What follows, such as the release of the pod's nodes, is not interrupted.
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_code_that_swallows_errors_does_not_swallow_this_one(stop: Stop, told: signal.Signals) -> None:
    async def swallows() -> None:
        tell_in(0.1, told)
        while True:
            try:
                await asyncio.sleep(0.001)
                sum(range(1000))
            except Exception:  # noqa: BLE001
                continue

    with pytest.raises(ENDS[told]):
        stop.run(swallows())


def test_wait_cleans_up_on_its_way_out(stop: Stop, told: signal.Signals) -> None:
    closed = []

    async def wait() -> None:
        try:
            tell_in(0.1, told)
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            closed.append(True)

    with pytest.raises(ENDS[told]):
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


def test_a_request_to_airflow_is_not_cut_off_from_its_answer(told: signal.Signals) -> None:
    ours, theirs = socket.socketpair()
    comms: CommsDecoder[Any, Any] = CommsDecoder(socket=ours)
    answers: list[Any] = []

    def supervise() -> None:
        request = theirs.recv(4096)
        os.kill(os.getpid(), told)
        time.sleep(0.2)
        number = msgspec.msgpack.decode(request[4:])[0]
        theirs.sendall(_ResponseFrame(number, {"type": "VariableResult", "key": "id", "value": "kept"}).as_bytes())

    def work() -> None:
        answers.append(comms.send(GetVariable(key="id")))
        time.sleep(3600)

    supervisor = threading.Thread(target=supervise)
    supervisor.start()
    with ours, theirs, pytest.raises(ENDS[told]):
        work()
    supervisor.join()
    assert [answer.value for answer in answers] == ["kept"]


def test_logging_is_not_cut_off_with_its_lock_held(told: signal.Signals) -> None:
    lines: list[str] = []

    class Log(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            os.kill(os.getpid(), told)
            lines.append(record.getMessage())

    logger = logging.Logger("training")
    logger.addHandler(Log())

    def work() -> None:
        logger.warning("the pod is deleted")
        time.sleep(3600)

    with pytest.raises(ENDS[told]):
        work()
    assert lines == ["the pod is deleted"]


@pytest.fixture
def deaf() -> Iterator[int]:
    """A thread that gets a signal without the main one's being woken, as where it comes just before a blocking call."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert thread.ident is not None
    yield thread.ident
    done.set()
    thread.join()


def test_sigterm_comes_once_more_where_a_blocking_call_does_not_hear_it(
    stop: Stop, deaf: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill, sent = os.kill, list[int]()

    def send(pid: int, number: int) -> None:
        sent.append(number)
        if len(sent) == 2:  # the first is in the middle of logging
            signal.pthread_kill(deaf, number)
        else:
            kill(pid, number)

    class Log(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    def work() -> None:
        logger.warning("the pod is deleted")
        time.sleep(60)

    monkeypatch.setattr(os, "kill", send)
    logger = logging.Logger("training")
    logger.addHandler(Log())
    with pytest.raises(TaskKilled):
        work()
    assert len(sent) >= 3  # more where it takes a moment to hear the third


def test_so_does_the_signal_of_an_execution_timeout(stop: Stop) -> None:
    intervals = []

    class Log(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            os.kill(os.getpid(), signal.SIGALRM)
            intervals.append(signal.getitimer(signal.ITIMER_REAL)[1])

    def work() -> None:
        logger.warning("the pod is deleted")
        time.sleep(60)

    logger = logging.Logger("training")
    logger.addHandler(Log())
    with timeout(60), stop.heeding_timeout(), pytest.raises(AirflowTaskTimeout):
        work()
    assert intervals == [pytest.approx(0.05, abs=0.01)]
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_nor_is_structlog_whose_lock_nobody_takes_twice(told: signal.Signals) -> None:
    class File(io.BytesIO):
        def write(self, line: Any) -> int:
            os.kill(os.getpid(), told)
            return super().write(line)

    file = File()

    def work() -> None:
        structlog.BytesLogger(file).msg(b"the pod is deleted")
        time.sleep(3600)

    with pytest.raises(ENDS[told]):
        work()
    assert file.getvalue() == b"the pod is deleted\n"


def test_a_task_of_this_package_heeds_it(stop: Stop) -> None:
    class Waits(PoolOperator):
        def execute(self, context: Any) -> None:
            self._stop.run(self._wait())

        async def _wait(self) -> None:
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGALRM)
            await asyncio.sleep(3600)

    task = Waits(task_id="waits")
    with timeout(3600), pytest.raises(AirflowTaskTimeout):
        task.execute({})


def test_outside_the_block_the_timeout_is_airflows_own(stop: Stop) -> None:
    with timeout(3600) as theirs:
        with stop.heeding_timeout():
            assert signal.getsignal(signal.SIGALRM) != theirs.handle_timeout
        assert signal.getsignal(signal.SIGALRM) == theirs.handle_timeout


def test_a_task_in_another_thread_has_no_timeout(stop: Stop) -> None:
    def work() -> None:
        with stop.heeding_timeout():
            done.append(True)

    done: list[bool] = []
    with timeout(3600):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert done == [True]


def test_a_library_that_catches_exceptions_does_not_catch_this_one(stop: Stop) -> None:
    with pytest.raises(TaskKilled), contextlib.suppress(Exception):
        stop.ask(ERROR)


def test_result_comes_back(stop: Stop) -> None:
    assert stop.run(asyncio.sleep(0, "done")) == "done"

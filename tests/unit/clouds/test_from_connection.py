"""FromConnection: a connection is read once for all calls, and once more for each refusal, however many meet it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_gpu_provider.clouds.from_connection import AGAIN_AFTER, FromConnection
from airflow_gpu_provider.errors import ConnectionNotFound, CredentialsError


class Connection:
    """An Airflow connection with one key, and a cloud that takes one; each reading gives an object of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.holds = self.accepted = "first"
        self.is_there = True
        self.readings = 0
        self.now = 1000.0
        monkeypatch.setattr("airflow_gpu_provider.clouds.from_connection.time.monotonic", lambda: self.now)
        self.held = FromConnection(self._read)

    def _read(self) -> list[str]:
        self.readings += 1
        if not self.is_there:
            raise ConnectionNotFound.named("train", "aws_conn_id")
        return [self.holds]

    def rotate(self) -> None:
        self.holds = self.accepted = "second"

    def call(self) -> str:
        return self.held.call(self._ask)

    def _ask(self, held: list[str]) -> str:
        if held != [self.accepted]:
            raise CredentialsError(f"{held} is refused.")
        return f"with {held[0]}"


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connection:
    return Connection(monkeypatch)


def test_it_is_read_once_while_it_is_accepted(connection: Connection) -> None:
    assert {connection.call() for _ in range(5)} == {"with first"}
    assert connection.readings == 1


def test_a_call_that_is_refused_is_made_again_with_what_the_connection_holds_now(connection: Connection) -> None:
    connection.call()
    connection.rotate()
    assert connection.call() == "with second"
    assert connection.call() == "with second"
    assert connection.readings == 2


def test_a_key_that_dies_before_the_connection_has_the_new_one_costs_one_reading_in_some_seconds(
    connection: Connection,
) -> None:
    connection.call()
    connection.accepted = "second"
    for _ in range(50):
        with pytest.raises(CredentialsError, match="first"):
            connection.call()
    assert connection.readings == 2
    connection.holds = "second"
    connection.now += AGAIN_AFTER
    assert connection.call() == "with second"
    assert connection.readings == 3


def test_two_hundred_threads_that_are_refused_at_once_read_it_once(connection: Connection) -> None:
    connection.call()
    connection.rotate()
    all_there = threading.Barrier(200)

    def refused(_: int) -> str:
        held = connection.held.get()
        all_there.wait(60)
        return connection.held.read_again(held)[0]

    with ThreadPoolExecutor(200) as threads:
        assert set(threads.map(refused, range(200))) == {"second"}
    assert connection.readings == 2


def test_what_it_gave_stays_where_it_cannot_be_read(connection: Connection) -> None:
    """A connection is deleted and made again; a cluster that refused by mistake takes the old key meanwhile."""
    connection.call()
    connection.is_there = False
    connection.accepted = "second"
    with pytest.raises(ConnectionNotFound):
        connection.call()
    connection.accepted = "first"
    assert connection.call() == "with first"


def test_who_interrupts_a_reading_can_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal handler does, in the thread that it interrupts: it has requests of its own to make."""
    interrupted: list[str] = []

    def read() -> str:
        if not interrupted:
            interrupted.append("once")
            assert held.get() == "key"
        return "key"

    held = FromConnection(read)
    assert held.get() == "key"

"""The other end of the chaos matrix's trainings: who is counted as begun, and who is told to end."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from gpu_sandbox.airflow_api import wait_until
from tests.airflow.chaos.trainings import Trainings


@pytest.fixture
def trainings() -> Iterator[Trainings]:
    trainings = Trainings()
    yield trainings
    trainings.close()


def test_a_rank_that_waits_has_not_begun_and_is_held_with_its_peers(trainings: Trainings) -> None:
    trainings.hold("c1")
    with greet(trainings, "c1") as trains, greet(trainings, "c1 waits") as waits:
        wait_until(lambda: len(trainings._waiting.get("c1", ())) == 2, timeout=60, what="both to be held")
        for one in (trains, waits):
            one.settimeout(0.2)
            with pytest.raises(TimeoutError):
                one.recv(8)
        trainings.release("c1")
        for one in (trains, waits):
            one.settimeout(60)
            assert one.recv(8) == b"end\n"
    assert trainings.begun["c1"] == 1


def test_who_is_not_held_is_told_to_end_at_once(trainings: Trainings) -> None:
    trainings.hold("c1")
    with greet(trainings, "c2") as trains:
        assert trains.recv(8) == b"end\n"
    assert trainings.begun["c2"] == 1


def greet(trainings: Trainings, words: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", trainings.port), timeout=60)
    connection.sendall(f"{words}\n".encode())
    return connection

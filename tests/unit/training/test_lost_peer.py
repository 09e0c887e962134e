"""A rank that failed because a peer's machine went."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider.clouds.base import MachineEnd
from airflow_gpu_provider.errors import ClusterUnreachable, PodPreempted
from airflow_gpu_provider.training.life import diagnosis as module
from airflow_gpu_provider.training.life.diagnosis import lost_peer
from tests.unit.training.test_pod_end import ended, pod, running

FAILED = pod(ended(1), phase="Failed", spec={"nodeName": "n0"})
RUNS = pod(running(), spec={"nodeName": "n1"})
WELL = pod(ended(0), phase="Succeeded", spec={"nodeName": "n2"})


@pytest.fixture(autouse=True)
def machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "machine_of", lambda api, node: f"i-{node}")


def cluster(ends: dict[str, MachineEnd], *, asked: list[str] | None = None, away: bool = False) -> Any:
    def machine_end(machine: str) -> MachineEnd | None:
        if asked is not None:
            asked.append(machine)
        if away:
            raise ClusterUnreachable("It is away.")
        return ends.get(machine)

    return SimpleNamespace(api=None, platform=SimpleNamespace(machine_end=machine_end))


def test_the_loss_of_a_peers_machine_is_the_gangs() -> None:
    asked: list[str] = []
    error = lost_peer({0: FAILED, 1: RUNS, 2: WELL}, 0, cluster({"i-n1": MachineEnd(why="spot")}, asked=asked))
    assert type(error) is PodPreempted
    assert error.details["rank"] == 1
    assert "its machine i-n1 was terminated (spot)" in str(error)
    assert asked == ["i-n1"]


def test_a_failure_of_its_own_stays_one() -> None:
    assert lost_peer({0: FAILED, 1: RUNS}, 0, cluster({})) is None
    assert lost_peer({0: FAILED, 1: RUNS}, 0, cluster({"i-n0": MachineEnd(why="spot")})) is None


def test_where_the_cloud_does_not_answer_the_failure_stays() -> None:
    assert lost_peer({0: FAILED, 1: RUNS}, 0, cluster({}, away=True)) is None

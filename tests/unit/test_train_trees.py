"""The example training on several nodes, as processes here: one model of all data, resumed, ended together."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xgboost", reason="requirements-two-nodes.txt has it")

SCRIPT = Path(__file__).parents[2] / "example_dags" / "train_trees" / "train.py"
SECONDS = 120


def start(nodes: int, *options: str, checkpoint: Path | None = None) -> list[subprocess.Popen[str]]:
    """All ranks of a training, on a port of their own."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TRAIN_", "AIRFLOW_GPU_"))}
    environment |= {"MASTER_ADDR": socket.gethostname(), "MASTER_PORT": str(port), "AIRFLOW_GPU_NODES": str(nodes)}
    if checkpoint is not None:
        environment["AIRFLOW_GPU_CHECKPOINT"] = str(checkpoint)
    return [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), "--device", "cpu", "--threads", "1", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment | {"AIRFLOW_GPU_NODE_RANK": str(rank)},
        )
        for rank in range(nodes)
    ]


def logs(ranks: list[subprocess.Popen[str]]) -> list[str]:
    """What each rank printed, once all have ended; none is left, whatever happens."""
    try:
        return [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def result(log: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(log.strip().splitlines()[-1])
    return found


def until_round(rank: subprocess.Popen[str], number: int) -> None:
    assert rank.stdout is not None
    for line in rank.stdout:
        if line.startswith(f"round {number:02d}/"):
            return
    pytest.fail(f"round {number} never came")


def test_two_nodes_learn_as_much_as_one() -> None:
    alone, together = start(1, "--rounds", "12"), start(2, "--rounds", "12")
    (one,), (rank_0, rank_1) = logs(alone), logs(together)
    assert result(one)["accuracy"] > 0.94
    assert abs(result(rank_0)["accuracy"] - result(one)["accuracy"]) < 0.02
    assert (result(rank_0)["nodes"], result(one)["nodes"]) == (2, 1)
    shares = [int(re.findall(r"has (\d+) of 1437 images", log)[0]) for log in (rank_0, rank_1)]
    assert sum(shares) == 1437
    assert max(shares) - min(shares) <= 1


@pytest.mark.nightly
def test_one_rank_told_to_stop_stops_all_and_they_go_on_from_there(tmp_path: Path) -> None:
    straight = logs(start(2, "--rounds", "24", checkpoint=tmp_path / "straight"))
    ranks = start(2, "--rounds", "24", "--seconds-per-round", "0.5", checkpoint=tmp_path / "resumed")
    until_round(ranks[0], 4)
    ranks[1].send_signal(signal.SIGTERM)
    logs(ranks)
    assert [rank.returncode for rank in ranks] == [143, 143]
    rank_0, rank_1 = logs(start(2, "--rounds", "24", checkpoint=tmp_path / "resumed"))
    begun = {re.findall(r"resuming from round (\d+)", log)[0] for log in (rank_0, rank_1)}
    assert len(begun) == 1
    assert int(begun.pop()) >= 4
    assert result(rank_0) == result(straight[0])


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_gone_ends_the_other(tmp_path: Path, killed: int) -> None:
    ranks = start(2, "--rounds", "600", "--seconds-per-round", "0.2", checkpoint=tmp_path)
    until_round(ranks[0], 6)
    ranks[killed].kill()
    logs(ranks)
    assert ranks[1 - killed].returncode not in (0, None)
    assert any(file.name == "checkpoint.ubj" for file in tmp_path.iterdir()), "of round 5"


def test_a_rank_that_fails_says_so_and_ends_all() -> None:
    ranks = start(2, "--rounds", "12", "--fail-at-round", "3")
    _, rank_1 = logs(ranks)
    assert ranks[1].returncode == 1
    assert ranks[0].returncode != 0
    assert "rank 1: failing in round 3" in rank_1

"""How the commands of `airflow gpu` ask several pools."""

from __future__ import annotations

import threading
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider.cli import commands
from airflow_gpu_provider.errors import ClusterUnreachable
from tests.unit.operators.test_pod_placement import a_pool

NAMES = ("first", "away", "last")


def test_pools_are_asked_at_the_same_time_and_told_in_their_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    all_are_asked = threading.Barrier(len(NAMES))

    def opened(pool: Any) -> Any:
        all_are_asked.wait(60)
        if pool.name == "away":
            raise ClusterUnreachable("It does not answer.")
        return SimpleNamespace(platform=SimpleNamespace(account=lambda: f"account of {pool.name}"), pool=pool)

    monkeypatch.setattr(commands, "_pools", lambda args: [a_pool(name=name) for name in NAMES])
    monkeypatch.setattr(commands, "_open", opened)
    found, failed = commands._of_each_pool(Namespace(), lambda on: on.pool.name)
    assert (found, failed) == (["first", "last"], True)
    assert capsys.readouterr().err.splitlines() == [
        "first: account of first",
        "away: ClusterUnreachable: It does not answer.",
        "last: account of last",
    ]

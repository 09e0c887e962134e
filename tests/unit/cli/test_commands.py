"""How the commands of `airflow gpu` ask several pools."""

from __future__ import annotations

import threading
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider.cli import commands
from airflow_gpu_provider.errors import ClusterUnreachable, PermissionDenied
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
    assert (found, failed) == (["first", "last"], 1)
    assert capsys.readouterr().err.splitlines() == [
        "first: account of first",
        "away: ClusterUnreachable: It does not answer.",
        "last: account of last",
    ]


@pytest.mark.parametrize("command", [commands.status, commands.plan])
def test_where_no_pool_can_be_read_nothing_is_said_of_what_there_is(
    command: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor with --output json, where the list is empty and the exit status is 1."""
    refuse_all(monkeypatch)
    for output in ("table", "json"):
        with pytest.raises(SystemExit) as ended:
            command(Namespace(output=output, nodes=None, verbose=True))
        assert ended.value.code == 1
        said = capsys.readouterr()
        assert said.out == ("" if output == "table" else "[]\n")
        assert said.err.splitlines() == [
            *(f"{name}: PermissionDenied: It may not." for name in NAMES),
            "3 pools could not be read.",
        ]


def test_reap_calls_nothing_clean_that_it_could_not_look_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse_all(monkeypatch)
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    with pytest.raises(SystemExit):
        commands.reap(Namespace(output="table", yes=False, pools=[], timeout=1, verbose=True))
    assert capsys.readouterr().err.splitlines() == [f"pool {name}: PermissionDenied: It may not." for name in NAMES]


def refuse_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(pool: Any) -> Any:
        raise PermissionDenied("It may not.")

    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    monkeypatch.setattr(commands, "_pools", lambda args: [a_pool(name=name) for name in NAMES])
    monkeypatch.setattr(commands, "_open", refuses)

"""What `airflow gpu status` shows of gangs."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.errors import PermissionDenied
from airflow_gpu_provider.reports import status
from airflow_gpu_provider.reports.status import gang_rows
from airflow_gpu_provider.scaling.state.gang_jobs import GangJob
from tests.unit.scaling.apply.test_admission import a, job, there
from tests.unit.scaling.pools import NOW, A, lease, pod

WANTED = lease(nodes=2, gang=2)


def shown(monkeypatch: pytest.MonkeyPatch, *jobs: GangJob, **how: Any) -> list[tuple[str, str]]:
    monkeypatch.setattr(status, "list_gang_jobs", lambda _api, _pool: jobs)
    state = there(A, A, **{"leases": (WANTED,), **how})
    return [(row.gang, row.state) for row in gang_rows(None, state)]  # type: ignore[arg-type]


def test_each_gang_says_where_it_runs_or_why_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    first = job(suspended=False, admitted_at=NOW, zone=a)
    theirs = job("kueue", minutes=1, queued_elsewhere=True)
    rows = shown(
        monkeypatch, first, theirs, job("two", minutes=2), job("gone", over=True), pods=(pod("r", on=1, job="one"),)
    )
    assert rows == [
        ("default/one", f"1 of 2 pods have a node in {a}"),
        ("default/kueue", "waits: Kueue admits it"),
        ("default/two", "waits: needs 2 free nodes of one zone, no zone has any"),
    ]
    assert shown(monkeypatch, job()) == [("default/one", f"is about to start in {a}")]


def test_jobs_are_read_only_where_demand_is_for_a_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, job(), leases=(lease(),)) == []


def test_a_role_that_may_not_read_jobs_shows_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionDenied("It may not.", "Allow it.")

    monkeypatch.setattr(status, "list_gang_jobs", refuse)
    assert gang_rows(None, there(A, A, leases=(WANTED,))) == ()  # type: ignore[arg-type]

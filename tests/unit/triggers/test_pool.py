"""The rows of the triggers that wait for a pool: the last release's still load."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_gpu_provider.scaling.nodes_wait import NodesWait
from airflow_gpu_provider.triggers.pool import NodesTrigger
from tests.unit.scaling.pools import key, pool

FIRST_RELEASE: dict[str, Any] = {
    "version": 1,
    "pool": pool().serialize(),
    "owner": "airflow/nightly",
    "holder": "nightly/run/ensure/1@worker:1",
    "deferred_at": 1767232800.0,
    "wait": {
        "key": {"installation": "airflow", "dag_id": "dag", "run_id": "run", "pool": "train"},
        "wait_for": "ready",
        "started": "2026-01-01T02:00:00+00:00",
        "deadline": "2026-01-01T02:30:00+00:00",
    },
}


def test_a_row_of_the_first_release_loads() -> None:
    wait = NodesTrigger(FIRST_RELEASE)._wait_record()
    started = datetime(2026, 1, 1, 2, tzinfo=UTC)
    assert wait == NodesWait(
        key=key("run"), wait_for="ready", started=started, deadline=started + timedelta(minutes=30)
    )


def test_a_row_carries_all_of_a_wait() -> None:
    started = datetime(2026, 1, 1, 2, tzinfo=UTC)
    wait = NodesWait(
        key=key("run"),
        wait_for="gpus",
        started=started,
        deadline=started + timedelta(hours=12),
        nodes=3,
        at_least=2,
        patience=timedelta(minutes=30),
        latest=started + timedelta(hours=9),
    )
    trigger = NodesTrigger({**FIRST_RELEASE, "version": 2, "over_quota": ["train-a"], "wait": wait.to_record()})
    _, row = trigger.serialize()
    assert NodesTrigger(**row)._wait_record() == wait


def test_a_row_whose_patience_is_seconds_loads() -> None:
    row = {**FIRST_RELEASE, "version": 3, "wait": {**FIRST_RELEASE["wait"], "nodes": 1, "patience": 1800.0}}
    assert NodesTrigger(row)._wait_record().patience == timedelta(minutes=30)  # type: ignore[attr-defined]

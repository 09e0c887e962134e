"""The rows of the triggers that wait for a pool."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait
from airflow_gpu_provider.triggers.pool import NodesTrigger
from tests.unit.scaling.pools import key, pool

ROW: dict[str, Any] = {
    "version": 1,
    "pool": pool().serialize(),
    "owner": "airflow/nightly",
    "holder": "nightly/run/ensure/1@worker:1",
    "deferred_at": 1767232800.0,
}


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
    trigger = NodesTrigger({**ROW, "wait": wait.to_record()})
    _, row = trigger.serialize()
    assert NodesWait.from_record(NodesTrigger(**row).record["wait"]) == wait

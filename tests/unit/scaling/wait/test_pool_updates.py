"""One reconcile for a pool, however many of its pods wait in this process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider.errors import CloudError, OutOfStock
from airflow_gpu_provider.scaling.wait import pool_loop, pool_updates
from tests.unit.scaling.pools import NOW, dry, lease, machine, node, pod, snapshot
from tests.unit.training.test_pod_placement import a_pool


class Reconciles:
    """Stands for the pool's Reconciler, which has tests of its own."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.count = 0
        self.error: Exception | None = None
        self.snapshot = snapshot()
        self.platform = SimpleNamespace(cluster_access=None)

    def open(self, pool: Any, *, owner: str, holder: str, report: Any) -> Reconciles:
        self.opened.append(f"{pool.name} for {owner}")
        return self

    def reconcile(self, *, admits: bool = False) -> Any:
        self.count += 1
        if self.error:
            raise self.error
        return SimpleNamespace(gangs=None, log_lines=(f"reconcile {self.count}",), snapshot=self.snapshot)


async def hears_nothing(*_: Any) -> None:
    """Stands for the feed of node changes, which has tests of its own."""


@pytest.fixture
def reconciles(monkeypatch: pytest.MonkeyPatch) -> Reconciles:
    stand_in = Reconciles()
    monkeypatch.setattr(pool_loop, "open_pool", stand_in.open)
    monkeypatch.setattr(pool_loop, "report_changes", hears_nothing)
    monkeypatch.setattr(pool_loop, "SOONEST", 0.0)
    monkeypatch.setattr(pool_updates, "EVERY", 0.01)
    return stand_in


async def heard(lines: list[Any], number: int) -> None:
    async with asyncio.timeout(60):
        while len(lines) < number:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_all_who_wait_hear_of_the_same_reconcile(reconciles: Reconciles) -> None:
    first: list[Any] = []
    second: list[Any] = []
    pool = a_pool()
    pool_updates.keep(pool, "me/dag", first.append)
    pool_updates.keep(a_pool(), "me/dag", second.append)
    await heard(second, 2)
    assert reconciles.opened == ["train-gpu for me/dag"]
    assert first[:2] == second[:2]
    assert [news.log_lines for news in first[:2]] == [("reconcile 1",), ("reconcile 2",)]
    await pool_updates.leave(pool, "me/dag", first.append)
    await pool_updates.leave(pool, "me/dag", second.append)


async def test_it_ends_with_the_last_one(reconciles: Reconciles) -> None:
    lines: list[Any] = []
    pool = a_pool()
    pool_updates.keep(pool, "me/dag", lines.append)
    await heard(lines, 1)
    await pool_updates.leave(pool, "me/dag", lines.append)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    count = reconciles.count
    await asyncio.sleep(0.05)
    assert reconciles.count <= count + 1
    await pool_updates.leave(pool, "me/dag", lines.append)  # a second time is fine


async def test_errors_are_told_and_tried_again(reconciles: Reconciles) -> None:
    lines: list[Any] = []
    pool = a_pool()
    reconciles.error = CloudError("Throttled.")
    pool_updates.keep(pool, "me/dag", lines.append)
    await heard(lines, 1)
    assert lines[0].log_lines == ("CloudError: Throttled.",)
    reconciles.error = None
    await heard(lines, len(lines) + 2)
    assert lines[-1].log_lines[0].startswith("reconcile")
    await pool_updates.leave(pool, "me/dag", lines.append)


async def test_one_that_cannot_take_its_news_keeps_them_from_nobody(
    reconciles: Reconciles, caplog: pytest.LogCaptureFixture
) -> None:
    news: list[Any] = []

    def breaks(_: Any) -> None:
        raise ValueError("a bug of one wait")

    for listener in (breaks, news.append):
        pool_updates.keep(a_pool(), "me/dag", listener)
    await heard(news, 2)
    for listener in (breaks, news.append):
        await pool_updates.leave(a_pool(), "me/dag", listener)
    assert "a bug of one wait" in caplog.text


async def test_a_stock_out_is_told_with_its_type(reconciles: Reconciles) -> None:
    news: list[pool_updates.PoolUpdates] = []
    failed = dry()
    reconciles.snapshot = snapshot(leases=(lease(),), train_a_g6_xlarge={"failures": (failed,)})
    pool_updates.keep(a_pool(), "me/dag", news.append)
    await heard(news, 1)
    await pool_updates.leave(a_pool(), "me/dag", news.append)
    assert not news[0].no_capacity, "that was before anybody waited"
    newer = replace(failed, at=datetime.now(UTC) + timedelta(seconds=1))
    reconciles.snapshot = snapshot(leases=(lease(),), train_a_g6_xlarge={"failures": (newer,)})
    news.clear()
    pool_updates.keep(a_pool(), "me/dag", news.append)
    await heard(news, 1)
    await pool_updates.leave(a_pool(), "me/dag", news.append)
    assert isinstance(news[0].no_capacity, OutOfStock)


async def test_other_owners_reconcile_for_themselves(reconciles: Reconciles) -> None:
    lines: list[Any] = []
    for owner in ("me/a", "me/b"):
        pool_updates.keep(a_pool(), owner, lines.append)
    await heard(reconciles.opened, 2)
    assert sorted(reconciles.opened) == ["train-gpu for me/a", "train-gpu for me/b"]
    for owner in ("me/a", "me/b"):
        await pool_updates.leave(a_pool(), owner, lines.append)


async def test_the_first_look_comes_sooner(reconciles: Reconciles, monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps nodes from coming, like an autoscaler that is dead, is told in seconds."""
    assert pool_updates.FIRST <= 5.0
    monkeypatch.setattr(pool_updates, "EVERY", 3600.0)
    monkeypatch.setattr(pool_updates, "FIRST", 0.01)
    lines: list[Any] = []
    pool_updates.keep(a_pool(), "me/dag", lines.append)
    await heard(lines, 1)
    await pool_updates.leave(a_pool(), "me/dag", lines.append)


async def test_empty_nodes_are_those_on_which_only_what_belongs_to_a_node_runs(reconciles: Reconciles) -> None:
    news: list[pool_updates.PoolUpdates] = []
    machines = [machine(number) for number in range(1, 6)]
    nodes = (*(node(number) for number in range(1, 5)), node(5, cordoned=True))
    pods = (
        pod("train", on=1),
        pod("plugin", on=2, daemon=True),
        pod("done", on=2, phase="Succeeded"),
        pod("no-gpu", on=3, gpus=0),
        pod("plugin", on=4, daemon=True),
        pod("waits"),
    )
    pool_updates.keep(a_pool(), "me/dag", news.append)
    for seconds, others, empty in (
        (0, (), set()),  # the scheduler may not have looked yet
        (59, (), set()),
        (60, (), {"node-2", "node-4"}),
        (70, (pod("more", on=2),), {"node-4"}),
        (80, (), {"node-4"}),
        (140, (), {"node-2", "node-4"}),
    ):
        at = NOW + timedelta(seconds=seconds)
        reconciles.snapshot = snapshot(*machines, nodes=nodes, pods=(*pods, *others), at=at)
        news.clear()
        await heard(news, 2)  # the first may be of the snapshot before
        assert news[1].empty_nodes == empty, seconds
    await pool_updates.leave(a_pool(), "me/dag", news.append)

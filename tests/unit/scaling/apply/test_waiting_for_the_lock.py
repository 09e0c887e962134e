"""Many waits for a pool's lock in one event loop: they hold up neither each other's hosts nor a dead holder's heir."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_gpu_provider.cluster.api.threads import THREADS
from airflow_gpu_provider.errors import DemandLockBusy
from airflow_gpu_provider.scaling.apply.reconcile import PATIENCE_IN_A_LOOP
from airflow_gpu_provider.scaling.state.lock import PoolLock
from airflow_gpu_provider.scaling.wait.pool_loop import run_wait
from airflow_gpu_provider.scaling.wait.records import Progress
from tests.unit.scaling.model.world import World
from tests.unit.scaling.pools import pool

WAITERS = 100  # more than any executor has threads


class EndsAtOnce:
    """A wait that the first look satisfies."""

    started = datetime.now(UTC)
    deadline = started + timedelta(hours=1)

    def step(self, snapshot: Any) -> Progress:
        return Progress(done=True)


async def test_names_are_looked_up_while_every_wait_is_held_up() -> None:
    may_go_on = threading.Event()
    held_up: list[threading.Thread] = []

    class HeldUp:
        platform = SimpleNamespace(cluster_access=None)

        def reconcile(self, *, admits: bool = False) -> Any:
            held_up.append(threading.current_thread())
            may_go_on.wait()
            return SimpleNamespace(snapshot=SimpleNamespace(now=datetime.now(UTC)), log_lines=())

    async def wait_of(owner: str) -> None:
        await run_wait(EndsAtOnce(), pool(), owner, report=print, every=1, reconciler=cast("Any", HeldUp()))

    loop = asyncio.get_running_loop()
    waits = [asyncio.create_task(wait_of(f"airflow/dag-{number}")) for number in range(WAITERS)]
    try:
        async with asyncio.timeout(60):
            while len(held_up) < min(THREADS, WAITERS):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert await loop.getaddrinfo("127.0.0.1", 443)
            assert await loop.run_in_executor(None, lambda: "looked up") == "looked up"
        assert not any(wait.done() for wait in waits)
    finally:
        may_go_on.set()
        await asyncio.gather(*waits)


def test_one_that_comes_again_waits_for_a_moment_and_takes_a_dead_holder_s_lock_when_its_time_has_run_out() -> None:
    world = World(max_nodes=1)
    clock = world.actors.clock
    reconciler = world.reconciler("comes again", 0)
    said: list[str] = []
    reconciler._report = said.append
    reconciler.clock, reconciler.patience = clock, PATIENCE_IN_A_LOOP
    PoolLock(world.api, "train", "dead", clock=clock).__enter__()  # type: ignore[arg-type]
    busy = 0
    while world.actors.time < 30:
        before = world.actors.time
        with pytest.raises(DemandLockBusy), reconciler._lock():
            raise AssertionError("the lock is another's")
        assert world.actors.time - before < 3
        busy += 1
        clock.sleep(5)
    assert busy > 3
    assert said == ["waiting for the lock of pool train: dead has it"]
    with reconciler._lock() as lock:
        lock.check()

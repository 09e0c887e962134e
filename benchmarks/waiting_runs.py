"""What runs that wait for the nodes of one pool in one triggerer ask of the cluster and of the cloud.

`python -m benchmarks.waiting_runs` measures this alone, in two minutes. Nothing but the package and threads is needed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from airflow_gpu_provider.cluster.model.lease import LEASES
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.wait import pool_loop
from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait
from airflow_gpu_provider.triggers.pool import RECORD_VERSION, NodesTrigger
from benchmarks.figure import Figure
from benchmarks.large_pool import LargePool
from benchmarks.played_cloud import NODES as ALL_NODES

RUNS = 200
SECONDS = 60.0
NODES = 4


class WaitingRuns:
    """Runs whose Ensure is deferred: the pool has its nodes, whose GPUs are not allocatable yet."""

    def __init__(self, runs: int) -> None:
        self._pool = LargePool(NODES, busy=False, others=0, latency=0.001)
        server = self._pool.server
        for name in server.named(ALL_NODES):
            server.patch(f"{ALL_NODES}/{name}", {"status": {"allocatable": None}})
        now = self._pool.clock.now()
        self._triggers = []
        for number in range(runs):
            key = DemandKey(installation="bench", dag_id="bench", run_id=f"waits-{number}", pool="large")
            lease = DemandLease(key=key, nodes=1, until=now + timedelta(minutes=50), created_at=now)
            server.put(f"{LEASES}/{key.lease_name}", lease.manifest())
            wait = NodesWait(key=key, wait_for="gpus", started=now, deadline=now + timedelta(hours=1), nodes=1)
            self._triggers.append(NodesTrigger(self._record(wait)))

    async def requests_in_looks(self, looks: int) -> Counter[str]:
        """Count the requests of so many looks at the pool, one soon after the other."""
        with patch.object(pool_loop, "SOONEST", 0.01):
            async with self._waiting(), asyncio.timeout(60):
                while self._pool.cloud.calls["observe"] < looks:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                return self._pool.requests

    async def requests_in(self, seconds: float) -> Counter[str]:
        async with self._waiting():
            await asyncio.sleep(seconds)
            return self._pool.requests

    @asynccontextmanager
    async def _waiting(self) -> AsyncIterator[None]:
        self._pool.forget()
        with (
            patch.object(pool_loop, "open_pool", self._open),
            patch.object(pool_loop, "report_changes", _nothing_changes),
        ):
            waiting = [asyncio.create_task(_event(trigger)) for trigger in self._triggers]
            try:
                yield
                ended = [task for task in waiting if task.done()]
                if ended:
                    raise RuntimeError(f"{len(ended)} waits have ended: {ended[0].result()}")
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.wait(waiting)

    def _open(self, *_: Any, **__: Any) -> Any:
        return self._pool.reconciler

    def _record(self, wait: NodesWait) -> dict[str, Any]:
        return {
            "version": RECORD_VERSION,
            "pool": self._pool.pool.serialize(),
            "owner": "bench/bench",
            "holder": "bench",
            "deferred_at": 0.0,
            "wait": wait.to_record(),
        }


async def _nothing_changes(*_: Any) -> None:
    """Stands for the feed of node changes: all waits of a process share its one watch anyway."""


async def _event(trigger: NodesTrigger) -> Any:
    return await anext(trigger.run())


def measure() -> list[Figure]:
    """Return the requests of many waiting runs, beside those of one as the peer."""
    one = asyncio.run(WaitingRuns(1).requests_in(SECONDS)).total()
    many = asyncio.run(WaitingRuns(RUNS).requests_in(SECONDS)).total()
    name = f"requests to cluster and cloud in the first minute, {RUNS} runs that wait for one pool; peer: one run"
    return [Figure(name=name, unit="requests/min", ours=many * 60 / SECONDS, peer=one * 60 / SECONDS, n=1)]


if __name__ == "__main__":
    from benchmarks.figure import table

    print("\n".join(table(measure())))

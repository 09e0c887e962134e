"""How soon Ensure hears that a node's GPUs are allocatable: from the kubelet's report to the trigger's event.

There is no peer: the field's own way is a person, or a task that asks every 30 seconds.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from kubernetes import client

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.apply.reconcile import open_pool
from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait
from airflow_gpu_provider.triggers.pool import RECORD_VERSION, NodesTrigger
from benchmarks.figure import Figure

NODE = "coming"
ROUNDS = 20
POOL = KubernetesGpuPool(name="coming", nodes=(NODE,), gpus_per_node=1)


def measure(api: client.CoreV1Api) -> list[Figure]:
    """Return p50 and the longest of twenty."""
    seconds = sorted(asyncio.run(_round(api, number)) for number in range(ROUNDS))
    name = "GPUs allocatable to Ensure's event"
    p50, longest = statistics.median(seconds), seconds[-1]
    return [
        Figure(name=f"{name}, p50", unit="s", ours=p50, peer=None, n=ROUNDS),
        Figure(name=f"{name}, longest", unit="s", ours=longest, peer=None, n=ROUNDS),
    ]


async def _round(api: client.CoreV1Api, number: int) -> float:
    with _node(api):
        key = DemandKey(installation="bench", dag_id="bench", run_id=str(number), pool=POOL.name)
        reconciler = open_pool(POOL, owner="bench", holder="bench", report=print)
        now = datetime.now(UTC)
        reconciler.want(key, 1, now + timedelta(hours=1))
        wait = NodesWait(key=key, wait_for="gpus", started=now, deadline=now + timedelta(minutes=5))
        record = {
            "version": RECORD_VERSION,
            "pool": POOL.serialize(),
            "owner": "bench",
            "holder": "bench",
            "deferred_at": time.time() - 60,
            "wait": wait.to_record(),
        }
        event = asyncio.create_task(_first_event(NodesTrigger(record)))
        await asyncio.sleep(1 + number / ROUNDS)  # the trigger looks, and then waits for news
        at = time.time()
        resources = {"capacity": {"nvidia.com/gpu": "1"}, "allocatable": {"nvidia.com/gpu": "1"}}
        await asyncio.to_thread(api.patch_node_status, NODE, {"status": resources})
        heard_at = await event
        await asyncio.to_thread(reconciler.delete_demand_and_reconcile, key)
        return heard_at - at


async def _first_event(trigger: Any) -> float:
    try:
        async for event in trigger.run():
            if event.payload["status"] != "done":
                raise RuntimeError(f"the wait failed: {event.payload}")
            return time.time()
    finally:
        await trigger.cleanup()
    raise RuntimeError("the trigger ended without an event")


@contextmanager
def _node(api: client.CoreV1Api) -> Iterator[None]:
    """Let a Node be there whose kubelet is ready and has no GPUs yet."""
    api.create_node({"metadata": {"name": NODE, "labels": {POOL_LABEL: POOL.name}}})
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "played"}]
    api.patch_node_status(NODE, {"status": {"conditions": conditions}})
    try:
        yield
    finally:
        api.delete_node(NODE)

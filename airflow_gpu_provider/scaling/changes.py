"""pool_changes: hear at once when a pool's nodes change, instead of asking again and again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from airflow_gpu_provider.cluster.informer import pool_nodes, watching
from airflow_gpu_provider.scaling.reconcile import Reconciler


@asynccontextmanager
async def pool_changes(reconciler: Reconciler) -> AsyncIterator[Callable[[float], Awaitable[None]]]:
    """Lend a function that returns when a node of the pool has changed, at the latest after the seconds it is given."""
    pool = reconciler.pool
    wants = pool_nodes(pool.node_selector)
    async with watching(pool.cluster_identity, reconciler.platform.cluster_access, wants) as feed:

        async def change(seconds: float) -> None:
            await feed.changes(seconds)

        yield change

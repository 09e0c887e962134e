"""pool_changes: hear at once when a pool's nodes change, instead of asking again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from airflow_gpu_provider.cluster.informer import Change, pool_nodes, unlabelled_nodes, watching
from airflow_gpu_provider.scaling.reconcile import Reconciler


@asynccontextmanager
async def pool_changes(reconciler: Reconciler) -> AsyncIterator[Callable[[float], Awaitable[None]]]:
    """Lend a function that returns when a node of the pool has changed, at the latest after the seconds it is given.

    Where others own the groups, it returns too when a node joins that is in no pool: it may be the pool's.
    """
    pool = reconciler.pool
    wants = pool_nodes(pool.node_selector)
    if pool.manage == "scale":
        wants = {**wants, unlabelled_nodes(): ""}
    async with watching(pool.cluster_identity, reconciler.platform.cluster_access, wants) as feed:
        known: set[str] = set()

        def is_news(change: Change) -> bool:
            if change.resource != unlabelled_nodes():
                return True
            name = change.raw.get("metadata", {}).get("name")
            if change.kind != "present" or name in known:
                return False
            known.add(name)
            return True

        async def change(seconds: float) -> None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + seconds
            while (left := deadline - loop.time()) > 0:
                if any([is_news(each) for each in await feed.changes(left)]):
                    return

        yield change

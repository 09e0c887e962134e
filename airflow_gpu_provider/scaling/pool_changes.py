"""pool_changes: notice at once when a pool's nodes change, instead of polling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.cluster.informer import Change, Feed, pool_nodes, unlabelled_nodes, watching
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pools import GpuPool


@asynccontextmanager
async def pool_changes(
    pool: GpuPool, open_access: Callable[[], ClusterAccess]
) -> AsyncIterator[Callable[[float], Awaitable[None]]]:
    """Yield a function that returns when a node of the pool has changed, at the latest after the given seconds.

    If nodes join without labels, it also returns when one joins that is in no pool: it may be the pool's. While the
    cluster cannot be found it only waits; each call tries again.

    Args:
        pool: The rendered spec.
        open_access: Finds the cluster; called in a thread.
    """
    wants = pool_nodes(pool.node_selector)
    if pool.nodes_join_unlabelled:
        wants = {**wants, unlabelled_nodes(): ""}
    async with AsyncExitStack() as stack:
        feed: Feed | None = None
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
            nonlocal feed
            loop = asyncio.get_running_loop()
            deadline = loop.time() + seconds
            if feed is None:
                try:
                    feed = await stack.enter_async_context(watching(pool.cluster_identity, open_access, wants))
                except GpuError:
                    await asyncio.sleep(max(0.0, deadline - loop.time()))
                    return
            while (left := deadline - loop.time()) > 0:
                if any([is_news(each) for each in await feed.changes(left)]):
                    return

        yield change

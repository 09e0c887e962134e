"""report_changes: notice at once when a pool's nodes change, instead of polling."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.cluster.informer import Change, watching
from airflow_gpu_provider.cluster.watched import pool_nodes, unlabelled_nodes
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pools import GpuPool

_log = logging.getLogger(__name__)

_AGAIN_AFTER = 15.0  # seconds
_LONGEST = 3600.0


async def report_changes(pool: GpuPool, open_access: Callable[[], ClusterAccess], report: Callable[[], None]) -> None:
    """Call `report` whenever a node of the pool has changed, until cancelled.

    If nodes join without labels, also when one joins that is in no pool: it may be the pool's. While the cluster
    cannot be found, nothing is reported.

    Args:
        pool: The rendered spec.
        open_access: Finds the cluster; called in a thread.
        report: Called in the event loop.
    """
    wants = pool_nodes(pool.node_selector)
    if pool.nodes_join_unlabelled:
        wants = {**wants, unlabelled_nodes(): ""}
    known: set[str] = set()

    def is_news(change: Change) -> bool:
        if change.resource != unlabelled_nodes():
            return True
        name = change.raw.get("metadata", {}).get("name")
        if change.kind != "present" or name in known:
            return False
        known.add(name)
        return True

    while True:
        try:
            async with watching(pool.cluster_identity, open_access, wants) as feed:
                while True:
                    if any([is_news(each) for each in await feed.changes(_LONGEST)]):
                        report()
        except GpuError as error:
            _log.info("Changes of pool %s are not heard: %s", pool.name, error)
        except Exception:  # noqa: BLE001 - the pool is looked at all the same
            _log.exception("Changes of pool %s are not heard", pool.name)
        await asyncio.sleep(_AGAIN_AFTER)

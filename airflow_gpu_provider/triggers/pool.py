"""The triggers that wait for a pool: NodesTrigger until its nodes are up, ReleaseTrigger until they are gone.

Both reconcile the pool while they wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool
from airflow_gpu_provider.cluster.api.threads import in_thread
from airflow_gpu_provider.scaling.wait.records import TriggerRecord
from airflow_gpu_provider.triggers.record import (
    RecordTrigger,
    has_returned,
    is_run_over,
    is_still_deferred,
    may_need_it,
)

if TYPE_CHECKING:
    from airflow_gpu_provider.scaling.wait.pool_loop import Wait, Write


RECORD_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class PoolRecord(TriggerRecord):
    """The row of a trigger that waits for a pool: in whose name it changes the groups, and takes the pool's lock."""

    version: int = field(default_factory=lambda: RECORD_VERSION)
    owner: str
    holder: str


class _PoolTrigger(RecordTrigger):
    """Reconciles the pool until the wait is over."""

    record_version = RECORD_VERSION
    every: ClassVar[float]

    @cached_property
    def _row(self) -> PoolRecord:
        return PoolRecord.from_record(self.record)

    async def _run(
        self, wait: Wait, first: Write | None = None, *, no_access_until: datetime | None = None
    ) -> Mapping[str, Any] | None:
        from airflow_gpu_provider.scaling.wait.pool_loop import run_wait

        pool, is_resumed = deserialize_pool(self._row.pool), has_returned(self.record)
        progress = await run_wait(
            wait,
            pool,
            self._row.owner,
            report=self.log.info,
            is_resumed=is_resumed,
            every=self.every,
            first=first,
            no_access_until=no_access_until,
        )
        return progress.result

    async def _release(self) -> None:
        """Withdraw the demand, and release what is no longer wanted; an error is only logged."""
        from airflow_gpu_provider.pools.demand_key import DemandKey
        from airflow_gpu_provider.scaling.apply.reconcile import open_pool
        from airflow_gpu_provider.scaling.end.release_now import release_quietly

        pool, holder = deserialize_pool(self._row.pool), f"{self._row.holder}+trigger"
        opened = partial(open_pool, pool, owner=self._row.owner, holder=holder, report=self.log.info)
        await in_thread(release_quietly, opened, DemandKey(**self._row.wait["key"]), log=self.log)


class NodesTrigger(_PoolTrigger):
    """Waits until a run's share of a pool's nodes is up, growing the pool as capacity allows."""

    every = 15.0

    async def _result(self) -> Mapping[str, Any] | None:
        from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait

        return await self._run(NodesWait.from_record(self._row.wait))

    async def undo(self) -> None:
        """Withdraw the run's demand: its task was marked failed, or its run has ended, while it waited.

        A cleared task's next try wants nodes again, and may have written its demand before this is called.
        """
        if not await may_need_it(self):
            await self._release()


class ReleaseTrigger(_PoolTrigger):
    """Waits until nothing is left that only this run wanted, releasing what becomes free.

    If its task is marked failed, the release continues by itself. Only a terminating pod may then still hold a machine,
    which is handled if the whole run has ended and nothing else would release it.
    """

    every = 5.0

    async def _result(self) -> Mapping[str, Any] | None:
        from airflow_gpu_provider.cluster.api.clock import SystemClock
        from airflow_gpu_provider.scaling.wait.release_wait import ReleaseWait
        from airflow_gpu_provider.scaling.wait.retry import NO_ACCESS_FOR

        wait = ReleaseWait.from_record(self._row.wait)
        if wait.begun:
            return await self._run(wait)
        return await self._run(wait, wait.release, no_access_until=SystemClock().now() + NO_ACCESS_FOR)

    async def undo(self) -> None:
        """Release what is still to be released, unless the task waits elsewhere or its run continues."""
        if not await is_still_deferred(self) and await is_run_over(self):
            await self._release()

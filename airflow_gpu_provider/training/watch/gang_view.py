"""GangView: what the watches show of a gang, and OneGang: how it is waited for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.api.informer import Feed
from airflow_gpu_provider.cluster.api.watched import Resource, gang_events, gang_pods, gangs, job_events
from airflow_gpu_provider.errors import LOST, GpuError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.wait.pool_updates import PoolUpdates
from airflow_gpu_provider.scaling.wait.records import Progress
from airflow_gpu_provider.training.log.followed_log import LAST_WORDS_WITHIN
from airflow_gpu_provider.training.log.object_logs import Logs
from airflow_gpu_provider.training.log.trigger_log import Log
from airflow_gpu_provider.training.wait.attempt_wait import AttemptWait, Silence
from airflow_gpu_provider.training.wait.gang_wait import GangSnapshot, GangWait
from airflow_gpu_provider.training.watch.object_view import ObjectView, OneObject
from airflow_gpu_provider.training.watch.view import OnPod

_STOPPED_WITHIN = 30.0  # seconds, Kubernetes' default grace period; what a rank prints goes with its pod


class GangView(ObjectView[int]):
    """What the feed has reported about one gang.

    All ranks share one watch of pods and one of events, with all gangs of the namespace. Until the gang is admitted,
    the pool's loop reconciles the pool, and admits it.
    """

    queues_pods = False  # it is admitted when its nodes are free
    _wait: GangWait

    def __init__(
        self,
        wait: GangWait,
        pool: GpuPool,
        feed: Feed,
        on_pod: OnPod | None = None,
        silence: Callable[[], Silence | None] = lambda: None,
    ) -> None:
        super().__init__(wait, pool, feed, on_pod, silence)
        self.is_admitted_here = not wait.queue
        self._gang = f"{wait.namespace}/{wait.name}"

    @classmethod
    def wants(cls, wait: AttemptWait) -> dict[Resource, str]:
        namespace = wait.namespace
        own = (gangs(namespace), gang_pods(namespace), gang_events(namespace), job_events(namespace))
        return dict.fromkeys(own, wait.name)

    def _is_own_job(self, name: str) -> bool:
        return name == self._wait.name

    @property
    def needs_pool_loop(self) -> bool:
        if self._object is None or self._is_gone:
            return False
        if self._object.is_suspended and not self.is_admitted_here:
            return False  # it is not demand yet
        placed = [pod for pod in self._there() if pod.scheduled_at]
        return self._object.is_suspended or len(placed) < self._wait.nodes

    def _why_refused(self) -> GpuError | None:
        """Return as well why it can never be admitted."""
        return super()._why_refused() or (self.pool_updates.gang_error(self._gang) if self.is_suspended else None)

    async def believes(self, error: GpuError, now: datetime) -> bool:
        """Return whether what was seen is enough to end the wait with this error.

        The watch of pods may be ahead of the one of Jobs: a suspended gang loses its pods, and nothing else. And if a
        watch has stalled, what was last seen may be outdated.
        """
        if not await super().believes(error, now):
            return False
        if not isinstance(error, LOST) or self._is_gone or self._evicted:
            return True
        try:
            raw = await self._feed.api.get(self._wait.path)
        except GpuError:
            return True
        if raw is None or raw["metadata"]["uid"] != self._wait.uid:
            self._gone.add(self._wait.uid)
            return True
        self._take_object(raw)
        return not self.is_suspended

    def _is_new(self, known: PoolUpdates) -> bool:
        update = self.pool_updates
        return (update.log_lines, update.gangs, update.gang_errors) != (known.log_lines, known.gangs, known.gang_errors)

    def snapshot(self, now: datetime) -> GangSnapshot:
        if len(self._newest()) >= self._wait.nodes:
            self._refused.forget()
        is_queued = self._waits_its_turn()
        if is_queued:
            self._queued_at = now
        return replace(
            super().snapshot(now),
            queued=self._queue.in_words or self.pool_updates.gangs.get(self._gang, ""),
            is_queued=is_queued,
            queued_at=self._queued_at if self._knows_nodes else now,
            silence=self._silence(),
        )

    def _waits_its_turn(self) -> bool:
        """Return True if it is not admitted although the pool has enough nodes for it, or Kueue decides its turn."""
        if self._object is None or not self._object.is_suspended:
            return False
        if not self.is_admitted_here:
            return not self._queue.is_absent
        return len(self._nodes.ready()) >= self._wait.nodes


@dataclass(frozen=True)
class OneGang(OneObject):
    """Its other ranks are ended as soon as one has failed and their logs are read: a worker starts seconds later."""

    wait: GangWait
    view_type = GangView

    async def finish(self, api: AsyncApi, progress: Progress, logs: Logs, log: Log) -> None:
        if progress.error is not None:
            await self._end_ranks(api, logs, log, had_pods=bool((progress.result or {}).get("pods")))

    async def _end_ranks(self, api: AsyncApi, logs: Logs, log: Log, *, had_pods: bool) -> None:
        """Have the running ranks deleted; those that have ended stay, and can be read.

        If a log is not followed, the ranks are left to the worker that reads it.
        """
        await logs.drain(LAST_WORDS_WITHIN)
        if not logs.is_whole:
            return
        body = {"metadata": {"uid": self.wait.uid}, "spec": {"parallelism": 0}}
        try:
            if await api.patch(self.wait.path, body) and had_pods:
                log(logging.INFO, "%s", "The ranks that still run are ended.")
        except GpuError as error:
            log(logging.WARNING, "The ranks that still run are left to a worker: %s", error)
            return
        await logs.drain(_STOPPED_WITHIN)

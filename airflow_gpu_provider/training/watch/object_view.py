"""ObjectView: what the watches show of an object and its pods, and how often the task's log reports it.

WorkloadView is the one of a workload, and OneWorkload how a workload is waited for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Generic

from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.api.informer import Change, Feed
from airflow_gpu_provider.cluster.api.watched import Resource, all_job_events, all_pod_events, workload_pods, workloads
from airflow_gpu_provider.cluster.model.pod_state import Json, PodState
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.wait.records import Progress
from airflow_gpu_provider.training.log.followed_log import LAST_WORDS_WITHIN
from airflow_gpu_provider.training.log.object_logs import Logs, ObjectLogs
from airflow_gpu_provider.training.log.trigger_log import Log
from airflow_gpu_provider.training.wait.attempt_wait import AttemptWait, Silence
from airflow_gpu_provider.training.wait.gang_wait import GangWait
from airflow_gpu_provider.training.wait.object_wait import ObjectSnapshot, ObjectWait, R, WorkloadState
from airflow_gpu_provider.training.wait.start_advice import RefusedPods
from airflow_gpu_provider.training.wait.workload_wait import WorkloadSnapshot, WorkloadWait
from airflow_gpu_provider.training.watch.view import LONGEST, OnPod, RunKind, View, Wanted

if TYPE_CHECKING:
    from airflow_gpu_provider.training.log.task_log import TaskLog


class ObjectView(View, Generic[R]):
    """What the feed has reported about one object, its pods, their events, and its pool's nodes.

    A subclass wants to watch the objects, their pods, the events about these, and those about Jobs, in this order.
    """

    shortest = 0.1
    end_together = True
    _wait: ObjectWait[R]
    _object: WorkloadState | None = None

    def __init__(
        self,
        wait: ObjectWait[R],
        pool: GpuPool,
        feed: Feed,
        on_pod: OnPod | None = None,
        silence: Callable[[], Silence | None] = lambda: None,
    ) -> None:
        super().__init__(wait, pool, feed, on_pod, silence)
        self._objects, self._pods, _, job_events = self.wants(wait)
        self._pace = Pace()
        self._refused = RefusedPods(job_events, self._is_own_job)
        self._was_admitted = False
        self._is_synced = False
        self._ranks: dict[str, R] = {}  # by the pods' uids
        self._queued_at: datetime | None = None

    @abstractmethod
    def _is_own_job(self, name: str) -> bool:
        """Return True for the name of a Job whose events count."""

    def look(self, now: datetime) -> tuple[Progress, datetime]:
        snapshot = self.snapshot(now)
        return self._wait.step(snapshot, now), self._wait.next_deadline(snapshot, now)

    def snapshot(self, now: datetime) -> ObjectSnapshot[R]:
        return ObjectSnapshot(
            object=self._object,
            gone=self._is_gone,
            is_unseen=self._went_unseen(self._wait.uid),
            pods={rank: self._seen(uid, now) for rank, uid in self._newest().items()},
            queued=self._queue.in_words,
            barred=self._barred(now),
            queued_at=self._queued_at,
            evicted=self._evicted,
            no_capacity=self.pool_updates.no_capacity,
            to_widen=self.pool_updates.to_widen or self._pool.how_to_widen,
            refused=self._refused.now(),
            notes=self._remarks,
        )

    @property
    def last_seen(self) -> tuple[Json, ...]:
        return tuple(self._raw[uid] for uid in self._newest().values())

    @property
    def is_suspended(self) -> bool:
        return self._object is not None and not self._is_gone and self._object.is_suspended

    def tells(self, lines: tuple[str, ...], now: datetime) -> bool:
        return self._pace.lets_pass(lines, now)

    @property
    def longest(self) -> float:
        return min(self._pace.longest, super().longest)

    # -- what no watch shows ---------------------------------------------------------------------------------

    @property
    def _is_blind(self) -> bool:
        return super()._is_blind or (not self._is_gone and self._has_no_answer(self._objects, [self._wait.name]))

    async def confirm(self, now: datetime) -> None:
        is_hidden = self._is_refused(self._objects) or (self._is_synced and self._wait.uid not in self._shown)
        if is_hidden and not self._is_gone:
            await self._confirm_object(now)
        await super().confirm(now)

    async def _confirm_object(self, now: datetime) -> None:
        if raw := await self._read(self._objects, self._wait.name, self._wait.uid, now):
            self._take_object(raw)

    def refusal(self, now: datetime) -> GpuError | None:
        return self._lasting(self._why_refused(), now)

    def _why_refused(self) -> GpuError | None:
        if self._object is not None and self._known:
            return None
        return self._trouble.get(self._objects) or self._trouble.get(self._pods)

    # -- what is reported ------------------------------------------------------------------------------------

    def take(self, changes: Iterable[Change], now: datetime) -> None:
        super().take(self._refused.take(changes), now)

    def _take(self, change: Change) -> None:
        if change.resource != self._objects:
            super()._take(change)
            return
        self._note_recovery(change)
        if change.kind == "synced":
            self._is_synced = True
        elif change.raw and change.raw["metadata"]["uid"] == self._wait.uid:
            self._show(change)
            self._take_object(change.raw)

    def _take_object(self, raw: Json) -> None:
        self._object = self._wait.parsed(raw)
        self._was_admitted = self._was_admitted or not self._object.is_suspended

    def _take_pod(self, change: Change) -> None:
        if change.raw and self._wait.rank_of(change.raw) is not None:
            self._show(change)
            self._take_state(change.raw)

    def _take_state(self, raw: Json) -> None:
        member = self._wait.member(raw)
        if member is None:
            return
        rank, state = member
        pod = state.following(self._known.get(state.uid))
        self._ranks[pod.uid], self._known[pod.uid], self._raw[pod.uid] = rank, pod, raw
        if self._on_pod is not None:
            self._on_pod(pod, raw, rank)

    # -- what the wait is told -------------------------------------------------------------------------------

    def _there(self) -> Iterator[PodState]:
        return (pod for uid, pod in self._known.items() if uid not in self._gone)

    def _newest(self) -> dict[R, str]:
        """Return the uid of each rank's newest pod; one that exists counts before one that is gone."""
        order = lambda uid: (uid not in self._gone, self._known[uid].created_at)  # noqa: E731
        return {self._ranks[uid]: uid for uid in sorted(self._known, key=order)}

    @property
    def _has_been_admitted(self) -> bool:
        """Whether it was seen unsuspended, or was suspended again by an eviction before this process watched it."""
        return self._was_admitted or self._queue.has_admitted

    def _barred(self, now: datetime) -> GpuError | None:
        waits = self.is_suspended and not self._has_been_admitted
        return self._queue.barred(self._wait.what, now) if waits else None

    @property
    def _evicted(self) -> str:
        """Why Kueue has evicted it after admitting it; if the reason is unknown, that it is suspended."""
        if not self._has_been_admitted:
            return ""
        is_taken_back = self._wait.queue and self.is_suspended and self._queue.is_unknown
        return self._queue.evicted or ("it is suspended again" if is_taken_back else "")


_PACE = timedelta(seconds=2)


class Pace:
    """Lets a line pass every two seconds: ranks change one after another, and the log reports the whole."""

    def __init__(self) -> None:
        self._passed: tuple[str, ...] = ()
        self._passed_at: datetime | None = None
        self._is_held = False

    @property
    def longest(self) -> float:
        """Seconds after which to check again although nothing was received."""
        return _PACE.total_seconds() if self._is_held else LONGEST

    def lets_pass(self, lines: tuple[str, ...], now: datetime) -> bool:
        if not lines or lines == self._passed:
            self._is_held = False
            return bool(lines)
        self._is_held = self._passed_at is not None and now - self._passed_at < _PACE
        if not self._is_held:
            self._passed, self._passed_at = lines, now
        return not self._is_held


class OneObject(RunKind):
    """An object and its pods."""

    wait: GangWait | WorkloadWait

    def logs(self, api: AsyncApi, wanted: Wanted, log: Log, task_log: TaskLog | None = None) -> ObjectLogs:
        return ObjectLogs(api, self.wait, wanted, log, task_log)

    async def pods(self, api: AsyncApi) -> list[Json]:
        path = f"api/v1/namespaces/{self.wait.namespace}/pods"
        found = await api.get(path, labelSelector=self.wait.pod_selector) or {}
        return [pod for pod in found.get("items") or () if self.wait.rank_of(pod) is not None]


class WorkloadView(ObjectView[str]):
    """What the feed has reported about one workload, which its own controller, or Kueue, admits."""

    _wait: WorkloadWait
    _ended_at: datetime | None = None

    @classmethod
    def wants(cls, wait: AttemptWait) -> dict[Resource, str]:
        """Return the objects of the kind, the pods of workloads, and events about any pods and Jobs."""
        assert isinstance(wait, WorkloadWait)
        own = {workloads(wait.path.rpartition("/")[0]): wait.name, workload_pods(wait.namespace): wait.task}
        return {**own, all_pod_events(wait.namespace): "", all_job_events(wait.namespace): ""}

    def _is_own_job(self, name: str) -> bool:
        """Return True for the Job itself, and for Jobs that JobSet and Trainer name after their owner."""
        return name == self._wait.name or name.startswith(f"{self._wait.name}-")

    @property
    def needs_pool_loop(self) -> bool:
        """Whether the pool has to be checked: pods wait for nodes; while suspended, it is not demand."""
        workload = self._object
        if workload is None or self._is_gone or workload.is_suspended or workload.end is not None:
            return False
        return any(pod.scheduled_at is None for pod in self._there())

    def snapshot(self, now: datetime) -> WorkloadSnapshot:
        workload = self._object
        if workload is not None and workload.is_suspended:
            self._queued_at = now
        if workload is not None and workload.end is not None:
            self._ended_at = self._ended_at or now
        return replace(
            super().snapshot(now),
            ended_at=self._ended_at,
            refused=self._refused.now() if not self._newest() else None,
        )


@dataclass(frozen=True)
class OneWorkload(OneObject):
    wait: WorkloadWait
    view_type = WorkloadView

    async def finish(self, api: AsyncApi, progress: Progress, logs: Logs, log: Log) -> None:
        await logs.drain(LAST_WORDS_WITHIN)

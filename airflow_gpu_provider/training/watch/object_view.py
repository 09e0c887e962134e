"""GangView: what the watches show of a gang, and how often the task's log reports it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from airflow_gpu_provider.cluster.informer import Change, Feed
from airflow_gpu_provider.cluster.pod_state import ATTEMPT_ANNOTATION, OWNER_ANNOTATION, Json, PodState
from airflow_gpu_provider.cluster.watched import (
    Resource,
    all_job_events,
    all_pod_events,
    gang_events,
    gang_pods,
    gangs,
    job_events,
    workload_pods,
    workloads,
)
from airflow_gpu_provider.errors import LOST, GpuError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.widening import how_to_widen
from airflow_gpu_provider.scaling.wait.pool_updates import PoolUpdates
from airflow_gpu_provider.training.place.kinds import KINDS
from airflow_gpu_provider.training.wait.gang_wait import GangSnapshot, Silence
from airflow_gpu_provider.training.wait.refused_pods import RefusedPods
from airflow_gpu_provider.training.wait.workload_state import JobState, WorkloadState, main_container, rank_of
from airflow_gpu_provider.training.wait.workload_wait import WorkloadSnapshot, WorkloadWait
from airflow_gpu_provider.training.watch.view import LONGEST, View

OnPod = Callable[[Any, PodState, Json], None]
"""Takes a rank, its pod and the pod's JSON."""


class GangView(View):
    """What the feed has reported about one gang: its Job, its pods, their events and its pool's nodes.

    All ranks share one watch of pods and one of events, with all gangs of the namespace. Until the gang is admitted,
    the pool's loop reconciles the pool, and admits it. `silence` returns for how long no rank has printed anything.
    """

    shortest = 0.1
    queues_pods = False  # it is admitted when its nodes are free
    end_together = True

    def __init__(
        self,
        wait: Any,
        pool: GpuPool,
        feed: Feed,
        on_pod: OnPod | None = None,
        silence: Callable[[], Silence | None] = lambda: None,
    ) -> None:
        super().__init__(wait, pool, feed, on_pod)
        self.is_admitted_here = not wait.queue
        self._silence = silence
        self._pace = Pace()
        self._gang = f"{wait.namespace}/{wait.name}"
        self._refused = RefusedPods(self._job_events(wait), self._is_own_job)
        self._was_admitted = False
        self._jobs, self._pods, *_ = self.wants(wait)
        self._job: Any = None
        self._is_synced = False
        self._ranks: dict[str, Any] = {}  # by the pods' uids
        self._queued_at: datetime | None = None

    @classmethod
    def wants(cls, wait: Any) -> dict[Resource, str]:
        """Return what to watch: the objects, their pods, and the events about these."""
        namespace = wait.namespace
        own = (gangs(namespace), gang_pods(namespace), gang_events(namespace), cls._job_events(wait))
        return dict.fromkeys(own, wait.name)

    @classmethod
    def _job_events(cls, wait: Any) -> Resource:
        return job_events(wait.namespace)

    def _is_own_job(self, name: str) -> bool:
        return bool(name == self._wait.name)

    def _parsed(self, raw: Json) -> Any:
        """Return the object as a record."""
        return JobState.of_job(raw)

    def _member(self, raw: Json) -> tuple[Any, PodState] | None:
        """Return the rank of one of the object's pods, and its state; None for a pod that does not count."""
        rank = rank_of(raw)
        if rank is None or all(each["uid"] != self._wait.uid for each in raw["metadata"].get("ownerReferences") or ()):
            return None
        return rank, PodState.parse(raw, self._wait.base_container)

    @property
    def last_seen(self) -> tuple[Json, ...]:
        return tuple(self._raw[uid] for uid in self._newest().values())

    @property
    def is_suspended(self) -> bool:
        return self._job is not None and not self._is_gone and bool(self._job.is_suspended)

    @property
    def needs_pool_loop(self) -> bool:
        if self._job is None or self._is_gone:
            return False
        if self._job.is_suspended and not self.is_admitted_here:
            return False  # it is not demand yet
        placed = [pod for pod in self._there() if pod.scheduled_at]
        return bool(self._job.is_suspended or len(placed) < self._wait.nodes)

    def tells(self, lines: tuple[str, ...], now: datetime) -> bool:
        return self._pace.lets_pass(lines, now)

    @property
    def longest(self) -> float:
        return min(self._pace.longest, super().longest)

    @property
    def _is_blind(self) -> bool:
        return super()._is_blind or (not self._is_gone and self._has_no_answer(self._jobs, [self._wait.name]))

    async def confirm(self, now: datetime) -> None:
        is_hidden = self._is_refused(self._jobs) or (self._is_synced and self._wait.uid not in self._shown)
        if is_hidden and not self._is_gone:
            await self._confirm_job(now)
        await super().confirm(now)

    async def _confirm_job(self, now: datetime) -> None:
        if raw := await self._read(self._jobs, self._wait.name, self._wait.uid, now):
            self._take_object(raw)

    def refusal(self, now: datetime) -> GpuError | None:
        """Return why the gang cannot be observed, or can never be admitted, once that has lasted."""
        error = self._trouble.get(self._jobs) or self._trouble.get(self._pods)
        if self._job is not None and self._known:
            error = None
        if self.is_suspended:
            error = error or self.pool_updates.gang_error(self._gang)
        return self._lasting(error, now)

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
            raw = await self._feed.api.get(f"{self._jobs.path}/{self._wait.name}")
        except GpuError:
            return True
        if raw is None or raw["metadata"]["uid"] != self._wait.uid:
            self._gone.add(self._wait.uid)
            return True
        self._take_object(raw)
        return not self.is_suspended

    def take(self, changes: Iterable[Change], now: datetime) -> None:
        super().take(self._refused.take(changes), now)

    def _take(self, change: Change) -> None:
        if change.resource == self._jobs:
            self._note_recovery(change)
            self._take_job(change)
        else:
            super()._take(change)

    def take_news(self, news: PoolUpdates) -> None:
        known = self.pool_updates
        is_new = (news.said, news.gangs, news.gang_errors) != (known.said, known.gangs, known.gang_errors)
        self.pool_updates = news
        if is_new:
            self._feed.wake()

    def snapshot(self, now: datetime) -> Any:
        if len(self._newest()) >= self._wait.nodes:
            self._refused.forget()
        is_queued = self._waits_its_turn()
        if is_queued:
            self._queued_at = now
        return GangSnapshot(
            job=self._job,
            gone=self._is_gone,
            is_unseen=self._is_unseen,
            ranks={rank: self._seen(uid, now) for rank, uid in self._newest().items()},
            queued=self._queue.in_words or self.pool_updates.gangs.get(self._gang, ""),
            evicted=self._evicted,
            is_queued=is_queued,
            queued_at=self._queued_at if self._knows_nodes else now,
            no_capacity=self.pool_updates.no_capacity,
            to_widen=how_to_widen(self._pool),
            silence=self._silence(),
            refused=self._refused.now(),
            notes=self._remarks,
        )

    def _there(self) -> Iterator[PodState]:
        return (pod for uid, pod in self._known.items() if uid not in self._gone)

    def _waits_its_turn(self) -> bool:
        """Return True if it is not admitted although the pool has enough nodes, or Kueue decides its turn."""
        if self._job is None or not self._job.is_suspended:
            return False
        if not self.is_admitted_here:
            return not self._queue.is_absent
        needed: int = self._wait.nodes
        return len(self._ready_nodes()) >= needed

    @property
    def _has_been_admitted(self) -> bool:
        """Whether it was seen unsuspended, or was suspended again by an eviction before this process watched it."""
        suspended_at, evicted_at = getattr(self._job, "suspended_at", None), self._queue.evicted_at
        return self._was_admitted or bool(suspended_at and evicted_at and suspended_at >= evicted_at)

    @property
    def _evicted(self) -> str:
        """Why Kueue has evicted it after admitting it; if the reason is unknown, that it is suspended."""
        if not self._has_been_admitted:
            return ""
        is_taken_back = self._wait.queue and self.is_suspended and self._queue.is_unknown
        return self._queue.evicted or ("it is suspended again" if is_taken_back else "")

    def _newest(self) -> dict[Any, str]:
        """Return the uid of each rank's newest pod; one that exists counts before one that is gone."""
        order = lambda uid: (uid not in self._gone, self._known[uid].created_at)  # noqa: E731
        return {self._ranks[uid]: uid for uid in sorted(self._known, key=order)}

    def _take_job(self, change: Change) -> None:
        if change.kind == "synced":
            self._is_synced = True
        elif change.raw and change.raw["metadata"]["uid"] == self._wait.uid:
            self._show(change)
            self._take_object(change.raw)

    def _take_object(self, raw: Json) -> None:
        self._job = self._parsed(raw)
        self._was_admitted = self._was_admitted or not self._job.is_suspended

    def _take_pod(self, change: Change) -> None:
        if change.raw and self._member(change.raw) is not None:
            self._show(change)
            self._take_state(change.raw)

    def _take_state(self, raw: Json) -> None:
        member = self._member(raw)
        if member is None:
            return
        rank, pod = member
        self._ranks[pod.uid], self._known[pod.uid], self._raw[pod.uid] = rank, pod, raw
        if self._on_pod is not None:
            self._on_pod(rank, pod, raw)


_PACE = timedelta(seconds=2)


class Pace:
    """Lets a line pass every two seconds: ranks change one after another, and the log reports the whole."""

    def __init__(self) -> None:
        self._told: tuple[str, ...] = ()
        self._told_at: datetime | None = None
        self._is_held = False

    @property
    def longest(self) -> float:
        """Seconds after which to check again although nothing was received."""
        return _PACE.total_seconds() if self._is_held else LONGEST

    def lets_pass(self, lines: tuple[str, ...], now: datetime) -> bool:
        if not lines or lines == self._told:
            self._is_held = False
            return bool(lines)
        self._is_held = self._told_at is not None and now - self._told_at < _PACE
        if not self._is_held:
            self._told, self._told_at = lines, now
        return not self._is_held


class WorkloadView(GangView):
    """What the feed has reported about one workload: the object, its pods, their events and its pool's nodes."""

    _wait: WorkloadWait
    _job: WorkloadState | None
    _ended_at: datetime | None = None
    queues_pods = True

    believes = View.believes  # its own status decides when it ends

    @classmethod
    def wants(cls, wait: WorkloadWait) -> dict[Resource, str]:
        """Return what to watch: the objects of the kind, the pods of workloads, and events about any pods."""
        objects = workloads(wait.path.rpartition("/")[0])
        own = {objects: wait.name, workload_pods(wait.namespace): wait.task}
        return {**own, all_pod_events(wait.namespace): "", cls._job_events(wait): ""}

    @classmethod
    def _job_events(cls, wait: WorkloadWait) -> Resource:
        return all_job_events(wait.namespace)

    def _is_own_job(self, name: str) -> bool:
        """Return True for the Job itself, and for Jobs that JobSet and Trainer name after their owner."""
        return name == self._wait.name or name.startswith(f"{self._wait.name}-")

    def __init__(self, *what: Any, **told: Any) -> None:
        super().__init__(*what, **told)
        self.is_admitted_here = False  # its own controller, or Kueue, admits a workload

    @property
    def needs_pool_loop(self) -> bool:
        """Whether the pool has to be checked: pods wait for nodes; while suspended, it is not demand."""
        if self._job is None or self._is_gone or self._job.is_suspended or self._job.end is not None:
            return False
        return any(pod.scheduled_at is None for pod in self._there())

    def snapshot(self, now: datetime) -> WorkloadSnapshot:
        """Return what is known now."""
        workload = self._job
        if workload is not None and workload.is_suspended:
            self._queued_at = now
        if workload is not None and workload.end is not None:
            self._ended_at = self._ended_at or now
        return WorkloadSnapshot(
            workload=workload,
            gone=self._is_gone,
            is_unseen=self._is_unseen,
            pods={title: self._seen(uid, now) for title, uid in self._newest().items()},
            ended_at=self._ended_at,
            queued=self._queue.in_words,
            evicted=self._queue.evicted or self._evicted,
            refused=self._refused.now() if not self._newest() else None,
            queued_at=self._queued_at,
            notes=self._remarks,
        )

    def _parsed(self, raw: Json) -> WorkloadState:
        return WorkloadState.parse(raw, KINDS[self._wait.kind])

    def _member(self, raw: Json) -> tuple[str, PodState] | None:
        annotations = raw["metadata"].get("annotations") or {}
        attempt = (annotations.get(OWNER_ANNOTATION), annotations.get(ATTEMPT_ANNOTATION))
        if attempt != (self._wait.try_id, str(self._wait.attempt)):
            return None
        return KINDS[self._wait.kind].pod_title(raw), PodState.parse(raw, main_container(raw))

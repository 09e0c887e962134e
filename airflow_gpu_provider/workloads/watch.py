"""watch_gang: the loop around GangWait.step, for the trigger and for the blocking operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.cluster.events import PodEvent
from airflow_gpu_provider.cluster.informer import Change, Feed, troubles_in_words, watching
from airflow_gpu_provider.cluster.nodes import Node
from airflow_gpu_provider.cluster.pod_state import Json, PodState
from airflow_gpu_provider.cluster.unshown import Unshown
from airflow_gpu_provider.cluster.watched import NODES, Resource, gang_events, gang_pods, gangs, job_events, pool_nodes
from airflow_gpu_provider.errors import ClusterUnreachable, GpuError, PodPreempted
from airflow_gpu_provider.patience import Patience
from airflow_gpu_provider.pods.kueue import KueueQueue
from airflow_gpu_provider.pods.wait import PodSnapshot
from airflow_gpu_provider.pods.watch import cluster_access
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling import pool_news
from airflow_gpu_provider.scaling.pool_news import PoolNews
from airflow_gpu_provider.scaling.wait_loop import Narrator
from airflow_gpu_provider.scaling.waits import Progress
from airflow_gpu_provider.workloads.gang_wait import GangSnapshot, GangWait
from airflow_gpu_provider.workloads.job_state import JobState, rank_of
from airflow_gpu_provider.workloads.refused_pods import RefusedPods
from airflow_gpu_provider.workloads.silence import Silence

_LONGEST = 60.0
_BLIND_PAUSE = 5.0
_PACE = timedelta(seconds=2)

OnPod = Callable[[Any, PodState, Json], None]
"""Takes a rank, its pod and the pod's JSON."""


async def watch_gang(
    pool: GpuPool,
    wait: GangWait,
    *,
    owner: str,
    narrator: Narrator,
    open_access: Callable[[], ClusterAccess] | None = None,
    on_pod: OnPod | None = None,
    silence: Callable[[], Silence | None] = lambda: None,
) -> Progress:
    """Wait for a gang, without polling; returns how the wait ended, errors included.

    All ranks share one watch of pods and one of events, with all gangs of the namespace. While the gang is not
    admitted, the pool's keeper looks after the pool, and admits it. Arguments and errors as for `watch_pod`;
    `silence` says for how long no rank has printed anything.
    """
    return await watch_object(
        GangView,
        pool,
        wait,
        owner=owner,
        narrator=narrator,
        open_access=open_access,
        on_pod=on_pod,
        silence=silence,
    )


async def watch_object(
    view_of: type[GangView],
    pool: GpuPool,
    wait: Any,
    *,
    owner: str,
    narrator: Narrator,
    open_access: Callable[[], ClusterAccess] | None = None,
    on_pod: OnPod | None = None,
    silence: Callable[[], Silence | None] = lambda: None,
) -> Progress:
    """Wait for an object and its pods, as for a gang.

    `view_of` is what the watches tell of it, in the form by which `wait` steps.
    """
    queue = KueueQueue(wait.namespace, wait.queue, wait.uid)
    wants = {**view_of.wants(wait), **queue.wants(), **pool_nodes(pool.node_selector)}
    open_access = open_access or partial(cluster_access, pool)
    async with watching(pool.cluster_identity, open_access, wants) as feed:
        view, pace = view_of(wait, pool, feed, on_pod, silence), _Pace()
        try:
            while True:
                now = await feed.api.now()
                await view.confirm(now)
                snapshot = view.snapshot(now)
                progress: Progress = wait.step(snapshot, now)
                if progress.error and not await view.believes(progress.error, now):
                    progress = Progress(lines=progress.lines)
                is_over = progress.done or progress.error is not None
                if is_over or pace.lets_pass(progress.lines, now):
                    narrator.log(now, *progress.lines)
                if progress.done or progress.error:
                    return progress
                if refusal := view.refusal(now):
                    return Progress(error=refusal)
                await _keep_pool(view, pool, owner)
                seconds = (wait.next_deadline(snapshot, now) - now).total_seconds()
                view.take(await feed.changes(timeout=min(max(seconds, view.pause), pace.longest)))
        finally:
            await pool_news.leave(pool, owner, view.take_news)


async def _keep_pool(view: GangView, pool: GpuPool, owner: str) -> None:
    """Have the pool looked after exactly while the gang waits to be admitted, or for a node."""
    if view.needs_keeper and not view.is_kept:
        view.is_kept = True
        pool_news.keep(pool, owner, view.take_news, admits=view.is_admitted_here)
    elif view.is_kept and not view.needs_keeper:
        view.is_kept = False
        view.pool_news = PoolNews()
        await pool_news.leave(pool, owner, view.take_news)


class _Pace:
    """Lets a line pass every two seconds: ranks change one after another, and the whole is what is told."""

    def __init__(self) -> None:
        self._told: tuple[str, ...] = ()
        self._told_at: datetime | None = None
        self._is_held = False

    @property
    def longest(self) -> float:
        """Seconds after which to look again though nothing was heard."""
        return _PACE.total_seconds() if self._is_held else _LONGEST

    def lets_pass(self, lines: tuple[str, ...], now: datetime) -> bool:
        if not lines or lines == self._told:
            self._is_held = False
            return bool(lines)
        self._is_held = self._told_at is not None and now - self._told_at < _PACE
        if not self._is_held:
            self._told, self._told_at = lines, now
        return not self._is_held


class GangView:
    """What the feed has told so far about one gang: its Job, its pods, their events and its pool's nodes."""

    def __init__(
        self,
        wait: Any,
        pool: GpuPool,
        feed: Feed,
        on_pod: OnPod | None = None,
        silence: Callable[[], Silence | None] = lambda: None,
    ) -> None:
        self._wait = wait
        self._pool = pool
        self._feed = feed
        self._on_pod = on_pod
        self._silence = silence
        self._gang = f"{wait.namespace}/{wait.name}"
        self._queue = KueueQueue(wait.namespace, wait.queue, wait.uid)
        self._refused = RefusedPods(self._job_events(wait), self._is_own_job)
        self._was_admitted = False
        self._jobs, self._pods, *_ = self.wants(wait)
        self._patience = Patience(wait.deadline, worked=True)
        self._job: Any = None
        self._is_gone = False
        self._is_synced = False
        self._states: dict[str, tuple[Any, PodState]] = {}  # by the pods' uids
        self._gone: set[str] = set()
        self._events: dict[str, PodEvent] = {}
        self._nodes: dict[str, Node] = {}
        self._machines: dict[str, str] = {}
        self._gone_nodes: set[str] = set()
        self._trouble: dict[Resource, GpuError] = {}
        self._queued_at: datetime | None = None
        self._unshown = Unshown(feed)
        self.pool_news = PoolNews()
        self.is_kept = False

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
        return JobState.parse(raw)

    def _member(self, raw: Json) -> tuple[Any, PodState] | None:
        """Return the rank of a pod of the object, and how it stands; None for one that does not count."""
        rank = rank_of(raw)
        if rank is None or all(each["uid"] != self._wait.uid for each in raw["metadata"].get("ownerReferences") or ()):
            return None
        return rank, PodState.parse(raw, self._wait.base_container)

    @property
    def is_admitted_here(self) -> bool:
        """Whether the pool's keeper is to admit it while it is suspended; else Kueue does."""
        return not self._wait.queue

    @property
    def is_suspended(self) -> bool:
        return self._job is not None and not self._is_gone and bool(self._job.is_suspended)

    @property
    def needs_keeper(self) -> bool:
        if self._job is None or self._is_gone:
            return False
        if self._job.is_suspended and not self.is_admitted_here:
            return False  # it is no demand yet
        placed = [uid for uid, (_, pod) in self._states.items() if pod.scheduled_at and uid not in self._gone]
        return bool(self._job.is_suspended or len(placed) < self._wait.nodes)

    @property
    def pause(self) -> float:
        """Seconds within which not to look again, though a deadline is over."""
        return _BLIND_PAUSE if self._is_blind else 0.1

    @property
    def _is_blind(self) -> bool:
        return any(isinstance(self._trouble.get(each), ClusterUnreachable) for each in (self._jobs, self._pods))

    async def confirm(self, now: datetime) -> None:
        """Ask for the Job where the watch does not show it: it lags, or the Job was deleted before it could be seen."""
        if self._job is None and self._is_synced and not self._is_gone:
            answer = await self._unshown.ask(self._job_path, self._wait.uid, now)
            if answer is not None:
                self._is_gone = answer.raw is None
                self._job = self._parsed(answer.raw) if answer.raw is not None else None

    @property
    def _job_path(self) -> str:
        return f"{self._jobs.path}/{self._wait.name}"

    def refusal(self, now: datetime) -> GpuError | None:
        """Return why nothing can be known of the gang, or it can never be admitted, where that has lasted."""
        error = self._trouble.get(self._jobs) or self._trouble.get(self._pods)
        if self._job is not None and self._states:
            error = None
        if self.is_suspended:
            error = error or self.pool_news.gang_error(self._gang)
        if error is None:
            self._patience.succeeded()
            return None
        return None if self._patience.bears(error, now) else error

    async def believes(self, error: GpuError, now: datetime) -> bool:
        """Return whether what was seen is enough to end the wait with this error.

        The watch of pods may be ahead of the one of Jobs: a gang that is suspended loses its pods, and nothing else.
        And where a watch stands still, what was last seen may be over.
        """
        if self._is_blind and now < self._wait.deadline:
            return False
        if not isinstance(error, PodPreempted) or self._is_gone or self._evicted:
            return True
        try:
            raw = await self._feed.api.get(self._job_path)
        except GpuError:
            return True
        if raw is None or raw["metadata"]["uid"] != self._wait.uid:
            self._is_gone = True
            return True
        self._job = self._parsed(raw)
        return not self.is_suspended

    def take(self, changes: list[Change]) -> None:
        """Take what the feed tells."""
        for change in self._refused.take(self._queue.take(changes)):
            if change.kind == "trouble" and change.error:
                self._trouble[change.resource] = change.error
                continue
            self._trouble.pop(change.resource, None)
            if change.resource == self._jobs:
                self._take_job(change)
            elif change.resource == self._pods:
                self._take_pod(change)
            elif change.resource.path == NODES:
                self._take_node(change)
            elif change.kind == "present":
                event = PodEvent.parse(change.raw)
                self._events[event.uid] = event

    def take_news(self, news: PoolNews) -> None:
        """Take what the pool's keeper says."""
        known = self.pool_news
        is_new = (news.said, news.gangs, news.gang_errors) != (known.said, known.gangs, known.gang_errors)
        self.pool_news = news
        if is_new:
            self._feed.wake()

    def snapshot(self, now: datetime) -> Any:
        """Return what is known now, in the form by which the wait steps."""
        if len(self._newest()) >= self._wait.nodes:
            self._refused.forget()
        is_queued = self._is_queued()
        if is_queued:
            self._queued_at = now
        return GangSnapshot(
            job=self._job,
            gone=self._is_gone,
            ranks={rank: self._seen(uid) for rank, uid in self._newest().items()},
            queued=self._queue.in_words or self.pool_news.gangs.get(self._gang, ""),
            evicted=self._evicted,
            is_queued=is_queued,
            queued_at=self._queued_at,
            no_capacity=self.pool_news.no_capacity,
            silence=self._silence(),
            refused=self._refused.now(),
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        return (*self.pool_news.said, *troubles_in_words(self._trouble.values()))

    def _there(self) -> Iterator[PodState]:
        return (pod for uid, (_, pod) in self._states.items() if uid not in self._gone)

    def _is_queued(self) -> bool:
        """Return True if it is not admitted though as many nodes as it needs are there, or Kueue has its turn."""
        if self._job is None or not self._job.is_suspended:
            return False
        if not self.is_admitted_here:
            return not self._queue.is_absent
        needed: int = self._wait.nodes
        return sum(node.usable and node.gpus > 0 for node in self._nodes.values()) >= needed

    @property
    def _has_been_admitted(self) -> bool:
        """Whether it was seen unsuspended, or was suspended anew for its eviction, before anybody looked here."""
        suspended_at, evicted_at = getattr(self._job, "suspended_at", None), self._queue.evicted_at
        return self._was_admitted or bool(suspended_at and evicted_at and suspended_at >= evicted_at)

    @property
    def _evicted(self) -> str:
        """Why Kueue has taken its place away, once it had admitted it; where nobody says it, that it is suspended."""
        if not self._has_been_admitted:
            return ""
        is_taken_back = self._wait.queue and self.is_suspended and self._queue.is_unknown
        return self._queue.evicted or ("it is suspended again" if is_taken_back else "")

    def _newest(self) -> dict[Any, str]:
        """Return the uid of each rank's newest pod; one that is there counts before one that is gone."""
        order = lambda uid: (uid not in self._gone, self._states[uid][1].created_at)  # noqa: E731
        return {self._states[uid][0]: uid for uid in sorted(self._states, key=order)}

    def _seen(self, uid: str) -> PodSnapshot:
        _, pod = self._states[uid]
        return PodSnapshot(
            pod=pod,
            gone=uid in self._gone,
            node_gone=pod.node in self._gone_nodes,
            machine=self._machines.get(pod.node or "", ""),
            events=tuple(sorted(self._events_of(uid), key=lambda event: event.at)),
            nodes=tuple(node for node in self._nodes.values() if node.name == pod.node),
            no_capacity=self.pool_news.no_capacity,
        )

    def _events_of(self, uid: str) -> Iterator[PodEvent]:
        return (event for event in self._events.values() if event.pod_uid == uid)

    def _take_job(self, change: Change) -> None:
        if change.kind == "synced":
            self._is_synced = True
        elif change.raw and change.raw["metadata"]["uid"] == self._wait.uid:
            self._is_gone = change.kind == "gone"
            self._job = self._parsed(change.raw)
            self._was_admitted = self._was_admitted or not self._job.is_suspended

    def _take_pod(self, change: Change) -> None:
        member = self._member(change.raw) if change.raw else None
        if member is None:
            return
        rank, pod = member
        self._states[pod.uid] = (rank, pod)
        (self._gone.add if change.kind == "gone" else self._gone.discard)(pod.uid)
        if self._on_pod is not None:
            self._on_pod(rank, pod, change.raw)

    def _take_node(self, change: Change) -> None:
        if change.kind == "present":
            node = Node.parse(dict(change.raw))
            self._nodes[node.uid] = node
            self._machines[node.name] = node.machine
            self._gone_nodes.discard(node.name)
        elif change.kind == "gone":
            self._nodes.pop(change.raw["metadata"]["uid"], None)
            self._gone_nodes.add(change.raw["metadata"]["name"])

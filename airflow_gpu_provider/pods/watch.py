"""watch: the loop that drives a wait for pods, for the trigger and for the blocking operator; and View."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.cluster.events import PodEvent
from airflow_gpu_provider.cluster.informer import Change, Feed, watching
from airflow_gpu_provider.cluster.nodes import Node
from airflow_gpu_provider.cluster.pod_state import Json
from airflow_gpu_provider.cluster.pods import Pod
from airflow_gpu_provider.cluster.threads import in_thread
from airflow_gpu_provider.cluster.unshown import AFTER_FAILURE, Unshown
from airflow_gpu_provider.cluster.usage import record_pods
from airflow_gpu_provider.cluster.watched import NODES, Resource, pool_nodes
from airflow_gpu_provider.errors import LOST, GpuError
from airflow_gpu_provider.patience import Patience
from airflow_gpu_provider.platforms.base import platform_for
from airflow_gpu_provider.pods.kueue import KueueQueue
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling import pool_news
from airflow_gpu_provider.scaling.pool_news import PoolNews
from airflow_gpu_provider.scaling.wait_loop import Narrator
from airflow_gpu_provider.scaling.waits import Progress

LONGEST = 60.0


def cluster_access(pool: GpuPool) -> ClusterAccess:
    """Find the (rendered) pool's cluster; makes cloud calls, so call it in a thread if there is an event loop."""
    return platform_for(pool).cluster_access()


async def watch(
    view_of: Any,
    pool: GpuPool,
    wait: Any,
    *,
    owner: str,
    narrator: Narrator,
    open_access: Callable[[], ClusterAccess] | None = None,
    **told: Any,
) -> Progress:
    """Wait for a pod, or an object and its pods, without polling; returns how the wait ended, errors included.

    While a pod has no node, the pool is kept at its size (see pool_news).

    Args:
        view_of: What the watches show, in the form that `wait` needs.
        pool: The rendered spec.
        wait: What is waited for.
        owner: Who writes the groups' spec, "<installation>/<dag>".
        narrator: Writes what is new to the task's log.
        open_access: Finds the cluster; called in a thread. Default: by the pool's platform.
        **told: More arguments of the view, such as `on_pod`.

    Raises:
        GpuError: The cluster, or credentials for it, cannot be found.
    """
    queue = KueueQueue(wait.namespace, wait.queue, wait.uid)
    wants = {**view_of.wants(wait), **queue.wants(), **pool_nodes(pool.node_selector)}
    open_access = open_access or partial(cluster_access, pool)
    async with watching(pool.cluster_identity, open_access, wants) as feed:
        view = view_of(wait, pool, feed, **told)
        try:
            while True:
                now = await feed.api.now()
                await view.confirm(now)
                snapshot = view.snapshot(now)
                progress: Progress = wait.step(snapshot, now)
                if progress.error and not await view.believes(progress.error, now):
                    progress = Progress(lines=progress.lines)
                is_over = progress.done or progress.error is not None
                if is_over or view.tells(progress.lines, now):
                    narrator.log(now, *progress.lines)
                if isinstance(progress.error, LOST) and view.raw is not None:
                    await in_thread(_note_lost, view.raw, now, open_access, narrator)
                if is_over:
                    return progress
                if refusal := view.refusal(now):
                    return Progress(error=refusal)
                await _keep_pool(view, pool, owner)
                seconds = (wait.next_deadline(snapshot, now) - now).total_seconds()
                changes = await feed.changes(timeout=min(max(seconds, view.pause), view.longest))
                view.take(changes, await feed.api.now())
        finally:
            await pool_news.leave(pool, owner, view.take_news)


def _note_lost(pod: Json, now: datetime, open_access: Callable[[], ClusterAccess], narrator: Narrator) -> None:
    """Record when a lost pod ran, for its run's bill: it may not be found later."""
    try:
        record_pods(open_access().api_client(), [Pod.parse(dict(pod))], now)
    except GpuError as error:
        narrator.log(now, f"the pod's run time could not be recorded for the run's bill: {error}")


async def _keep_pool(view: Any, pool: GpuPool, owner: str) -> None:
    """Keep the pool reconciled exactly while the view needs it."""
    if view.needs_keeper and not view.is_kept:
        view.is_kept = True
        pool_news.keep(pool, owner, view.take_news, admits=view.is_admitted_here)
    elif view.is_kept and not view.needs_keeper:
        view.is_kept = False
        view.pool_news = PoolNews()
        await pool_news.leave(pool, owner, view.take_news)


class View(ABC):
    """What the feed has reported about the object of the wait, its pods' events, and its pool's nodes.

    A subclass says what else to watch (`wants`), in which form the wait takes it (`snapshot`), and when the pool has to
    be reconciled (`needs_keeper`). It reads what the watches do not show (`confirm`), takes the keeper's news
    (`take_news`), and says why nothing can be observed, once that has lasted (`refusal`).

    Args:
        wait: What is waited for.
        pool: The rendered spec.
        feed: The source of changes.
        on_pod: Called with each state of a pod, and its JSON.

    Attributes:
        raw: For a single pod, its JSON as last seen.
        is_admitted_here: The pool's keeper admits it while it is suspended; otherwise Kueue or its controller does.
        shortest: Seconds within which not to check again, although a deadline has passed.
    """

    raw: Json | None = None
    is_admitted_here = False
    shortest: ClassVar[float] = 0.0
    _pods: Resource

    def __init__(self, wait: Any, pool: GpuPool, feed: Feed, on_pod: Callable[..., None] | None = None) -> None:
        self._wait = wait
        self._pool = pool
        self._feed = feed
        self._on_pod = on_pod
        self._queue = KueueQueue(wait.namespace, wait.queue, wait.uid)
        self._patience = Patience(wait.deadline, worked=True)  # the object of the wait was created with the same access
        self._events: dict[str, PodEvent] = {}
        self._nodes: dict[str, Node] = {}
        self._machines: dict[str, str] = {}
        self._gone_nodes: set[str] = set()
        self._node_watches = pool_nodes(pool.node_selector).keys()
        self._nodes_synced: set[Resource] = set()
        self._trouble: dict[Resource, GpuError] = {}
        self._unshown = Unshown(feed)
        self.pool_news = PoolNews()
        self.is_kept = False

    @property
    @abstractmethod
    def _is_blind(self) -> bool:
        """Whether the last known state may be outdated because the API server is unreachable."""

    @abstractmethod
    def _take_pod(self, change: Change) -> None: ...

    async def believes(self, error: GpuError, now: datetime) -> bool:
        """Return whether what was seen is enough to end the wait with this error: outdated state may have changed."""
        return not self._is_blind or now >= self._wait.deadline

    def tells(self, lines: tuple[str, ...], now: datetime) -> bool:
        """Return True if the present state should be logged."""
        return bool(lines)

    @property
    def pause(self) -> float:
        """Seconds within which not to check again, although a deadline has passed."""
        return AFTER_FAILURE.total_seconds() if self._is_blind else self.shortest

    @property
    def longest(self) -> float:
        """Seconds after which to check again although nothing was received."""
        return AFTER_FAILURE.total_seconds() if self._unshown.failures else LONGEST

    def take(self, changes: Iterable[Change], now: datetime) -> None:
        """Take the feed's changes."""
        for change in self._queue.take(changes):
            if change.kind == "trouble" and change.error:
                self._trouble[change.resource] = change.error
                continue
            self._trouble.pop(change.resource, None)
            self._take(change)

    def _take(self, change: Change) -> None:
        if change.resource == self._pods:
            self._take_pod(change)
        elif change.resource.path == NODES:
            self._take_node(change)
        elif change.kind == "present":
            event = PodEvent.parse(change.raw)
            if not event.is_of_autoscaler_that_adds_none or self._pool.is_grown_by_cluster_autoscaler:
                self._events[event.uid] = event

    def _take_node(self, change: Change) -> None:
        if change.kind == "present":
            node = Node.parse(dict(change.raw))
            self._nodes[node.uid] = node
            self._machines[node.name] = node.machine
            self._gone_nodes.discard(node.name)
        elif change.kind == "gone":
            metadata = change.raw["metadata"]
            self._nodes.pop(metadata["uid"], None)
            self._lose_node(metadata["name"], metadata["uid"])
        elif change.kind == "synced":
            self._nodes_synced.add(change.resource)

    def _lose_node(self, name: str, uid: str) -> None:
        """Note that no watch shows a node any more. Default: it is gone."""
        self._gone_nodes.add(name)

    def _lasting(self, error: GpuError | None, now: datetime) -> GpuError | None:
        """Return a refusal that has lasted longer than it is tolerated."""
        if error is None:
            self._patience.succeeded()
            return None
        return None if self._patience.bears(error, now) else error

    def _events_of(self, uid: str) -> tuple[PodEvent, ...]:
        return tuple(sorted((e for e in self._events.values() if e.pod_uid == uid), key=lambda event: event.at))

    @property
    def _knows_nodes(self) -> bool:
        """Whether each watch of the pool's nodes has shown them, or has failed: each has a connection of its own."""
        return self._node_watches <= self._nodes_synced | self._trouble.keys()

    def _ready_nodes(self) -> list[Node]:
        return [node for node in self._nodes.values() if node.usable and node.gpus > 0]

"""watch_pod: the loop around PodWait.step, for the trigger and for the blocking operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial

from airflow_gpu_provider.accelerators import NodeSize
from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.cluster.events import PodEvent
from airflow_gpu_provider.cluster.informer import Change, Feed, troubles_in_words, watching
from airflow_gpu_provider.cluster.nodes import Node
from airflow_gpu_provider.cluster.pod_state import Json, PodState
from airflow_gpu_provider.cluster.pods import Pod
from airflow_gpu_provider.cluster.threads import in_thread
from airflow_gpu_provider.cluster.unshown import AFTER_FAILURE, Unshown
from airflow_gpu_provider.cluster.usage import record_pods
from airflow_gpu_provider.cluster.watched import NODES, Resource, pod_events, pods, pool_nodes
from airflow_gpu_provider.errors import ClusterUnreachable, GpuError, PodPreempted, PodUnschedulable
from airflow_gpu_provider.patience import Patience
from airflow_gpu_provider.platforms.base import platform_for
from airflow_gpu_provider.pods.fit import check_fits, not_on_any, requests_of, size_of, waits_for_other_pods
from airflow_gpu_provider.pods.kueue import KueueQueue
from airflow_gpu_provider.pods.wait import PodSnapshot, PodWait
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.base import POOL_LABEL
from airflow_gpu_provider.scaling import pool_news
from airflow_gpu_provider.scaling.pool_news import PoolNews
from airflow_gpu_provider.scaling.wait_loop import Narrator
from airflow_gpu_provider.scaling.waits import Progress

_LONGEST = 60.0


def cluster_access(pool: GpuPool) -> ClusterAccess:
    """Find the (rendered) pool's cluster; makes cloud calls, so call it in a thread where there is an event loop."""
    return platform_for(pool).cluster_access()


async def watch_pod(
    pool: GpuPool,
    wait: PodWait,
    *,
    owner: str,
    narrator: Narrator,
    open_access: Callable[[], ClusterAccess] | None = None,
    on_pod: Callable[[PodState, Json], None] | None = None,
) -> Progress:
    """Wait for a pod, without polling; returns how the wait ended, errors included.

    While the pod has no node, the pool is kept at its size (see pool_news).

    Args:
        pool: The rendered spec.
        wait: What is waited for.
        owner: Who writes the groups' spec, "<installation>/<dag>".
        narrator: Tells the task's log what is new.
        open_access: Finds the cluster; called in a thread. Default: by the pool's platform.
        on_pod: Told of each state of the pod, and its JSON.

    Raises:
        GpuError: The cluster, or credentials for it, cannot be found.
    """
    own = dict.fromkeys((pods(wait.namespace), pod_events(wait.namespace)), wait.name)
    queue = KueueQueue(wait.namespace, wait.queue, wait.uid)
    wants = {**own, **queue.wants(), **pool_nodes(pool.node_selector)}
    open_access = open_access or partial(cluster_access, pool)
    async with watching(pool.cluster_identity, open_access, wants) as feed:
        view = PodView(wait, pool, feed, on_pod)
        try:
            while True:
                now = await feed.api.now()
                await view.confirm(now)
                snapshot = view.snapshot(now)
                progress = view.believed(wait.step(snapshot, now), now)
                if progress.lines:
                    narrator.log(now, *progress.lines)
                if isinstance(progress.error, PodPreempted) and view.raw is not None:
                    await in_thread(_note_lost, view.raw, now, open_access, narrator)
                if progress.done or progress.error:
                    return progress
                if refusal := view.refusal(now):
                    return Progress(error=refusal)
                await _keep_pool(view, pool, owner)
                seconds = (wait.next_deadline(snapshot) - now).total_seconds()
                changes = await feed.changes(timeout=min(max(seconds, view.pause), view.patience))
                view.take(changes, await feed.api.now())
        finally:
            await pool_news.leave(pool, owner, view.take_news)


def _note_lost(pod: Json, now: datetime, open_access: Callable[[], ClusterAccess], narrator: Narrator) -> None:
    """Record when a lost pod ran, for its run's bill: it may not be found later."""
    try:
        record_pods(open_access().api_client(), [Pod.parse(dict(pod))], now)
    except GpuError as error:
        narrator.log(now, f"when the pod ran could not be written down for the run's bill: {error}")


async def _keep_pool(view: PodView, pool: GpuPool, owner: str) -> None:
    """Have the pool looked after exactly while the pod waits for a node, and where it is demand by itself, once."""
    if view.needs_keeper and not view.kept:
        view.kept = True
        pool_news.keep(pool, owner, view.take_news)
    elif view.kept and not view.needs_keeper:
        view.kept = False
        view.pool_news = PoolNews()
        await pool_news.leave(pool, owner, view.take_news)


class PodView:
    """What the feed has told so far about one pod, its events and its pool's nodes."""

    def __init__(
        self, wait: PodWait, pool: GpuPool, feed: Feed, on_pod: Callable[[PodState, Json], None] | None = None
    ) -> None:
        self._wait = wait
        self._on_pod = on_pod
        self._pool = pool
        self._feed = feed
        self._pods = pods(wait.namespace)
        self._queue = KueueQueue(wait.namespace, wait.queue, wait.uid)
        self._patience = Patience(wait.deadline, worked=True)  # the pod was created by the same access
        self._pod: PodState | None = None
        self._shown = False
        self.raw: Json | None = None
        self._gone = False
        self._synced = False
        self._events: dict[str, PodEvent] = {}
        self._nodes: dict[str, Node] = {}
        self._unshown_nodes: dict[str, str] = {}  # name -> uid
        self._lost_label: dict[str, str] = {}  # path -> what is told of it
        self._gone_nodes: set[str] = set()
        self._unshown = Unshown(feed)
        self._machines: dict[str, str] = {}
        self._node_watches = pool_nodes(pool.node_selector).keys()
        self._nodes_synced: set[Resource] = set()
        self._requests: NodeSize | None = None
        self._full_at: datetime | None = None
        self._trouble: dict[Resource, GpuError] = {}
        self.pool_news = PoolNews()
        self.kept = False
        self._looked_at = False

    @property
    def waits_for_node(self) -> bool:
        return self._pod is not None and not self._gone and self._pod.scheduled_at is None

    @property
    def needs_keeper(self) -> bool:
        """Whether the pool is to be looked at.

        A pod that no demand covers is demand by itself, which the switch does not know of until somebody looks; on a
        node that was there the pod waits for nothing.
        """
        is_placed = self._pod is not None and not self._gone and self._pod.scheduled_at is not None
        is_demand = self.waits_for_node and self._pod is not None and not self._pod.gates
        return is_demand or (is_placed and not self._wait.is_covered and not self._looked_at)

    def refusal(self, now: datetime) -> GpuError | None:
        """Return why nothing can be known of the pod, where that has lasted: a permission is missing, say.

        A pod that was seen goes on, and its wait with it, whatever the API server says meanwhile. And what the watch
        has last met may be over: `confirm` has asked for the pod before a refusal is believed.
        """
        error = self._unshown.failures.get(self._pod_path) or self._trouble.get(self._pods)
        if self._pod is not None or self._gone or error is None:
            self._patience.succeeded()
            return None
        return None if self._patience.bears(error, now) else error

    def believed(self, progress: Progress, now: datetime) -> Progress:
        """Return how the wait stands, without an error that may come of what was last seen of the pod being old.

        A pod that cannot be looked at may have got its node, or have ended, in time.
        """
        if progress.error is None or not self._is_blind or now >= self._wait.deadline:
            return progress
        return Progress(lines=progress.lines)

    @property
    def _is_blind(self) -> bool:
        is_away = isinstance(self._trouble.get(self._pods), ClusterUnreachable)
        return not self._gone and (is_away or self._pod_path in self._unshown.failures)

    @property
    def pause(self) -> float:
        """Seconds within which not to look again, though a deadline is over."""
        return AFTER_FAILURE.total_seconds() if self._is_blind else 0.0

    @property
    def _troubles(self) -> list[GpuError]:
        return [*self._trouble.values(), *self._unshown.failures.values()]

    @property
    def patience(self) -> float:
        """Seconds after which to look again though nothing was heard."""
        return AFTER_FAILURE.total_seconds() if self._unshown.failures else _LONGEST

    @property
    def _pod_path(self) -> str:
        return f"{self._pods.path}/{self._wait.name}"

    def take(self, changes: list[Change], now: datetime) -> None:
        """Take what the feed tells."""
        for change in self._queue.take(changes):
            if change.kind == "trouble" and change.error:
                self._trouble[change.resource] = change.error
                continue
            self._trouble.pop(change.resource, None)
            if change.resource == self._pods:
                self._take_pod(change)
            elif change.resource.path == NODES:
                self._take_node(change)
            elif change.kind == "present":
                self._take_event(change.raw)
        if self._is_queued() or (self._pod is not None and self._pod.gates):
            self._full_at = now

    def take_news(self, news: PoolNews) -> None:
        """Take what the pool's keeper says. It looks every 15 seconds, and mostly there is nothing new for anybody."""
        is_new = news.said != self.pool_news.said
        self.pool_news = news
        if not self.waits_for_node and not self._looked_at:
            self._looked_at = is_new = True
        if is_new:
            self._feed.wake()

    async def confirm(self, now: datetime) -> None:
        """Ask for the pod, and for its node, where the watches do not show them (see `unshown`)."""
        if self._is_pod_unshown(now):
            await self._confirm_pod(now)
        node = self._pod.node if self._pod and not self._gone else None
        if node is not None and node in self._unshown_nodes:
            await self._confirm_node(node, now)

    async def _confirm_pod(self, now: datetime) -> None:
        answer = await self._unshown.ask(self._pod_path, self._wait.uid, now)
        if answer is None:
            return
        self._gone = answer.raw is None
        if answer.raw is not None:
            self._take_state(answer.raw)
            if POOL_LABEL not in (answer.raw["metadata"].get("labels") or {}):
                self._lost_label[self._pod_path] = "the pod has lost its pool's label: it is asked for every minute"

    async def _confirm_node(self, name: str, now: datetime) -> None:
        answer = await self._unshown.ask(path := f"{NODES}/{name}", self._unshown_nodes[name], now)
        if answer is None:
            return
        if answer.raw is None:
            self._gone_nodes.add(name)
            self._unshown_nodes.pop(name)
            self._forget(path)
        else:
            self._lost_label[path] = f"node {name} has lost a label of its pool; the pod on it goes on"

    def _is_pod_unshown(self, now: datetime) -> bool:
        """Return True if the watch of pods says nothing of this one: it lags, shows it no more, or is refused."""
        trouble = self._trouble.get(self._pods)
        is_refused = trouble is not None and not isinstance(trouble, ClusterUnreachable)
        is_last_look = self._pod is None and now >= self._wait.deadline
        return not self._gone and (is_refused or is_last_look or (self._synced and not self._shown))

    def snapshot(self, now: datetime) -> PodSnapshot:
        is_full = self._is_queued()
        return PodSnapshot(
            pod=self._pod,
            gone=self._gone,
            node_gone=self._pod is not None and self._pod.node in self._gone_nodes,
            machine=self._machines.get(self._pod.node or "", "") if self._pod else "",
            events=tuple(sorted(self._events.values(), key=lambda event: event.at)),
            nodes=tuple(sorted(self._nodes.values(), key=lambda node: node.name)),
            is_full=is_full,
            full_at=now if is_full else self._full_at,
            passed_over=self._is_passed_over(),
            no_node_has=self._no_node_has(),
            too_large=self._too_large() if self.waits_for_node else None,
            no_capacity=self.pool_news.no_capacity,
            admitted_at=self._queue.admitted_at,
            queued=self._queue.in_words,
            notes=(*self.pool_news.said, *self._lost_label.values(), *troubles_in_words(self._troubles)),
        )

    def _take_pod(self, change: Change) -> None:
        self._forget(self._pod_path)
        if change.kind == "synced":
            self._synced = True
        elif change.raw and change.raw["metadata"]["uid"] == self._wait.uid:
            self._shown = change.kind == "present"
            self._take_state(change.raw)

    def _take_state(self, raw: Json) -> None:
        self._pod, self.raw = PodState.parse(raw, self._wait.base_container), raw
        if self._requests is None:
            spec = raw.get("spec") or {}
            self._requests = requests_of(spec.get("containers") or (), spec.get("initContainers") or ())
        if self._on_pod is not None:
            self._on_pod(self._pod, raw)

    def _take_node(self, change: Change) -> None:
        if change.kind == "synced":
            self._nodes_synced.add(change.resource)
        elif change.kind == "present":
            node = Node.parse(dict(change.raw))
            self._nodes[node.uid] = node
            self._machines[node.name] = node.machine
            self._gone_nodes.discard(node.name)
            self._unshown_nodes.pop(node.name, None)
            self._forget(f"{NODES}/{node.name}")
        elif change.kind == "gone":
            name, uid = change.raw["metadata"]["name"], change.raw["metadata"]["uid"]
            self._nodes.pop(uid, None)
            self._unshown_nodes[name] = uid

    def _forget(self, path: str) -> None:
        """Drop what was found by asking for an object: a watch tells of it again."""
        self._lost_label.pop(path, None)
        self._unshown.forget(path)

    def _take_event(self, raw: Json) -> None:
        event = PodEvent.parse(raw)
        if event.pod_uid == self._wait.uid:
            self._events[event.uid] = event

    def _too_large(self) -> PodUnschedulable | None:
        """Return the error of a pod that is larger than any node that the pool has or can have; None if it fits."""
        if self._requests is None:
            return None
        try:
            check_fits(self._requests, self._sizes(), pool=self._pool.name)
        except PodUnschedulable as error:
            return error
        return None

    def _sizes(self) -> dict[str, NodeSize | None]:
        """The pool's nodes, or of a cloud's the machine types, with what pods can have of each; empty: nobody knows.

        Of a type of which there is a node, that is what its kubelet says; else the catalogue, which leaves less out.
        """
        if self._pool.given_nodes is not None:
            are_all_here = self._nodes_synced >= self._node_watches and len(self._nodes) >= self._pool.given_nodes
            return {node.name: size_of(node) for node in self._nodes.values()} if are_all_here else {}
        sizes = dict(self._pool.node_sizes)
        for node in self._nodes.values():
            size, listed = size_of(node), sizes.get(node.instance_type)
            if size is not None and listed is not None:
                sizes[node.instance_type] = replace(size, gpus=listed.gpus)
        return sizes

    def _is_queued(self) -> bool:
        """Return True if the pool has all nodes that it may have, each with its GPUs ready, and other pods use them.

        They are taken to do so until the scheduler says something else.
        """
        if not self.waits_for_node or len(self._ready_nodes()) < self._pool.max_nodes:
            return False
        return not self._is_passed_over()

    def _is_passed_over(self) -> bool:
        """Return True if the scheduler leaves usable nodes out, and not for the pods that run there."""
        ready = {node.name for node in self._ready_nodes()}
        if self._pod is None or not self.waits_for_node or not self._pod.unschedulable or not ready:
            return False
        is_any_empty = not ready.isdisjoint(self.pool_news.empty_nodes)
        waits = waits_for_other_pods(self._pod.unschedulable, is_any_node_empty=is_any_empty)
        return not waits or bool(self._no_node_has())

    def _no_node_has(self) -> str:
        if self.raw is None or not self.waits_for_node:
            return ""
        return not_on_any((self.raw.get("spec") or {}).get("nodeSelector") or {}, self._ready_nodes())

    def _ready_nodes(self) -> list[Node]:
        return [node for node in self._nodes.values() if node.usable and node.gpus > 0]

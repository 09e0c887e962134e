"""View: what the watches show of the object of a wait, its pods and its pool's nodes; and what they do not show.

RunKind: what else is its own of a pod, a gang and a workload while it runs; in a worker and in a triggerer.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.api.informer import Change, Feed, troubles_in_words
from airflow_gpu_provider.cluster.api.watched import NODES, Resource
from airflow_gpu_provider.cluster.model.events import PodEvent
from airflow_gpu_provider.cluster.model.pod_state import Json, PodState
from airflow_gpu_provider.errors import ClusterUnreachable, GpuError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.wait.pool_updates import PoolUpdates
from airflow_gpu_provider.scaling.wait.records import Progress
from airflow_gpu_provider.scaling.wait.retry import Tolerance
from airflow_gpu_provider.training.log.object_logs import Logs
from airflow_gpu_provider.training.log.trigger_log import Log
from airflow_gpu_provider.training.place.fit import is_left_out, not_on_any
from airflow_gpu_provider.training.wait.attempt_wait import AttemptWait, Silence
from airflow_gpu_provider.training.wait.end import end_of, with_disruption
from airflow_gpu_provider.training.wait.gpu_use import Rank
from airflow_gpu_provider.training.wait.pod_wait import PodSnapshot
from airflow_gpu_provider.training.watch.kueue_queue import KueueQueue
from airflow_gpu_provider.training.watch.surroundings import AFTER_FAILURE, NEW, DirectReads, NodesSeen

if TYPE_CHECKING:
    from airflow_gpu_provider.training.log.task_log import TaskLog


OnPod = Callable[[PodState, Json, Rank], None]
"""Takes a pod, its JSON, and which of the pods it is; a single one is 0."""

See = Callable[[Iterable[Json]], Awaitable[None]]
"""Takes the JSON of objects, the pods among them, before the view does."""

LONGEST = 60.0
"""Seconds after which to check again although nothing was received."""


class View(ABC):
    """What the feed has reported about the object of the wait, its pods, their events, and its pool's nodes.

    A watch by labels says of what lost its label what it says of what was deleted. So what is not shown, or not shown
    any more, is asked for, and is gone once the API server says so (see DirectReads).

    A subclass says what else to watch (`wants`), steps the wait with it (`look`), and says when the pool has to be
    reconciled (`needs_pool_loop`), and why nothing can be observed, once that has lasted (`refusal`).

    Args:
        wait: What is waited for.
        pool: The rendered spec.
        feed: The source of changes.
        on_pod: Called with each state of a pod, and its JSON.
        silence: Returns for how long it has printed nothing.

    Attributes:
        is_admitted_here: The pool's loop admits it while it is suspended; otherwise Kueue or its controller does.
        shortest: Seconds within which not to check again, although a deadline has passed.
        queues_pods: A pod of it that meets a full pool waits for its turn. Otherwise it has its nodes before its pods.
        end_together: Its controller deletes the other pods as soon as one has failed.
    """

    is_admitted_here = False
    shortest: ClassVar[float] = 0.0
    queues_pods: ClassVar[bool] = True
    end_together: ClassVar[bool] = False
    _pods: Resource

    def __init__(
        self,
        wait: AttemptWait,
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
        self._queue = KueueQueue(wait, pool)
        self._patience = Tolerance(wait.deadline, worked=True)  # its object was created with the same access
        self._events: dict[str, PodEvent] = {}
        self._known: dict[str, PodState] = {}  # pods by uid, those too that are gone
        self._raw: dict[str, Json] = {}  # the same
        self._shown: set[str] = set()  # by uid, as those below: what a watch shows, of the object and the pods
        self._gone: set[str] = set()
        self._seen_going: set[str] = set()  # others went, or lost their label, while nobody watched
        self._nodes = NodesSeen(pool, self._raw.values())
        self._lost_label: dict[str, str] = {}  # by path: what is said of it
        self._trouble: dict[Resource, GpuError] = {}
        self._direct = DirectReads(feed)
        self._full_at: dict[str, datetime] = {}  # by a pod's uid
        self._now = wait.started
        self.pool_updates = PoolUpdates()
        self.is_kept = False

    @property
    def last_seen(self) -> tuple[Json, ...]:
        """The JSON of its pods, as last seen; of several for one rank, the newest's."""
        return tuple(self._raw.values())

    @classmethod
    @abstractmethod
    def wants(cls, wait: AttemptWait) -> dict[Resource, str]:
        """Return what to watch, besides the pool's nodes and Kueue's queue."""

    @abstractmethod
    def look(self, now: datetime) -> tuple[Progress, datetime]:
        """Step the wait; also return when it may return something else although nothing has changed."""

    @property
    @abstractmethod
    def needs_pool_loop(self) -> bool:
        """Whether the pool has to be reconciled for it."""

    @abstractmethod
    def refusal(self, now: datetime) -> GpuError | None:
        """Return why it cannot be observed, once that has lasted."""

    @abstractmethod
    def _take_pod(self, change: Change) -> None: ...

    @abstractmethod
    def _take_state(self, raw: Json) -> None: ...

    async def believes(self, error: GpuError, now: datetime) -> bool:
        """Return whether what was seen is enough to end the wait with this error: outdated state may have changed."""
        return not self._is_blind or now >= self._wait.deadline

    def has_settled(self, now: datetime) -> bool:
        """Return True once all is known that the end of the wait reports."""
        return True

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
        again = AFTER_FAILURE.total_seconds() if self._direct.failures else LONGEST
        return min(again, NEW.total_seconds()) if self._nodes.has_new(self._now) else again

    @property
    def _is_gone(self) -> bool:
        return self._wait.uid in self._gone

    def _went_unseen(self, uid: str) -> bool:
        return uid in self._gone and uid not in self._seen_going

    @property
    def _is_blind(self) -> bool:
        """Whether the last known state may be outdated because the API server is unreachable."""
        return not self._is_gone and self._has_no_answer(self._pods, self._to_ask().values())

    def _has_no_answer(self, resource: Resource, names: Iterable[str]) -> bool:
        """Return True if the watch of a resource is broken, or its objects with these names could not be read."""
        is_away = isinstance(self._trouble.get(resource), ClusterUnreachable)
        return is_away or any(f"{resource.path}/{name}" in self._direct.failures for name in names)

    # -- what is reported ------------------------------------------------------------------------------------

    def take(self, changes: Iterable[Change], now: datetime) -> None:
        self._now = now
        for change in self._queue.take(changes):
            if change.kind == "trouble" and change.error:
                self._trouble[change.resource] = change.error
                continue
            self._trouble.pop(change.resource, None)
            self._take(change)
        for uid, pod in self._known.items():
            if self._is_queued(uid) or (uid not in self._gone and pod.gates):
                self._full_at[uid] = now

    def _take(self, change: Change) -> None:
        if change.resource == self._pods:
            self._note_recovery(change)
            self._take_pod(change)
        elif change.resource.path == NODES:
            if (name := self._nodes.take(change, self._now, self._trouble.keys())) is not None:
                self._forget(f"{NODES}/{name}")
        elif change.kind == "present":
            event = PodEvent.parse(change.raw)
            if not event.is_of_autoscaler_that_adds_none or self._pool.is_grown_by_cluster_autoscaler:
                self._events[event.uid] = event

    def _note_recovery(self, change: Change) -> None:
        """Drop what was read directly where a watch lists all objects again."""
        if change.kind in ("synced", "recovered"):
            self._direct.forget_all()
            self._lost_label.clear()

    def _show(self, change: Change) -> None:
        """Note that a watch shows the object, or a pod of it, or does so no more."""
        uid = change.raw["metadata"]["uid"]
        self._forget(f"{change.resource.path}/{change.raw['metadata']['name']}")
        if change.kind == "gone":
            self._shown.discard(uid)
            (self._seen_going.add if change.is_seen else self._seen_going.discard)(uid)
        else:
            self._shown.add(uid)
            self._gone.discard(uid)

    def take_update(self, update: PoolUpdates) -> None:
        known, self.pool_updates = self.pool_updates, update
        if self._is_new(known):
            self._feed.wake()

    def _is_new(self, known: PoolUpdates) -> bool:
        """Return True if the pool's loop has reported something new for the log."""
        return self.pool_updates.log_lines != known.log_lines

    # -- what no watch shows ---------------------------------------------------------------------------------

    async def confirm(self, now: datetime) -> None:
        """Read the pods, and their nodes, that the watches do not show."""
        self._now = now
        await asyncio.gather(*(self._confirm_pod(uid, name, now) for uid, name in self._to_ask().items()))
        used = {pod.node for uid, pod in self._known.items() if pod.node and uid not in self._gone}
        await asyncio.gather(*(self._confirm_node(name, now) for name in sorted(used & self._nodes.hidden.keys())))

    def _to_ask(self) -> dict[str, str]:
        """Return the names of the pods to read, by uid: no watch shows them, or their watch is refused."""
        refused = self._is_refused(self._pods)
        there = {uid: pod for uid, pod in self._known.items() if uid not in self._gone}
        return {
            uid: pod.name for uid, pod in there.items() if uid not in self._shown or (refused and end_of(pod) is None)
        }

    def _is_refused(self, resource: Resource) -> bool:
        trouble = self._trouble.get(resource)
        return trouble is not None and not isinstance(trouble, ClusterUnreachable)

    async def _confirm_pod(self, uid: str, name: str, now: datetime) -> None:
        if raw := await self._read(self._pods, name, uid, now):
            self._take_state(raw)

    async def _read(self, resource: Resource, name: str, uid: str, now: datetime) -> Json | None:
        """Read what a watch does not show; None where it is gone, or cannot be read, or was a short while ago."""
        answer = await self._direct.get(path := f"{resource.path}/{name}", uid, now)
        if answer is None:
            return None
        if answer.raw is None:
            self._gone.add(uid)
            return None
        self._seen_going.discard(uid)
        if (label := resource.label_selector) not in (answer.raw["metadata"].get("labels") or {}):
            what = self._wait.what if uid == self._wait.uid else f"pod {name}"
            self._lost_label[path] = f"{what} has lost its label {label}; it is read again every minute"
        return answer.raw

    async def _confirm_node(self, name: str, now: datetime) -> None:
        answer = await self._direct.get(path := f"{NODES}/{name}", self._nodes.hidden[name], now)
        if answer is None:
            return
        if answer.raw is None:
            self._nodes.lose(name)
            self._forget(path)
        else:
            self._lost_label[path] = f"node {name} has lost a label of its pool; the pod on it keeps running"

    def _forget(self, path: str) -> None:
        """Drop what was read directly: there is news of the object."""
        self._lost_label.pop(path, None)
        self._direct.forget(path)

    # -- what the wait is told -------------------------------------------------------------------------------

    def _seen(self, uid: str, now: datetime) -> PodSnapshot:
        """Return one pod, seen already or not, and its surroundings."""
        pod, is_queued = self._known.get(uid), self._is_queued(uid)
        events = tuple(sorted((e for e in self._events.values() if e.pod_uid == uid), key=lambda event: event.at))
        node = (pod.node if pod else None) or ""
        return PodSnapshot(
            pod=with_disruption(pod, events) if pod else None,
            gone=uid in self._gone,
            is_unseen=self._went_unseen(uid),
            node_gone=node in self._nodes.gone,
            released_by=self._nodes.released_by(node),
            machine=self._nodes.machine(node),
            events=events,
            nodes=self._nodes.named(node),
            is_full=is_queued and not self._nodes.has_new(now),
            full_at=now if is_queued or (self.queues_pods and not self._knows_nodes) else self._full_at.get(uid),
            passed_over=self._is_passed_over(uid),
            no_node_has=self._no_node_has(uid),
            no_capacity=self.pool_updates.no_capacity,
            to_widen=self.pool_updates.to_widen or self._pool.how_to_widen,
        )

    @property
    def _remarks(self) -> tuple[str, ...]:
        troubles = [*self._trouble.values(), *self._direct.failures.values()]
        return (*self.pool_updates.log_lines, *self._lost_label.values(), *troubles_in_words(troubles))

    def _lasting(self, error: GpuError | None, now: datetime) -> GpuError | None:
        """Return a refusal that has lasted longer than it is tolerated."""
        if error is None:
            self._patience.succeeded()
            return None
        return None if self._patience.allows(error, now) else error

    @property
    def _knows_nodes(self) -> bool:
        return self._nodes.are_known(self._trouble.keys())

    def _waits_for_node(self, uid: str) -> bool:
        return uid in self._known and uid not in self._gone and self._known[uid].scheduled_at is None

    def _is_queued(self, uid: str) -> bool:
        """Return True if all nodes that the pool may have are up, with GPUs ready, and other pods use them.

        This is assumed until the scheduler says otherwise.
        """
        if not self.queues_pods or not self._waits_for_node(uid) or len(self._nodes.ready()) < self._pool.max_nodes:
            return False
        return not self._is_passed_over(uid)

    def _is_passed_over(self, uid: str) -> bool:
        """Return True if the scheduler excludes usable nodes for a reason other than the pods running there.

        For a gang whose zone has no node yet it excludes none: the gang's own are to come.
        """
        if not self._waits_for_node(uid) or not (message := self._known[uid].unschedulable):
            return False
        wanted = _node_selector(self._raw[uid]).items()
        ready = {node.name for node in self._nodes.ready() if wanted <= node.labels.items()}
        has_none = self.queues_pods and bool(self._no_node_has(uid))
        return has_none or is_left_out(message, ready=ready, empty=self.pool_updates.empty_nodes)

    def _no_node_has(self, uid: str) -> str:
        return not_on_any(_node_selector(self._raw[uid]), self._nodes.ready()) if self._waits_for_node(uid) else ""


def _node_selector(pod: Json) -> Mapping[str, str]:
    selector: Mapping[str, str] = (pod.get("spec") or {}).get("nodeSelector") or {}
    return selector


Wanted = Json | None
"""What of the logs is streamed: see PodLogs."""


class RunKind(ABC):
    """What an attempt runs, as those see it that wait for it. What its wait decides from all that is the wait's own."""

    wait: AttemptWait
    view_type: ClassVar[type[View]]

    @abstractmethod
    def logs(self, api: AsyncApi, wanted: Wanted, log: Log, task_log: TaskLog | None = None) -> Logs:
        """Return the streams of the pods' logs; in a worker they are written as its `task_log` says."""

    @abstractmethod
    async def pods(self, api: AsyncApi) -> list[Json]:
        """Return its pods, as JSON."""

    @abstractmethod
    async def finish(self, api: AsyncApi, progress: Progress, logs: Logs, log: Log) -> None:
        """Do what is urgent when the wait is over, while the logs are still streamed."""

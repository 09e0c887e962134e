"""PodView: what the watches show of a single pod."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from airflow_gpu_provider.accelerators import NodeSize
from airflow_gpu_provider.cluster.informer import Change, Feed, troubles_in_words
from airflow_gpu_provider.cluster.pod_state import Json, PodState
from airflow_gpu_provider.cluster.watched import NODES, Resource, pod_events, pods
from airflow_gpu_provider.errors import ClusterUnreachable, GpuError, PodUnschedulable
from airflow_gpu_provider.pods.fit import check_fits, is_left_out, not_on_any, requests_of, size_of
from airflow_gpu_provider.pods.wait import PodSnapshot, PodWait
from airflow_gpu_provider.pods.watch import View
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.base import POOL_LABEL
from airflow_gpu_provider.scaling.pool_news import PoolNews


class PodView(View):
    """What the feed has reported about one pod, its events and its pool's nodes."""

    def __init__(
        self, wait: PodWait, pool: GpuPool, feed: Feed, on_pod: Callable[[PodState, Json], None] | None = None
    ) -> None:
        super().__init__(wait, pool, feed, on_pod)
        self._pods = pods(wait.namespace)
        self._pod: PodState | None = None
        self._shown = False
        self._gone = False
        self._was_seen_going = False
        self._synced = False
        self._unshown_nodes: dict[str, str] = {}  # name -> uid
        self._lost_label: dict[str, str] = {}  # path -> its news
        self._requests: NodeSize | None = None
        self._full_at: datetime | None = None
        self._looked_at = False

    @classmethod
    def wants(cls, wait: PodWait) -> dict[Resource, str]:
        return dict.fromkeys((pods(wait.namespace), pod_events(wait.namespace)), wait.name)

    @property
    def waits_for_node(self) -> bool:
        return self._pod is not None and not self._gone and self._pod.scheduled_at is None

    @property
    def needs_keeper(self) -> bool:
        """Whether the pool has to be reconciled.

        A pod that no demand Lease covers is its own demand, which the switch does not cover until the pool is
        reconciled; on an existing node the pod waits for nothing.
        """
        is_placed = self._pod is not None and not self._gone and self._pod.scheduled_at is not None
        is_demand = self.waits_for_node and self._pod is not None and not self._pod.gates
        return is_demand or (is_placed and not self._wait.is_covered and not self._looked_at)

    def refusal(self, now: datetime) -> GpuError | None:
        """Return why the pod cannot be observed, once that has lasted, such as a missing permission.

        Once a pod was seen, its wait continues whatever the API server answers. And the watch's last error may be
        outdated: `confirm` reads the pod before a refusal is believed.
        """
        error = self._unshown.failures.get(self._pod_path) or self._trouble.get(self._pods)
        return self._lasting(None if self._pod is not None or self._gone else error, now)

    @property
    def _is_blind(self) -> bool:
        is_away = isinstance(self._trouble.get(self._pods), ClusterUnreachable)
        return not self._gone and (is_away or self._pod_path in self._unshown.failures)

    @property
    def _troubles(self) -> list[GpuError]:
        return [*self._trouble.values(), *self._unshown.failures.values()]

    @property
    def _pod_path(self) -> str:
        return f"{self._pods.path}/{self._wait.name}"

    def take(self, changes: Iterable[Change], now: datetime) -> None:
        super().take(changes, now)
        if self._is_queued() or (self._pod is not None and self._pod.gates):
            self._full_at = now

    def take_news(self, news: PoolNews) -> None:
        is_new = news.said != self.pool_news.said
        self.pool_news = news
        if not self.waits_for_node and not self._looked_at:
            self._looked_at = is_new = True
        if is_new:
            self._feed.wake()

    async def confirm(self, now: datetime) -> None:
        """Read the pod, and its node, if the watches do not show them (see `unshown`)."""
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
            self._was_seen_going = False
            self._take_state(answer.raw)
            if POOL_LABEL not in (answer.raw["metadata"].get("labels") or {}):
                self._lost_label[self._pod_path] = "the pod has lost its pool's label; it is polled every minute"

    async def _confirm_node(self, name: str, now: datetime) -> None:
        answer = await self._unshown.ask(path := f"{NODES}/{name}", self._unshown_nodes[name], now)
        if answer is None:
            return
        if answer.raw is None:
            self._gone_nodes.add(name)
            self._unshown_nodes.pop(name)
            self._forget(path)
        else:
            self._lost_label[path] = f"node {name} has lost a label of its pool; the pod on it keeps running"

    def _is_pod_unshown(self, now: datetime) -> bool:
        """Return True if the watch of pods does not show this one: it lags, no longer shows it, or is refused."""
        trouble = self._trouble.get(self._pods)
        is_refused = trouble is not None and not isinstance(trouble, ClusterUnreachable)
        is_last_look = self._pod is None and now >= self._wait.deadline
        return not self._gone and (is_refused or is_last_look or (self._synced and not self._shown))

    def snapshot(self, now: datetime) -> PodSnapshot:
        is_full = self._is_queued()
        return PodSnapshot(
            pod=self._pod,
            gone=self._gone,
            is_unseen=self._gone and not self._was_seen_going,
            node_gone=self._pod is not None and self._pod.node in self._gone_nodes,
            machine=self._machines.get(self._pod.node or "", "") if self._pod else "",
            events=self._events_of(self._wait.uid),
            nodes=tuple(sorted(self._nodes.values(), key=lambda node: node.name)),
            is_full=is_full,
            full_at=now if is_full or not self._knows_nodes else self._full_at,
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
            self._was_seen_going = change.kind == "gone" and change.is_seen
            self._take_state(change.raw)

    def _take_state(self, raw: Json) -> None:
        self._pod, self.raw = PodState.parse(raw, self._wait.base_container), raw
        if self._requests is None:
            self._requests = requests_of(raw.get("spec") or {})
        if self._on_pod is not None:
            self._on_pod(self._pod, raw)

    def _take_node(self, change: Change) -> None:
        super()._take_node(change)
        if change.kind == "present":
            name = change.raw["metadata"]["name"]
            self._unshown_nodes.pop(name, None)
            self._forget(f"{NODES}/{name}")

    def _lose_node(self, name: str, uid: str) -> None:
        """Note that no watch shows the node: it may have lost its label."""
        self._unshown_nodes[name] = uid

    def _forget(self, path: str) -> None:
        """Drop what was read directly: a watch shows the object again."""
        self._lost_label.pop(path, None)
        self._unshown.forget(path)

    def _too_large(self) -> PodUnschedulable | None:
        """Return the error for a pod larger than any node that the pool has or can have; None if it fits."""
        if self._requests is None:
            return None
        try:
            check_fits(self._requests, self._sizes(), pool=self._pool.name)
        except PodUnschedulable as error:
            return error
        return None

    def _sizes(self) -> dict[str, NodeSize | None]:
        """The pool's nodes, or a cloud pool's machine types, with what each offers to pods; empty: unknown.

        For a type with an existing node, its kubelet's values count; otherwise the catalogue's, which deduct less.
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
        """Return True if all nodes that the pool may have are up, with GPUs ready, and other pods use them.

        This is assumed until the scheduler says otherwise.
        """
        if not self.waits_for_node or len(self._ready_nodes()) < self._pool.max_nodes:
            return False
        return not self._is_passed_over()

    def _is_passed_over(self) -> bool:
        """Return True if the scheduler excludes usable nodes for a reason other than the pods running there."""
        ready = {node.name for node in self._ready_nodes()}
        if self._pod is None or not self.waits_for_node or not self._pod.unschedulable or not ready:
            return False
        is_left = is_left_out(self._pod.unschedulable, ready=ready, empty=self.pool_news.empty_nodes)
        return is_left or bool(self._no_node_has())

    def _no_node_has(self) -> str:
        if self.raw is None or not self.waits_for_node:
            return ""
        return not_on_any((self.raw.get("spec") or {}).get("nodeSelector") or {}, self._ready_nodes())

"""PodView: what the watches show of a single pod, and OnePod: how it is waited for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.accelerators import NodeSize
from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.api.informer import Change, Feed
from airflow_gpu_provider.cluster.api.watched import Resource, pod_events, pods
from airflow_gpu_provider.cluster.model.pod_state import DEADLINE_ANNOTATION, Json, PodState
from airflow_gpu_provider.errors import LOST, GpuError, PodDeadline, PodUnschedulable
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.switch import TIME_TO_STOP
from airflow_gpu_provider.scaling.wait.pool_updates import PoolUpdates
from airflow_gpu_provider.scaling.wait.records import Progress
from airflow_gpu_provider.times import parse_time
from airflow_gpu_provider.training.log.followed_log import LAST_WORDS_WITHIN, PodLogs
from airflow_gpu_provider.training.log.object_logs import Logs
from airflow_gpu_provider.training.log.trigger_log import Log
from airflow_gpu_provider.training.place.fit import check_fits, requests_of
from airflow_gpu_provider.training.wait.attempt_wait import AttemptWait, Silence
from airflow_gpu_provider.training.wait.pod_wait import PodSnapshot, PodWait
from airflow_gpu_provider.training.watch.view import OnPod, RunKind, View, Wanted

if TYPE_CHECKING:
    from airflow_gpu_provider.training.log.task_log import TaskLog

_EVENTS_SHOWN_WITHIN = timedelta(seconds=2)
"""How long the end of the wait waits for the events, which have a watch of their own."""


class PodView(View):
    """What the feed has reported about one pod, its events and its pool's nodes."""

    _wait: PodWait

    def __init__(
        self,
        wait: PodWait,
        pool: GpuPool,
        feed: Feed,
        on_pod: OnPod | None = None,
        silence: Callable[[], Silence | None] = lambda: None,
    ) -> None:
        super().__init__(wait, pool, feed, on_pod, silence)
        self._pods = pods(wait.namespace)
        self._synced = False
        self._pod_events = pod_events(wait.namespace)
        self._shows_events = False
        self._over_since: datetime | None = None
        self._requests: NodeSize | None = None
        self._looked_at = False

    @classmethod
    def wants(cls, wait: AttemptWait) -> dict[Resource, str]:
        return dict.fromkeys((pods(wait.namespace), pod_events(wait.namespace)), wait.name)

    @property
    def _pod(self) -> PodState | None:
        return self._known.get(self._wait.uid)

    @property
    def waits_for_node(self) -> bool:
        return self._waits_for_node(self._wait.uid)

    @property
    def needs_pool_loop(self) -> bool:
        """Whether the pool has to be reconciled.

        A pod that no demand Lease covers is its own demand, which the switch does not cover until the pool is
        reconciled; on an existing node the pod waits for nothing.
        """
        is_placed = self._pod is not None and not self._is_gone and self._pod.scheduled_at is not None
        is_demand = self.waits_for_node and self._pod is not None and not self._pod.gates
        return is_demand or (is_placed and not self._wait.is_covered and not self._looked_at)

    def refusal(self, now: datetime) -> GpuError | None:
        """Return why the pod cannot be observed, once that has lasted, such as a missing permission.

        Once a pod was seen, its wait continues whatever the API server answers. And the watch's last error may be
        outdated: `confirm` reads the pod before a refusal is believed.
        """
        path = f"{self._pods.path}/{self._wait.name}"
        error = self._direct.failures.get(path) or self._trouble.get(self._pods)
        return self._lasting(None if self._pod is not None or self._is_gone else error, now)

    def _is_new(self, known: PoolUpdates) -> bool:
        if self.waits_for_node or self._looked_at:
            return super()._is_new(known)
        self._looked_at = True
        return True

    def _to_ask(self) -> dict[str, str]:
        """Return the pod as well if its watch, which lags or is refused, has never shown it."""
        is_last_look = self._now >= self._wait.deadline
        if self._pod is None and (self._synced or is_last_look or self._is_refused(self._pods)):
            return {} if self._is_gone else {self._wait.uid: self._wait.name}
        return super()._to_ask()

    def has_settled(self, now: datetime) -> bool:
        """Return True once the watch of events has shown the past ones, or fails, or has had its time."""
        self._over_since = self._over_since or now
        has_answer = self._shows_events or self._pod_events in self._trouble
        return has_answer or now >= self._over_since + _EVENTS_SHOWN_WITHIN

    @property
    def longest(self) -> float:
        is_settling = self._over_since is not None and not self._shows_events
        return min(_EVENTS_SHOWN_WITHIN.total_seconds(), super().longest) if is_settling else super().longest

    def look(self, now: datetime) -> tuple[Progress, datetime]:
        snapshot = self.snapshot(now)
        return self._wait.step(snapshot, now), self._wait.next_deadline(snapshot, now)

    def snapshot(self, now: datetime) -> PodSnapshot:
        return replace(
            self._seen(self._wait.uid, now),
            nodes=self._nodes.in_order(),
            too_large=self._too_large() if self.waits_for_node else None,
            admitted_at=self._queue.admitted_at,
            queued=self._queue.in_words,
            barred=self._barred(now),
            silence=self._silence(),
            notes=self._remarks,
        )

    def _barred(self, now: datetime) -> GpuError | None:
        waits = self._pod is not None and bool(self._pod.gates)
        return self._queue.barred(f"Pod {self._wait.name}", now) if waits else None

    def _take(self, change: Change) -> None:
        super()._take(change)
        if change.kind == "synced" and change.resource == self._pod_events:
            self._shows_events = True

    def _take_pod(self, change: Change) -> None:
        if change.kind == "synced":
            self._synced = True
        elif change.raw and change.raw["metadata"]["uid"] == self._wait.uid:
            self._show(change)
            self._take_state(change.raw)

    def _take_state(self, raw: Json) -> None:
        pod = PodState.parse(raw, self._wait.base_container).following(self._pod)
        self._known[self._wait.uid], self._raw[self._wait.uid] = pod, raw
        if self._requests is None:
            self._requests = requests_of(raw.get("spec") or {})
        if self._on_pod is not None:
            self._on_pod(pod, raw, 0)

    def _too_large(self) -> PodUnschedulable | None:
        """Return the error for a pod larger than any node that the pool has or can have; None if it fits."""
        if self._requests is None:
            return None
        try:
            check_fits(self._requests, self._nodes.sizes(), pool=self._pool.name)
        except PodUnschedulable as error:
            return error
        return None


@dataclass(frozen=True)
class OnePod(RunKind):
    wait: PodWait
    view_type = PodView

    def logs(self, api: AsyncApi, wanted: Wanted, log: Log, task_log: TaskLog | None = None) -> PodLogs:
        if task_log is None:
            return PodLogs(api, self.wait, wanted, log)
        return PodLogs(api, self.wait, wanted, log, write=task_log.write_line, alone=True)

    async def pods(self, api: AsyncApi) -> list[Json]:
        pod = await api.get(self.wait.path)
        return [pod] if pod and pod["metadata"]["uid"] == self.wait.uid else []

    async def finish(self, api: AsyncApi, progress: Progress, logs: Logs, log: Log) -> None:
        if isinstance(progress.error, LOST):  # its log may be gone before a worker can read it
            await logs.drain(LAST_WORDS_WITHIN)
        elif isinstance(progress.error, PodDeadline):
            await self._end(api, logs, log)

    async def _end(self, api: AsyncApi, logs: Logs, log: Log) -> None:
        """Have the kubelet end the pod, with its grace period: unlike a deleted one it can be read afterwards.

        One whose container has not started has nothing to save: the worker that collects it deletes it.
        """
        try:
            raw = next(iter(await self.pods(api)), None)
            if raw is None:
                return
            state = PodState.parse(raw, self.wait.base_container)
            patch = _ending(raw, await api.now()) if state.started else None
            if patch is None or not await api.patch(self.wait.path, patch):
                return
        except GpuError as error:
            log(logging.WARNING, "%s", f"Pod {self.wait.name} is left to a worker, which ends it: {error}")
            return
        log(logging.INFO, "%s", f"Pod {self.wait.name} is at its deadline: it has {state.grace.seconds} s to stop.")
        await logs.drain(min(state.grace, TIME_TO_STOP).total_seconds() + LAST_WORDS_WITHIN)


def _ending(pod: Json, now: datetime) -> dict[str, Any] | None:
    """Return the patch with which a running pod has used up its activeDeadlineSeconds; None where it ends anyway.

    They may be set, or lowered, on a pod that runs (ValidatePodUpdate in Kubernetes' pkg/apis/core/validation).
    """
    status, given = pod.get("status") or {}, pod["spec"].get("activeDeadlineSeconds")
    since = parse_time(status.get("startTime"))
    if since is None or status.get("phase") != "Running" or "deletionTimestamp" in pod["metadata"]:
        return None
    seconds = max(1, int((now - since).total_seconds()))
    if given is not None and given <= seconds:
        return None
    meta = {"uid": pod["metadata"]["uid"], "annotations": {DEADLINE_ANNOTATION: str(seconds)}}
    return {"metadata": meta, "spec": {"activeDeadlineSeconds": seconds}}

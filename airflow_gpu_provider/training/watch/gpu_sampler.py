"""GpuSampler: samples GPU use in running pods' own containers, next to the wait for them and without delaying it.

HangMark keeps a HangNote on a pod while its training may hang, whichever triggerer has put it there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Self

import aiohttp

from airflow_gpu_provider.cluster.api.async_api import AsyncApi, OutputTooLong
from airflow_gpu_provider.cluster.model.devices import asked
from airflow_gpu_provider.cluster.model.pool_pod import HANG, HangNote
from airflow_gpu_provider.errors import GpuError, GpuHung, GpuIdle
from airflow_gpu_provider.scaling.wait.records import Progress
from airflow_gpu_provider.training.wait.attempt_wait import AttemptWait, Silence
from airflow_gpu_provider.training.wait.gpu_use import (
    QUERY,
    QUERY_ON_GKE,
    GpuUse,
    Idleness,
    Rank,
    Sample,
    Spinning,
    parse,
)

if TYPE_CHECKING:
    from airflow_gpu_provider.cluster.model.pod_state import Json, PodState


class HangMark:
    """The mark on one of a training's pods. What cannot be written now is written after the next sample."""

    def __init__(self, api: AsyncApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._marked: PodState | None = None

    def see(self, pod: PodState, raw: Json, *, runs: bool) -> None:
        """Take a pod's present JSON: a former triggerer may have marked it, and a pod takes its mark with it."""
        if runs and HANG in (raw["metadata"].get("annotations") or {}):
            self._marked = pod
        elif self._marked is not None and self._marked.name == pod.name:
            self._marked = None

    async def put(self, pod: PodState, *, pods: int, lasts: timedelta, shown_by: str) -> None:
        """Mark a pod, unless one is marked: it says since when."""
        if self._marked is None:
            since = await self._api.now() - lasts
            if await self._write(pod, HangNote(since=since, pods=pods, shown_by=shown_by).dump()):
                self._marked = pod

    async def take_off(self) -> None:
        if self._marked is not None and await self._write(self._marked, None):
            self._marked = None

    async def _write(self, pod: PodState, note: str | None) -> bool:
        path = f"api/v1/namespaces/{self._namespace}/pods/{pod.name}"
        with suppress(GpuError):
            await self._api.annotate(path, uid=pod.uid, annotations={HANG: note})
            return True
        return False


SAMPLE_EVERY = 60.0
"""Seconds from one sample to the next. The first comes after half of that: each stands for the time around it."""
_WITHIN = 10.0
_UNTIL_THE_END_SHOWS = 5.0
_REFUSALS = range(400, 500)
_TRANSIENT = (401, 408, 429)  # credentials that may be renewed, and the server's "later": a timeout, too many requests
_GONE = 404  # the pod's end has not been seen yet


def sampled_time(use: GpuUse) -> timedelta:
    """Return how much of a pod's time its samples stand for."""
    return timedelta(seconds=use.samples * SAMPLE_EVERY)


class GpuSampler:
    """Samples the GPUs of pods while their base containers run. Use it as an async context manager around the wait.

    With several pods, one is sampled at a time, in turn: ranks of a training compute, and wait, together. While all are
    busy at a draw near idle, as in a hang, as many as it takes to know that of each of them in time.

    An exec that is refused, or fails in the container (no nvidia-smi, in PATH or where GKE mounts it; no shell is
    needed), is not repeated. One that the node, the network or a busy API server does not answer is retried with the
    next sample. Both are logged once.

    Args:
        api: The cluster.
        wait: What is waited for; nothing is sampled if its `gpus` is None.
        report: Takes a line for the task's log.
        warn: Takes a warning.

    Attributes:
        use: What has been seen.
    """

    def __init__(
        self, api: AsyncApi, wait: AttemptWait, *, report: Callable[[str], object], warn: Callable[[str], object]
    ) -> None:
        self._api = api
        self._wait = wait
        self._watching = wait.gpus
        self._report = report
        self._warn = warn
        self._pods: dict[str, PodState] = {}
        self._ranks: dict[str, Rank] = {}
        self._running: dict[str, PodState] = {}
        self._has_run: set[str] = set()
        self._turn = 0
        self._task: asyncio.Task[None] | None = None
        self._idleness = Idleness()
        self._spinning = Spinning(SAMPLE_EVERY)
        self._mark = HangMark(api, wait.namespace)
        self._queries: tuple[tuple[str, ...], ...] = (QUERY, QUERY_ON_GKE)
        self._is_over = asyncio.Event()
        self._has_warned = self._has_warned_of_hang = self._has_reported_unknown = False
        self._has_failed = self._is_stopped = False
        self.use = GpuUse()

    def _end(self, error: GpuIdle | GpuHung) -> Progress:
        """Return the outcome of a wait that is ended because of what the GPUs do."""
        phases = self._wait.phases([pod for _, pod in sorted(self._pods.items())])
        return Progress(error=error, result={"timeline": phases, "container_ended": False, "machine": ""})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Sample nothing more: nobody tells of the pods' ends once their wait is over."""
        self._is_stopped = True
        if (task := self._task) is not None:
            self._task = None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def follow(self, pod: PodState, raw: Json, rank: Rank = 0) -> None:
        """Take a pod's present state and JSON from the wait: its GPUs are sampled while it runs.

        A pod whose base container has no GPUs is not sampled.
        """
        if pod.base is not None and not _has_gpus(raw, pod.base.name):
            return
        self._pods[pod.name], self._ranks[pod.name] = pod, rank
        runs = pod.base is not None and pod.base.status == "running"
        self._mark.see(pod, raw, runs=runs)
        if runs:
            if pod.name not in self._running:
                self._spinning.restart()
                self._has_run.add(pod.name)
            self._running[pod.name] = pod
        else:
            self._running.pop(pod.name, None)
        if not self._running:
            if self._task is not None:
                self._task.cancel()
                self._task = None
        elif self._task is None and self._watching is not None and not self._is_stopped:
            self._task = asyncio.create_task(self._sample())

    async def beside(
        self, watching: Coroutine[None, None, Progress], silence: Callable[[], Silence | None] = lambda: None
    ) -> Progress:
        """Return how a wait ends: by itself, or because the GPUs have been idle, or spun, for too long.

        `silence` returns what the pods have printed last.
        """
        ends = self._watching is not None and (self._watching.end_seconds or self._wait.hang_seconds)
        if not ends:
            return await watching
        watch, over = asyncio.create_task(watching), asyncio.create_task(self._is_over.wait())
        try:
            await asyncio.wait({watch, over}, return_when=asyncio.FIRST_COMPLETED)
            return watch.result() if watch.done() else self._end(self._error(silence()))
        finally:
            for task in (watch, over):
                task.cancel()
            await asyncio.gather(watch, over, return_exceptions=True)

    def _error(self, silence: Silence | None) -> GpuIdle | GpuHung:
        if self._hangs:
            return self._wait.hung(
                f"The GPUs of {self._wait.what} have been {self._spinning.in_words}, as in a hang.",
                "See what it waits for, such as another rank; if its work draws so little, raise hang_timeout.",
                silence,
                gpus=self._spinning.details,
            )
        return GpuIdle(
            f"The GPUs of {self._wait.what} have been idle for {self._idleness.in_words}, so it is deleted.",
            "Check its last log lines for what it waits for; if that is work without GPUs, raise idle_gpu_timeout.",
            **self._wait.named,
        )

    async def _sample(self) -> None:
        self._idleness = Idleness()  # samples before an interruption say nothing about the time during it
        self._spinning.restart()
        await asyncio.sleep(SAMPLE_EVERY / 2)
        while not self._is_stopped:
            began = time.monotonic()
            for nth in range(self._to_ask()):
                await self._take_one(self._next(), began, counts=nth == 0)
            await asyncio.sleep(max(0.0, began + SAMPLE_EVERY - time.monotonic()))

    def _next(self) -> PodState:
        self._turn += 1
        return self._running[sorted(self._running)[self._turn % len(self._running)]]

    def _to_ask(self) -> int:
        """Return how many pods to sample now: more than one only where all may hang."""
        window = min((each for each in self._hang_windows if each is not None), default=None)
        return 1 if window is None else self._spinning.pods_to_ask(len(self._running), window)

    @property
    def _hang_windows(self) -> tuple[float | None, float | None]:
        """After how many seconds of spinning to warn, and to end the wait."""
        return (self._watching.warn_seconds if self._watching else None, self._wait.hang_seconds)

    async def _take_one(self, pod: PodState, at: float, *, counts: bool) -> None:
        try:
            output = await self._answer(pod)
            sample = parse(output.decode(errors="replace")) if output is not None else None
            if sample is None:
                await self._failed(pod, "nvidia-smi in its container reports no GPU", is_refused=True)
                return
        except GpuError as error:
            self._take(pod, None, at)
            await self._failed(pod, error.what, is_refused=_refuses(error))
            return
        if counts:  # each stands for the time around it
            self.use = self.use.plus(sample, self._ranks[pod.name])
        self._take(pod, sample, at)
        self._heed_idleness()
        self._heed_hang()
        await self._show_hang()

    def _take(self, pod: PodState, sample: Sample | None, at: float) -> None:
        self._idleness.take(sample.is_idle if sample else None, at)
        self._spinning.take(self._ranks[pod.name], sample, at)

    async def _answer(self, pod: PodState) -> bytes | None:
        """Return what nvidia-smi writes; None where it fails. What has worked is asked alone from then on."""
        assert pod.base is not None
        path = f"api/v1/namespaces/{self._wait.namespace}/pods/{pod.name}"
        for query in self._queries:
            output = await self._api.output(path, container=pod.base.name, command=query, within=_WITHIN)
            if output is not None:
                self._queries = (query,)
                return output
            if pod.name not in self._running:
                break
        return None

    async def _failed(self, pod: PodState, why: str, *, is_refused: bool) -> None:
        """Log the failure once, unless the container has ended meanwhile."""
        await asyncio.sleep(_UNTIL_THE_END_SHOWS)
        if pod.name not in self._running:
            return
        self._is_stopped = self._is_stopped or is_refused
        if not self._has_failed:
            self._has_failed = True
            self._report(f"The GPU use of {self._wait.what} cannot be sampled: {why}")

    def _heed_idleness(self) -> None:
        gpus = self._watching
        assert gpus is not None
        if self._idleness.lasts(gpus.end_seconds):
            self._is_over.set()
        is_long = self._idleness.lasts(gpus.warn_seconds)
        if is_long and not self._has_warned:
            self._warn(f"The GPUs of {self._wait.what} have been idle for {self._idleness.in_words}.")
        self._has_warned = is_long

    @property
    def _hangs(self) -> bool:
        return self._spins_for(self._wait.hang_seconds)

    def _spins_for(self, seconds: float | None) -> bool:
        has_begun = len(self._has_run) >= self._wait.pods_together
        return has_begun and self._spinning.lasts(seconds, [self._ranks[name] for name in self._running])

    def _heed_hang(self) -> None:
        warn_seconds, end_seconds = self._hang_windows
        if self._spinning.is_unknown and not self._has_reported_unknown and (warn_seconds or end_seconds):
            self._has_reported_unknown = True
            self._report(f"Whether {self._wait.what} hangs cannot be told by its GPUs' power: they do not report it.")
        if self._hangs:
            self._is_over.set()
        if self._spins_for(warn_seconds) and not self._has_warned_of_hang:
            self._has_warned_of_hang = True
            self._warn(f"The GPUs of {self._wait.what} have been {self._spinning.in_words}: it may hang.")

    async def _show_hang(self) -> None:
        """Mark one of its pods from the warning on, and no longer than its GPUs spin."""
        if not self._spinning.seconds:
            await self._mark.take_off()
        elif self._running and self._spins_for(self._hang_windows[0]):
            first, lasts = self._running[min(self._running)], timedelta(seconds=self._spinning.seconds)
            await self._mark.put(first, pods=len(self._running), lasts=lasts, shown_by=f"busy {self._spinning.draw}")


def _has_gpus(pod: Json, container: str) -> bool:
    named = [each for each in (pod.get("spec") or {}).get("containers") or () if each["name"] == container]
    return asked({"containers": named}) > 0


def _refuses(error: GpuError) -> bool:
    if isinstance(error, OutputTooLong):
        return True
    cause = error.__cause__
    if not isinstance(cause, aiohttp.ClientResponseError):
        return False
    return cause.status in _REFUSALS and cause.status not in (*_TRANSIENT, _GONE)

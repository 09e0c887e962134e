"""GpuSampler: asks a running pod's own container what its GPUs do, beside the wait for it and never in its way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, Self

import aiohttp

from airflow_gpu_provider.errors import GpuError, GpuIdle
from airflow_gpu_provider.pods.gpu_use import QUERY, GpuUse, Idleness, parse
from airflow_gpu_provider.pods.wait import PodWait, timeline
from airflow_gpu_provider.scaling.waits import Progress

if TYPE_CHECKING:
    from airflow_gpu_provider.cluster.async_api import AsyncApi
    from airflow_gpu_provider.cluster.pod_state import Json, PodState

SAMPLE_EVERY = 60.0
"""Seconds from one sample to the next. The first comes after half of that: each stands for the time around it."""
_WITHIN = 10.0
_UNTIL_THE_END_SHOWS = 5.0
_REFUSALS = range(400, 500)


class _Follows(Protocol):
    def follow(self, pod: PodState, raw: Json, /) -> None: ...


def each_follows(*them: _Follows) -> Callable[[PodState, Json], None]:
    """Return what shows each of them the pod."""

    def show(pod: PodState, raw: Json) -> None:
        for one in them:
            one.follow(pod, raw)

    return show


class GpuSampler:
    """Samples one pod's GPUs while its base container runs. Use it as an async context manager around the wait.

    An exec that is refused, or fails in the container (no nvidia-smi, no shell is needed), is not repeated. One that
    the node or the network does not answer is, with the next sample. Both are said once.

    Args:
        api: The cluster.
        wait: The pod; nothing is done where its `gpus` are None.
        say: Takes a line for the task's log.
        warn: Takes a warning.

    Attributes:
        use: What has been seen.
    """

    def __init__(
        self, api: AsyncApi, wait: PodWait, *, say: Callable[[str], object], warn: Callable[[str], object]
    ) -> None:
        self._api = api
        self._wait = wait
        self._say = say
        self._warn = warn
        self._pod: PodState | None = None
        self._task: asyncio.Task[None] | None = None
        self._idleness = Idleness()
        self._is_over = asyncio.Event()
        self._has_warned = self._has_failed = self._is_refused = False
        self.use = GpuUse()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _stop(self) -> None:
        if (task := self._task) is not None:
            self._task = None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def follow(self, pod: PodState, _: Json) -> None:
        """Take the pod as it is now: its GPUs are sampled from its container's start to its end."""
        self._pod = pod
        is_running = pod.base is not None and pod.base.status == "running"
        if not is_running:
            if self._task is not None:
                self._task.cancel()
        elif self._task is None and self._wait.gpus is not None and not self._is_refused:
            self._task = asyncio.create_task(self._sample())

    async def beside(self, watching: Coroutine[Any, Any, Progress]) -> Progress:
        """Return how a wait ends: by itself, or since the GPUs have not computed for as long as they may."""
        if self._wait.gpus is None or self._wait.gpus.end_seconds is None:
            return await watching
        watch, idle = asyncio.create_task(watching), asyncio.create_task(self._is_over.wait())
        try:
            await asyncio.wait({watch, idle}, return_when=asyncio.FIRST_COMPLETED)
            return watch.result() if watch.done() else self._idle()
        finally:
            for task in (watch, idle):
                task.cancel()
            await asyncio.gather(watch, idle, return_exceptions=True)

    def _idle(self) -> Progress:
        pod, lasted = self._wait.name, self._idleness.in_words
        error = GpuIdle(
            f"The GPUs of pod {pod} have not computed for {lasted}; the pod is deleted.",
            "Look at what its last lines wait for; if that is work without GPUs, raise idle_gpu_timeout.",
            pod=pod,
        )
        phases = timeline(self._pod) if self._pod is not None else []
        return Progress(error=error, result={"timeline": phases, "container_ended": False, "machine": ""})

    async def _sample(self) -> None:
        self._idleness = Idleness()  # what came before an interruption says nothing of the time of it
        await asyncio.sleep(SAMPLE_EVERY / 2)
        while not self._is_refused:
            began = time.monotonic()
            await self._take_one(began)
            await asyncio.sleep(max(0.0, began + SAMPLE_EVERY - time.monotonic()))

    async def _take_one(self, at: float) -> None:
        wait = self._wait
        path = f"api/v1/namespaces/{wait.namespace}/pods/{wait.name}"
        try:
            said = await self._api.output(path, container=wait.base_container, command=QUERY, within=_WITHIN)
            sample = parse(said.decode(errors="replace")) if said is not None else None
            if sample is None:
                await self._failed("nvidia-smi in its container says nothing of a GPU", is_refused=True)
                return
        except GpuError as error:
            self._idleness.take(None, at)
            cause = error.__cause__
            is_refused = isinstance(cause, aiohttp.ClientResponseError) and cause.status in _REFUSALS
            await self._failed(error.what, is_refused=is_refused)
            return
        self.use = self.use.plus(sample)
        self._idleness.take(sample.is_idle, at)
        self._heed_idleness()

    async def _failed(self, why: str, *, is_refused: bool) -> None:
        """Say it once, unless the container has ended meanwhile, which cancels this."""
        self._is_refused = is_refused
        await asyncio.sleep(_UNTIL_THE_END_SHOWS)
        if not self._has_failed:
            self._has_failed = True
            self._say(f"What the GPUs of pod {self._wait.name} do is not known: {why}")

    def _heed_idleness(self) -> None:
        gpus = self._wait.gpus
        assert gpus is not None
        if self._idleness.lasts(gpus.end_seconds):
            self._is_over.set()
        is_long = self._idleness.lasts(gpus.warn_seconds)
        if is_long and not self._has_warned:
            self._warn(f"The GPUs of pod {self._wait.name} have not computed for {self._idleness.in_words}.")
        self._has_warned = is_long

"""PodLogs: the log of a pod's containers, streamed into the log of the task that waits for it in the triggerer.

Within one triggerer a line is written once, whatever happens to the connection: each read continues at the LogPosition
that the last one reached. For the next triggerer the positions are kept on the pod, as an annotation: it is deleted
with the pod, the role that runs pods may write it, and the watch on the pod delivers it without further requests. It is
written while lines come, every SAVE_EVERY seconds, so if a triggerer is killed, its successor repeats at most 5 s of
log, and says so; a silent pod costs no request. The operator reads what was not streamed when the pod ended, from the
positions in the trigger's event.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from airflow.sdk.log import amask_secret

from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.model.pod_log import (
    POSITIONS,
    LogReader,
    log_line,
    positions_from_record,
    positions_to_record,
    shown,
)
from airflow_gpu_provider.cluster.model.pod_state import ContainerRun, ContainerState, Json, PodState
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.training.log.trigger_log import Log, PositionSaver, secrets_of, supervisor_log
from airflow_gpu_provider.training.wait.attempt_wait import Silence
from airflow_gpu_provider.training.wait.gpu_use import Rank

if TYPE_CHECKING:
    from airflow_gpu_provider.training.wait.pod_wait import PodWait

STREAMS = 50
"""How many containers one triggerer follows at once, unless `[gpu_provider] log_streams` sets another number."""

REPEATED = "(the following lines may repeat the last seconds: the triggerer was restarted or overloaded)"

ROTATED = (
    "(lines may be missing here: the node has rotated the log, or has started the container again; "
    'see "The log" in docs/running.md)'
)

WriteLine = Callable[[str, str, datetime | None], None]
"""Takes a container's name, a line's text, and the time when it was printed."""

LAST_WORDS_WITHIN = 1.0
"""Seconds to read the log of a preempted pod to its end: a worker may find the pod gone."""
_SILENCE = 240.0  # load balancers silently drop connections idle for longer (EKS: 350 s)
_SOON, _LATEST = 0.5, 15.0
_TOLD_WITHIN = 2.0  # seconds: a kubelet looks at its containers once in a second, and then tells
_BUNCH = 50
_LINES_PER_SECOND = 1000
_USUAL_LENGTH = 1000  # bytes; a longer line counts as several
_LONGEST_LINE = 500


class PodLogs:
    """The streams of one pod. Use it as an async context manager around the wait, in the trigger's own run().

    A task that is created in another trigger's run() would write into another task's log (asyncio copies the context).

    Args:
        api: The cluster.
        pod: The pod, or the wait for it.
        wanted: "containers" (their names), "with_name" (put it before each line), "masked" (see masked_words), and
            "positions" from which to continue, and whether lines "may_repeat", in a redeferral; or "from_start",
            whatever positions the pod has. None: nothing is streamed.
        log: The task's log; takes a level, a format and its arguments.
        write: Writes a line instead of `log`; takes a container's name, the text and when it was printed.
        alone: It runs in the event loop of the pod's own task: its streams are not limited, and none takes over from
            them.
        shown_as: Returns what a container is called in the log. Default: its name.
        saver: Records the positions, with those of other pods. Default: on this pod, by its own.
        on_line: Also called with the text of each line.

    Attributes:
        heard_at: When it last printed something, or could not be heard, by the monotonic clock; or when that began.
        last_line: What that was.
    """

    def __init__(
        self,
        api: AsyncApi,
        pod: PodWait | PodState,
        wanted: Mapping[str, Any] | None,
        log: Log,
        *,
        write: WriteLine | None = None,
        alone: bool = False,
        shown_as: Callable[[str], str] = str,
        saver: PositionSaver | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self._api = api
        self._on_line = on_line
        self._path = f"api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        self._shown_as = shown_as
        self._log = log
        self._write = write or self._log_line
        self._alone = alone
        wanted = wanted or {}
        self._with_name: bool = wanted.get("with_name", True)
        self._names: list[str] = wanted.get("containers") or []
        self._carried: dict[str, Any] = wanted.get("positions") or {}
        positions = positions_from_record(self._carried)
        self._readers = {name: LogReader(positions.get(name)) for name in self._names}
        self._masked: dict[str, str] = wanted.get("masked") or {}
        self._secrets: set[str] = set()
        self._is_resumed = bool(positions)
        self._is_from_start = bool(wanted.get("from_start"))
        self._has_seen_pod = False
        self._may_repeat = bool(wanted.get("may_repeat"))
        self._states: dict[str, ContainerState] = {}
        self._unfollowed: set[str] = set()
        self._is_draining = False
        self._changed = asyncio.Event()
        self._streams: dict[tuple[str, ContainerRun], asyncio.Task[None]] = {}
        self.heard_at = time.monotonic()
        self.last_line = ""
        self._own_saver = PositionSaver(api, self._path, pod.uid, self._positions, self._report)
        self._own_saver.safe = self._carried
        self._saver = saver or self._own_saver

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._streams.values():
            task.cancel()
        await self._own_saver.stop()
        for result in await asyncio.gather(*self._streams.values(), return_exceptions=True):
            if isinstance(result, Exception):
                self._report(f"The pod's log could not be followed to its end; the rest comes later: {result!r}")

    def follow(self, pod: PodState, raw: Json, rank: Rank = 0) -> None:
        """Take the pod's present state: a container that has started is followed from now on."""
        if not self._names:
            return
        if not self._has_seen_pod:
            self._has_seen_pod = True
            if not self._is_from_start:
                self._take_positions((raw["metadata"].get("annotations") or {}).get(POSITIONS))
            self._own_saver.safe = self._positions()
            self._secrets = secrets_of(raw, self._masked)
        for container in (*pod.others, *([pod.base] if pod.base else [])):
            self._states[container.name] = container
            if container.name in self._readers and container.run is not None:
                self._start(container.name, container.run)
        self._tell()

    async def drain(self, seconds: float) -> None:
        """Wait until the streams have ended by themselves, at most this long.

        Nobody tells of the containers' ends any more: from now on, a stream that ends is not taken up again.
        """
        self._is_draining = True
        self._tell()
        if self._streams:
            await asyncio.wait(self._streams.values(), timeout=seconds)

    @property
    def is_whole(self) -> bool:
        """Whether logs are wanted, and all are followed: none waits for a slot, or is refused."""
        return bool(self._names) and not self._unfollowed

    def silence(self) -> Silence | None:
        """Return for how long it has printed nothing; None if its log is not followed."""
        if not self.is_whole:
            return None
        lasts = timedelta(seconds=time.monotonic() - self.heard_at)
        return Silence(lasts=lasts, last_lines={0: self.last_line} if self.last_line else {})

    def rest(self) -> dict[str, Any]:
        """Return what the operator needs to continue: "positions", and whether lines may come twice (`may_repeat`)."""
        return {"positions": self._positions(), "may_repeat": self._may_repeat}

    async def safe_rest(self) -> dict[str, Any]:
        """Return `rest` as far as the lines are certain to be in the task's log."""
        return await self._saver.handed_on(self.rest())

    # -- streaming -------------------------------------------------------------------------------------------

    def _start(self, name: str, run: ContainerRun) -> None:
        if (name, run) in self._streams:
            return
        before = [task for (other, _), task in self._streams.items() if other == name]
        self._streams[name, run] = asyncio.create_task(self._stream(name, run, before))

    async def _stream(self, name: str, run: ContainerRun, before: list[asyncio.Task[None]]) -> None:
        """Follow one run of a container to its end; its earlier runs come first."""
        for secret in self._secrets:  # Airflow's log is masked by the parent process, which knows it from then on
            await amask_secret(secret)
        if before:
            await asyncio.wait(before)
            self._readers[name] = self._readers[name].of_next_run()
        self._unfollowed.add(name)
        async with nullcontext() if self._alone else _slot(lambda bound: self._report(_no_slot(name, bound))):
            self._unfollowed.discard(name)
            failures = 0
            while self._states[name].run in (run, None):  # the next run has a new log
                began, has_ended = time.monotonic(), False
                try:
                    has_ended = await self._read(name)
                except GpuError as error:
                    self.heard_at = time.monotonic()  # it may print what nobody hears
                    if not error.retryable and not self._is_draining:
                        self._report(f"The log of container {name} comes when the pod has ended: {error}")
                        self._unfollowed.add(name)
                        return
                if not self._keeps_running(name, run):
                    return
                failures = 0 if time.monotonic() - began > _LATEST else failures + 1
                longest = min(_LATEST, _SOON * 2.0 ** min(failures, 10))
                pause = max(longest, _TOLD_WITHIN) if has_ended else longest * random.uniform(0.5, 1.0)
                if await self._until_over(name, run, within=pause) and has_ended:
                    return  # that was its whole log: another request might get that of the next run

    def _keeps_running(self, name: str, run: ContainerRun) -> bool:
        """Whether this run of a container still runs, as far as anybody tells."""
        state = self._states[name]
        return not self._is_draining and state.status == "running" and state.run == run

    async def _until_over(self, name: str, run: ContainerRun, *, within: float) -> bool:
        """Wait until this run is told to be over; return whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._keeps_running(name, run):
                    await self._changed.wait()
        return not self._keeps_running(name, run)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _read(self, name: str) -> bool:
        """Write what is new until the connection ends; return whether the log has, as far as one can tell."""
        reader, heard_at = self._readers[name], float("-inf")
        parameters = {**reader.begin(), "container": name}
        async with aclosing(self._api.follow(f"{self._path}/log", silence=_SILENCE, **parameters)) as bunches:
            async for lines in bunches:
                heard_at = time.monotonic()
                for bunch in _bunches(lines):
                    await (asyncio.sleep(0) if self._alone else _turn(_cost(bunch)))
                    # Nothing is awaited in here: a line is both taken and written, or neither.
                    for line in bunch:
                        text = reader.take(line)
                        if text is not None:
                            self._write_line(name, text, reader.at)
        return time.monotonic() - heard_at < _SILENCE

    def _write_line(self, name: str, text: str, at: datetime | None) -> None:
        if self._readers[name].is_after_gap:
            self._report(ROTATED)
        if self._may_repeat:
            self._may_repeat = False
            self._report(REPEATED)
        self._write(name, text, at)
        if text.strip():
            self.heard_at = time.monotonic()
            self.last_line = shown(text).strip()[:_LONGEST_LINE]
        if self._on_line is not None:
            self._on_line(text)
        if not self._alone:
            self._saver.note()

    def _log_line(self, name: str, text: str, at: datetime | None) -> None:
        log_line(self._log, self._shown_as(name), text, with_name=self._with_name)
        supervisor_log().wrote(text)

    def _report(self, text: str) -> None:
        self._log(logging.INFO, "%s", text)

    # -- positions -------------------------------------------------------------------------------------------

    def _take_positions(self, annotation: str | None) -> None:
        """Continue from the positions that an earlier triggerer last recorded."""
        if annotation is None:
            return
        try:
            kept = positions_from_record(json.loads(annotation))
        except (ValueError, TypeError, AttributeError):
            self._report(f"The log starts again from the beginning: the pod's annotation {POSITIONS} cannot be read.")
            return
        newer = [n for n, reader in self._readers.items() if n in kept and kept[n].newest > reader.position.newest]
        self._readers |= {name: LogReader(kept[name]) for name in newer}
        self._may_repeat = self._may_repeat or bool(newer) or not self._is_resumed

    def _positions(self) -> dict[str, Any]:
        return self._carried | positions_to_record({name: reader.position for name, reader in self._readers.items()})


# -- what all streams of a triggerer share -------------------------------------------------------------------


class _Shared:
    """The slots and the turns of one event loop."""

    def __init__(self) -> None:
        from airflow.providers.common.compat.sdk import conf

        self.bound: int = conf.getint("gpu_provider", "log_streams", fallback=STREAMS)
        self.slots = asyncio.Semaphore(self.bound)
        self.free_at = 0.0


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


def _of_this_loop() -> _Shared:
    loop = asyncio.get_running_loop()
    if loop not in _shared:
        _shared[loop] = _Shared()
    return _shared[loop]


@asynccontextmanager
async def _slot(report_full: Callable[[int], None]) -> AsyncIterator[None]:
    """Hold one of the triggerer's stream slots; waiters get them in turn."""
    shared = _of_this_loop()
    if shared.slots.locked():
        report_full(shared.bound)
    async with shared.slots:
        yield


def _bunches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the lines in the portions that are written without a pause: one line, or as many as cost _BUNCH."""
    bunch: list[bytes] = []
    for line in lines:
        if bunch and _cost([*bunch, line]) > _BUNCH:
            yield bunch
            bunch = []
        bunch.append(line)
    if bunch:
        yield bunch


def _cost(lines: Sequence[bytes]) -> int:
    """Return for how many lines of usual length these count."""
    return len(lines) + sum(len(line) // _USUAL_LENGTH for line in lines)


async def _turn(lines: int) -> None:
    """Wait until this many lines may be written.

    A pod that prints endlessly must not block the triggerer: the kubelet is throttled to this pace, and a worker reads
    what is left when the pod ends.
    """
    shared, now = _of_this_loop(), time.monotonic()
    begin = max(now, shared.free_at)
    shared.free_at = begin + lines / _LINES_PER_SECOND
    await asyncio.sleep(begin - now)


def _no_slot(name: str, bound: int) -> str:
    return (
        f"This triggerer follows {bound} logs already ([gpu_provider] log_streams): that of container {name} comes "
        "when one of them ends, or the pod."
    )

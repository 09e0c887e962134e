"""What a trigger knows of the log that it writes: what was read of it, its last lines, up to where it is kept, and what
is secret in it.

Airflow 3.3's triggerer is two processes. The one that runs triggers sends their lines through a socket to the other,
its supervisor, which writes them into the tasks' logs; a line that it reads after it was told that the trigger is done
goes into the triggerer's own log (triggerer_job_runner.py, _process_log_messages_from_subprocess). On an overloaded
machine that is seconds of lines. The supervisor reads at least 4 KiB of lines between two answers to this process
(supervisor.py, make_buffered_socket_reader), so enough requests prove that it has read everything. Without that proof
lines are lost, not repeated: those on their way when the trigger's event overtakes them, or when their triggerer is
killed, are in no task's log, and the position that was handed on is behind them.

It has no secrets: a worker knows those that it has rendered into a pod, and masks them in the log; a trigger that
streams the pod's log does not know them, and its arguments are stored in plain text in Airflow's database. So it gets
the texts as Airflow shows them, secrets masked, and finds the secrets by comparing them with the pod that it watches.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import re
import time
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

from airflow.providers.common.compat.sdk import redact
from airflow.sdk.log import amask_secret

from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.model.pod_log import POSITIONS
from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.errors import GpuError

_READ_EACH_TIME = 4096
_BESIDE_THE_TEXT = 512
_SOCKET_BUFFER = 212_992
"""Linux' default (net.core.wmem_default): no more can be in flight, since the writer then has to wait."""


async def _ask_supervisor() -> None:
    """Wait for an answer that costs the supervisor nothing; return at once without one, as in a test."""
    await amask_secret("")


class SupervisorLog:
    """The lines of one event loop's triggers.

    Args:
        ask: Returns when the supervisor has answered.
    """

    def __init__(self, ask: Callable[[], Awaitable[None]] = _ask_supervisor) -> None:
        self._ask = ask
        self._turn = asyncio.Lock()  # answers to several requests at once would be counted twice
        self.written = 0
        """Bytes that were sent, or a little more."""
        self.read = 0
        """Of those, how many were read, or fewer."""

    def wrote(self, text: str) -> None:
        self.written += _BESIDE_THE_TEXT + 2 * len(text)

    async def until_read(self, mark: int, *, within: float) -> bool:
        """Return True once all that was written before `mark` is read; False after `within` seconds."""
        try:
            async with asyncio.timeout(within):
                while self.read < mark:
                    await self._read_on(mark)
        except TimeoutError:
            return False
        return True

    async def _read_on(self, mark: int) -> None:
        async with self._turn:
            if self.read >= mark:
                return
            sent = self.written
            on_its_way = min(sent - self.read, _SOCKET_BUFFER)
            for _ in range(math.ceil(on_its_way / _READ_EACH_TIME) + 1):  # one more: it may answer before it reads
                await self._ask()
            self.read = sent


_logs: WeakKeyDictionary[asyncio.AbstractEventLoop, SupervisorLog] = WeakKeyDictionary()


def supervisor_log() -> SupervisorLog:
    return _logs.setdefault(asyncio.get_running_loop(), SupervisorLog())


LINES = 1000
LONGEST = 2000
"""How many characters of a line are kept."""

Log = Callable[..., None]
"""Takes a level, a format and its arguments, like `Logger.log`."""


class KeptLines:
    """What was logged through `log`.

    Args:
        write: Writes a line into the task's log.
    """

    def __init__(self, write: Log) -> None:
        self._write = write
        self._lines: deque[tuple[float, int, str]] = deque(maxlen=LINES)
        self._count = 0

    def log(self, level: int, message: str, *args: object) -> None:
        self._write(level, message, *args)
        text = message % args if args else message
        more = f" ... ({len(text) - LONGEST} more characters)" if len(text) > LONGEST else ""
        self._lines.append((time.time(), level, text[:LONGEST] + more))
        self._count += 1

    def packed(self) -> str:
        """Return them, masked as Airflow masks a log, for an event; it is stored, and may be printed."""
        lines = [(round(at, 3), level, str(redact(text))) for at, level, text in self._lines]
        text = json.dumps({"lines": lines, "count": self._count})
        return base64.b64encode(zlib.compress(text.encode())).decode()


def write_again(log: Log, packed: str, *, what: str) -> None:
    """Write what a trigger has kept into the log of the worker that goes on.

    Args:
        log: The worker's.
        packed: What `KeptLines.packed` returned.
        what: Whose lines they are.
    """
    kept = json.loads(zlib.decompress(base64.b64decode(packed)))
    for line in (_head(what, len(kept["lines"]), kept["count"]), *_shown(kept["lines"])):
        log(*line)
    log(logging.INFO, "%s", f"---- (end of the triggerer's lines of {what})")


def _head(what: str, kept: int, count: int) -> tuple[int, str, str]:
    which = f"the last {kept} of the {count} lines" if count > kept else f"the {kept} lines"
    why = "Airflow clears them where they were when the task waits in the triggerer again"
    return logging.INFO, "%s", f"---- {which} that the triggerer logged of {what}, with their times ({why}):"


def _shown(lines: Iterable[tuple[float, int, str]]) -> Iterable[tuple[int, str, str]]:
    for at, level, text in lines:
        yield level, "%s", f"{datetime.fromtimestamp(at, UTC):%H:%M:%SZ} {text}"


SAVE_EVERY = 3.0
"""Seconds between two writes, while lines come."""
READ_WITHIN = 5.0
"""Seconds that the triggerer's supervisor may take to have read what was written to it."""
_OUTLIVED = 1.5


class PositionSaver:
    """Records positions in an annotation of one object while there are new ones; first, that there are any.

    Args:
        api: The cluster.
        path, uid: The object.
        positions: Returns those reached so far.
        report: Takes a line for the task's log.

    Attributes:
        safe: Positions up to which all lines are certain to be in the task's log; at first, those before any new line.
    """

    def __init__(
        self, api: AsyncApi, path: str, uid: str, positions: Callable[[], dict[str, Any]], report: Callable[[str], None]
    ) -> None:
        self._api = api
        self._path = path
        self._uid = uid
        self._positions = positions
        self._report = report
        self._unsaved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.safe: dict[str, Any] = {}

    def note(self) -> None:
        self._unsaved.set()
        if self._task is None:
            self._task = asyncio.create_task(self._keep_saving())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def handed_on(self, rest: dict[str, Any]) -> dict[str, Any]:
        """Return `rest` (see PodLogs.rest), or what is safe of it: better to read the other lines twice."""
        log = supervisor_log()
        if await log.until_read(log.written, within=READ_WITHIN):
            return rest
        return {**rest, "positions": self.safe, "may_repeat": True}

    async def _keep_saving(self) -> None:
        may_save = True
        while True:
            try:
                if may_save:
                    await self._save()
            except GpuError as error:
                if may_save := error.retryable:
                    self._unsaved.set()
                else:
                    self._report(f"If the triggerer is restarted, this log starts again from the beginning: {error}")
            await asyncio.sleep(SAVE_EVERY - _OUTLIVED)
            await self._unsaved.wait()
            self._unsaved.clear()
            reached, mark = self._positions(), supervisor_log().written
            # A runner whose supervisor was killed runs for up to another second, and its output is in no log.
            await asyncio.sleep(_OUTLIVED)
            if await supervisor_log().until_read(mark, within=READ_WITHIN):
                self.safe = reached
            else:
                self._unsaved.set()

    async def _save(self) -> None:
        text = json.dumps(self.safe, separators=(",", ":"))
        await self._api.annotate(self._path, uid=self._uid, annotations={POSITIONS: text})


MASK = "***"


def masked_words(pod: Json, redact: Callable[[str], str]) -> dict[str, str]:
    """Return the texts that contain a secret, masked, by their place in the pod.

    Args:
        pod: As JSON.
        redact: Returns a text with MASK in place of each secret.
    """
    masked = {place: redact(text) for place, text in _words(pod)}
    return {place: masked[place] for place, text in _words(pod) if masked[place] != text}


def secrets_of(pod: Json, masked: Mapping[str, str]) -> set[str]:
    """Return the pod's secrets, whose places `masked` shows."""
    found: set[str] = set()
    for place, text in _words(pod):
        if place in masked:
            shape = "(.+?)".join(map(re.escape, masked[place].split(MASK)))
            match = re.fullmatch(shape, text, flags=re.DOTALL)
            found.update(match.groups() if match else ())
    return found


def _words(pod: Json) -> Iterator[tuple[str, str]]:
    """Yield the texts that a container is started with, and the place of each."""
    spec: Mapping[str, Any] = pod.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for variable in container.get("env") or ():
            if variable.get("value"):
                yield f"{container['name']}/env/{variable['name']}", variable["value"]
        for field in ("command", "args"):
            for index, text in enumerate(container.get(field) or ()):
                yield f"{container['name']}/{field}/{index}", text

"""PositionSaver: up to where an object's logs are in the task's log, kept in an annotation for the next triggerer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from airflow_gpu_provider.cluster.async_api import AsyncApi
from airflow_gpu_provider.cluster.pod_log import POSITIONS
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.training.log.supervisor_log import supervisor_log

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
        self.first: dict[str, Any] = {}
        """The positions before the first new line."""

    def note(self) -> None:
        """Take note that there are new positions."""
        self._unsaved.set()
        if self._task is None:
            self._task = asyncio.create_task(self._keep_saving())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _keep_saving(self) -> None:
        positions = self.first
        while True:
            try:
                await self._save(positions)
            except GpuError as error:
                if not error.retryable:
                    self._report(f"If the triggerer is restarted, this log starts again from the beginning: {error}")
                    return
                self._unsaved.set()
            await asyncio.sleep(SAVE_EVERY - _OUTLIVED)
            await self._unsaved.wait()
            self._unsaved.clear()
            safe, mark = self._positions(), supervisor_log().written
            # A runner whose supervisor was killed runs for up to another second, and its output is in no log.
            await asyncio.sleep(_OUTLIVED)
            if await supervisor_log().until_read(mark, within=READ_WITHIN):
                positions = safe
            else:
                self._unsaved.set()

    async def _save(self, positions: dict[str, Any]) -> None:
        text = json.dumps(positions, separators=(",", ":"))
        await self._api.annotate(self._path, uid=self._uid, annotations={POSITIONS: text})

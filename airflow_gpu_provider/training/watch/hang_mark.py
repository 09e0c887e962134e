"""HangMark: keeps a HangNote on a pod while its training may hang, whichever triggerer has put it there."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.hang_note import HANG, HangNote
from airflow_gpu_provider.errors import GpuError

if TYPE_CHECKING:
    from airflow_gpu_provider.cluster.async_api import AsyncApi
    from airflow_gpu_provider.cluster.pod_state import Json, PodState


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

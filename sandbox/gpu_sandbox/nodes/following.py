"""List and watch: what the API has of one kind, followed through restarts of the API server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from gpu_sandbox.nodes.api import Api
from gpu_sandbox.nodes.errors import ApiError

RETRY_SECONDS = 0.2
log = logging.getLogger(__name__)


class Follower:
    """The objects of a path by their UID; `changed` is told each as it is now, `removed` each that is gone."""

    def __init__(
        self,
        api: Api,
        path: str,
        *,
        changed: Callable[[Mapping[str, Any]], None],
        removed: Callable[[Mapping[str, Any]], None],
        field_selector: str = "",
    ) -> None:
        self.objects: dict[str, Mapping[str, Any]] = {}
        self._api = api
        self._path = path
        self._changed = changed
        self._removed = removed
        self._selection = {"fieldSelector": field_selector} if field_selector else {}
        self._resource_version = ""

    @property
    def listed(self) -> bool:
        """Whether `objects` are what there was at some time, and not only the first of them."""
        return bool(self._resource_version)

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if not self._resource_version:
                    await self._list()
                await self._watch()
            except ApiError as error:
                log.info("watch of %s: %s", self._path, error)
                if error.status == 410:
                    self._resource_version = ""
                    continue
                await asyncio.sleep(RETRY_SECONDS)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                log.info("watch of %s: %r; again", self._path, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _list(self) -> None:
        answer = await self._api.get(self._path, **self._selection)
        found = {one["metadata"]["uid"]: one for one in answer["items"]}
        for uid in self.objects.keys() - found.keys():
            self._remove(self.objects[uid])
        for one in found.values():
            self._upsert(one)
        self._resource_version = answer["metadata"]["resourceVersion"]

    async def _watch(self) -> None:
        stream = self._api.watch(
            self._path,
            **self._selection,
            resourceVersion=self._resource_version,
            allowWatchBookmarks="true",
            timeoutSeconds="300",
        )
        async for event in stream:
            one = event["object"]
            if event["type"] == "ERROR":
                raise ApiError(one.get("code", 500), one.get("reason", ""), one.get("message", ""))
            self._resource_version = one["metadata"]["resourceVersion"]
            if event["type"] == "DELETED":
                self._remove(one)
            elif event["type"] != "BOOKMARK":
                self._upsert(one)

    def _upsert(self, one: Mapping[str, Any]) -> None:
        self.objects[one["metadata"]["uid"]] = one
        self._changed(one)

    def _remove(self, one: Mapping[str, Any]) -> None:
        self.objects.pop(one["metadata"]["uid"], None)
        self._removed(one)

"""Events as the kubelet emits them; a repeated one is counted up instead of written again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from gpu_sandbox.nodes import clock
from gpu_sandbox.nodes.api import Api
from gpu_sandbox.nodes.errors import ApiError

log = logging.getLogger(__name__)


class Events:
    """Writes events in the order they happen, without making anybody wait."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._queue: asyncio.Queue[tuple[tuple[str, ...], dict[str, Any]]] = asyncio.Queue()
        self._written: dict[tuple[str, ...], dict[str, Any]] = {}

    def about_pod(
        self,
        pod: Mapping[str, Any],
        kind: str,
        reason: str,
        message: str,
        *,
        container: str | None = None,
        is_init: bool = False,
    ) -> None:
        """An event about a pod, or about one of its containers; kind is ``Normal`` or ``Warning``."""
        metadata = pod["metadata"]
        involved = {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion"),
        }
        if container is not None:
            involved["fieldPath"] = f"spec.{'initContainers' if is_init else 'containers'}{{{container}}}"
        self._put(involved, metadata["namespace"], kind, reason, message, pod["spec"].get("nodeName", ""))

    def about_node(self, name: str, kind: str, reason: str, message: str) -> None:
        """An event about a node."""
        involved = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}
        self._put(involved, "default", kind, reason, message, name)

    def _put(self, involved: dict[str, Any], namespace: str, kind: str, reason: str, message: str, host: str) -> None:
        now = clock.seconds_text(clock.now())
        event = {
            "metadata": {"namespace": namespace, "name": f"{involved['name'][:230]}.{time.time_ns():x}"},
            "involvedObject": involved,
            "type": kind,
            "reason": reason,
            "message": message[:1000],
            "source": {"component": "kubelet", "host": host},
            "reportingComponent": "kubelet",
            "reportingInstance": host,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        key = (involved["uid"], involved.get("fieldPath", ""), kind, reason, message)
        self._queue.put_nowait((key, event))

    async def run(self) -> None:
        """Write what is put, until cancelled."""
        while True:
            key, event = await self._queue.get()
            try:
                await self._write(key, event)
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                # Events are told once and never waited for: a namespace being deleted refuses them.
                log.info("event %s not written: %s", event["reason"], error)

    async def _write(self, key: tuple[str, ...], event: dict[str, Any]) -> None:
        path = f"/api/v1/namespaces/{event['metadata']['namespace']}/events"
        known = self._written.get(key)
        if known is not None:
            known["count"] += 1
            change = {"count": known["count"], "lastTimestamp": event["lastTimestamp"]}
            await self._api.patch(f"{path}/{known['metadata']['name']}", change)
            return
        self._written[key] = event
        if len(self._written) > 5000:
            self._written.pop(next(iter(self._written)))
        await self._api.create(path, event)

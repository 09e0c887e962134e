"""All Nodes and Pods by list and watch, as in cluster-autoscaler's informers: old while the API server is away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from gpu_sandbox.nodes.api import Api, read_kubeconfig
from gpu_sandbox.nodes.following import Follower

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"


class ClusterView(Protocol):
    """All Nodes and Pods, as the autoscaler sees them."""

    version: int
    """Another one after each change."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def objects(self, path: str) -> list[Mapping[str, Any]]:
        """All of `NODES` or `PODS`. Raises ConnectionError before they have been listed for the first time."""

    def born(self, one: Mapping[str, Any]) -> float:
        """When it was created, in seconds since the epoch, by the sandbox's clock."""


class ClusterWatch:
    """A thread that follows both kinds. Implements `ClusterView`."""

    def __init__(self, kubeconfig: Path) -> None:
        self.version = 0
        self._kubeconfig = kubeconfig
        self._followers: dict[str, Follower] = {}
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="cluster-autoscaler's watches", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return when the watches are over."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def objects(self, path: str) -> list[Mapping[str, Any]]:
        """All of `NODES` or `PODS`. Raises ConnectionError before they have been listed for the first time."""
        follower = self._followers.get(path)
        if follower is None or not follower.listed:
            raise ConnectionError(f"{path} has not been listed yet")
        return list(follower.objects.values())

    def born(self, one: Mapping[str, Any]) -> float:
        return datetime.fromisoformat(one["metadata"]["creationTimestamp"]).timestamp()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._follow())

    async def _follow(self) -> None:
        async with Api(read_kubeconfig(self._kubeconfig)) as api:
            for path in (NODES, PODS):
                self._followers[path] = Follower(api, path, changed=self._changed, removed=self._changed)
            tasks = [asyncio.create_task(follower.run()) for follower in self._followers.values()]
            await self._stopped.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _changed(self, _: Mapping[str, Any]) -> None:
        self.version += 1
